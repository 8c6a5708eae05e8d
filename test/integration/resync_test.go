// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fixedip.io/fixedip/hack/witness"
)

// rowsFor returns the rows of the pods of a StatefulSet.
func rowsFor(rows []witness.Row, workload string) []witness.Row {
	return slices.DeleteFunc(slices.Clone(rows), func(r witness.Row) bool { return !strings.HasPrefix(r.Pod, workload+"-") })
}

// TestG4EventsAndResync checks that addresses are released on events at once, although the next resync is an hour away.
// A restarted controller releases the addresses whose events it missed, and later resyncs write nothing (G4).
func TestG4EventsAndResync(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1", "node-2"}, controllerArgs: append([]string{"--resync-period=1h"}, defaultPool...)})
	e.create(statefulSet("observed", 2), statefulSet("unobserved", 2), statefulSet("shrinks", 2, annotatedWith("fixedip.io/when-scaled", "Delete")), statefulSet("stays", 2))
	all := slices.Concat(names("observed", 2), names("unobserved", 2), names("shrinks", 2), names("stays", 2))
	before := e.awaitRunning(nil, all...)

	e.delete(statefulSet("observed", 2))
	e.scale("shrinks", 1)
	e.await("wait for the addresses of observed and shrinks-1 to be released", func(rows []witness.Row) bool {
		return len(rowsFor(rows, "observed")) == 0 && len(rowsFor(rows, "shrinks")) == 1
	})

	e.must(e.controller.Kill())
	e.delete(statefulSet("unobserved", 2))
	e.scale("shrinks", 0)
	missed := append(names("unobserved", 2), "shrinks-0")
	e.awaitGone(missed...)
	for _, name := range missed {
		if entries := e.witness.Entries(namespace, name); !slices.Equal(entries, before[name].Entries) {
			t.Errorf("pod %s had the entries %v and has %v while no controller runs, want the same", name, before[name].Entries, entries)
		}
	}
	port := freePort(t)
	e.startController("controller", append([]string{"--resync-period=1s", "--enable-leader-election=false", fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", port)}, defaultPool...)...)
	e.await("wait for the addresses whose events the controller missed to be released", func(rows []witness.Row) bool { return len(rows) == len(rowsFor(rows, "stays")) })
	e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Other == 0 && p.Dynamic == 10 && p.Used == 2+p.Fixed }))

	written := func() map[string]string {
		all := e.written()
		// The scheduler renews its Lease all the time.
		delete(all, "Lease fixedip-scheduler")
		return all
	}
	baseline := written()
	last := 0.0
	for range 3 {
		e.awaitMetric(port, "fixedip_last_reconcile_timestamp_seconds", map[string]string{"controller": "fixedip"}, func(at float64) bool {
			if at < last+1 {
				return false
			}
			last = at
			return true
		})
	}
	if diff := cmp.Diff(baseline, written()); diff != "" {
		t.Errorf("objects changed during resyncs (-before +after): %s", diff)
	}
	e.untouched(map[string]witness.Row{"stays-0": before["stays-0"], "stays-1": before["stays-1"]})
}
