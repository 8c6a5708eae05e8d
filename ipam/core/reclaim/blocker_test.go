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

// TestDecideContested checks that an address with a blocker is not released until the FixedIP is overdue, that other
// addresses are, and that the same state without the blocker leads to an action.
func TestDecideContested(t *testing.T) {
	const why = "another pod has it"
	again := now.Add(10 * time.Second)
	contest := []reclaim.ReleaseBlocker{{Addr: addr("10.0.1.6"), Why: why}}
	deleted := record(func(r *v1alpha1.FixedIP) {
		r.DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Minute)}
		r.Status = v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReleasing}
	})
	optedOut := reclaim.Workload{OwnerReference: mysql, Exists: true, OptsOut: true}
	reclaimed := kept(identity.DefaultReclaim())
	for name, c := range map[string]struct {
		s    reclaim.State
		want reclaim.Action
	}{
		"its record is deleted": {reclaim.State{Record: deleted, Held: holdings("node-1", "10.0.1.6"), Workload: standing}, reclaim.Action{At: again, Why: why}},
		"and overdue":           {reclaim.State{Record: deleted, Held: holdings("node-1", "10.0.1.6"), Workload: standing, Deadline: time.Minute}, reclaim.Action{Type: reclaim.FinishRecord}},
		"and soon overdue":      {reclaim.State{Record: deleted, Held: holdings("node-1", "10.0.1.6"), Workload: standing, Deadline: 61 * time.Second}, reclaim.Action{At: now.Add(time.Second), Why: why}},
		"its record is deleted, and it holds more": {
			reclaim.State{Record: deleted, Held: append(holdings("node-1", "10.0.1.6"), holdings("node-2", "10.0.2.6")...), Workload: standing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2"},
		},
		"its workload is gone":                {reclaim.State{Record: reclaimed, Held: holdings("node-1", "10.0.1.6"), Workload: gone}, reclaim.Action{At: again, Why: why}},
		"its workload opts out":               {reclaim.State{Record: reclaimed, Held: holdings("node-1", "10.0.1.6"), Workload: optedOut}, reclaim.Action{At: again, Why: why}},
		"no record, and its workload is gone": {reclaim.State{Held: holdings("node-1", "10.0.1.6"), Workload: gone}, reclaim.Action{At: again, Why: why}},
		"no record, and its workload opts out": {
			reclaim.State{Held: holdings("node-1", "10.0.1.6"), Workload: optedOut},
			reclaim.Action{At: again, Why: why},
		},
		"what is held in place of what is recorded": {
			reclaim.State{Record: record(func(r *v1alpha1.FixedIP) {
				r.Spec.IPs = []string{"10.0.1.7"}
				r.Status = v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved}
			}), Held: holdings("node-1", "10.0.1.6", "10.0.1.7"), Workload: standing},
			reclaim.Action{At: again},
		},
	} {
		c.s.Now, c.s.Blockers = now, contest
		if diff := cmp.Diff(c.want, decide(c.s)); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
		c.s.Blockers = nil
		if next := decide(c.s); next.Why != "" || next.Type == reclaim.Nothing {
			t.Errorf("%s: uncontested, nothing is done: %+v", name, next)
		}
	}
}

func holdings(node string, addrs ...string) []ledger.NodeAddresses {
	return []ledger.NodeAddresses{held(node, addrs...)}
}
