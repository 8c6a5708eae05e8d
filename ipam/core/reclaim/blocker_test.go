// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/reclaim"
)

// TestDecideWithBlocker checks that the entry of an address with a blocker is not released, that a FixedIP that is being
// deleted waits because of it until it is overdue, that an entry without a blocker is released, and that each state leads to
// an action if there is no blocker.
func TestDecideWithBlocker(t *testing.T) {
	const why = "another pod has it"
	again := now.Add(10 * time.Second)
	blockers := []reclaim.ReleaseBlocker{{Addr: addr("10.0.1.6"), Why: why}}
	deleted := record(func(r *v1alpha1.FixedIP) {
		r.DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Minute)}
		r.Status = v1alpha1.FixedIPStatus{}
	})
	optedOut := reclaim.Workload{OwnerReference: mysql, Exists: true, OptsOut: true}
	reclaimed := reservedRecord(identity.DefaultReclaim())
	for name, c := range map[string]struct {
		s    reclaim.State
		want reclaim.Action
	}{
		"FixedIP deleted":                      {reclaim.State{Record: deleted, Held: heldOnly("node-1", "10.0.1.6"), Workload: existing}, reclaim.Action{At: again, Why: why}},
		"FixedIP deleted, overdue":             {reclaim.State{Record: deleted, Held: heldOnly("node-1", "10.0.1.6"), Workload: existing, Deadline: time.Minute}, reclaim.Action{Type: reclaim.FinishRecord}},
		"FixedIP deleted, overdue in a second": {reclaim.State{Record: deleted, Held: heldOnly("node-1", "10.0.1.6"), Workload: existing, Deadline: 61 * time.Second}, reclaim.Action{At: now.Add(time.Second), Why: why}},
		"FixedIP deleted, another entry has no blocker": {
			reclaim.State{Record: deleted, Held: append(heldOnly("node-1", "10.0.1.6"), heldOnly("node-2", "10.0.2.6")...), Workload: existing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2"},
		},
		"workload deleted":             {reclaim.State{Record: reclaimed, Held: heldOnly("node-1", "10.0.1.6"), Workload: gone}, reclaim.Action{At: again, Why: why}},
		"workload opted out":           {reclaim.State{Record: reclaimed, Held: heldOnly("node-1", "10.0.1.6"), Workload: optedOut}, reclaim.Action{At: again, Why: why}},
		"no FixedIP, workload deleted": {reclaim.State{Held: heldOnly("node-1", "10.0.1.6"), Workload: gone}, reclaim.Action{At: again, Why: why}},
		"no FixedIP, workload opted out": {
			reclaim.State{Held: heldOnly("node-1", "10.0.1.6"), Workload: optedOut},
			reclaim.Action{At: again, Why: why},
		},
		"entry in addition to the recorded one": {
			reclaim.State{Record: record(func(r *v1alpha1.FixedIP) {
				r.Spec.IPs = []string{"10.0.1.7"}
				r.Status = v1alpha1.FixedIPStatus{}
			}), Held: heldOnly("node-1", "10.0.1.6", "10.0.1.7"), Workload: existing},
			reclaim.Action{At: again},
		},
	} {
		c.s.Now, c.s.Blockers = now, blockers
		if diff := cmp.Diff(c.want, decide(c.s)); diff != "" {
			t.Errorf("%s (-want +got): %s", name, diff)
		}
		c.s.Blockers = nil
		if next := decide(c.s); next.Why != "" || next.Type == reclaim.Nothing {
			t.Errorf("%s: without the blocker, Decide returns %+v; want an action without Why", name, next)
		}
	}
}

func heldOnly(node string, addrs ...string) []ledger.NodeAddresses {
	return []ledger.NodeAddresses{held(node, addrs...)}
}
