// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim_test

import (
	"net/netip"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
	"fixedip.io/fixedip/test/gen"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// decide returns the result of Decide without the name of the rule and without the condition Ready, so that the tables need
// not contain them. TestReady checks that condition.
func decide(s reclaim.State) reclaim.Action {
	a := reclaim.Decide(s)
	if ready := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
		record := *s.Record
		record.Status.Conditions = append(slices.Clone(record.Status.Conditions), *ready)
		s.Record = &record
		a = reclaim.Decide(s)
		meta.RemoveStatusCondition(&a.Status.Conditions, v1alpha1.ConditionReady)
		if len(a.Status.Conditions) == 0 {
			a.Status.Conditions = nil
		}
	}
	a.Rule = ""
	return a
}

// asSlot returns the state s as the state of a slot with the given holder.
func asSlot(s reclaim.State, holder string) reclaim.State {
	s.Slot, s.Holder = true, holder
	return s
}

// TestReady checks the condition Ready: it has the reason and message of the condition that shows a problem.
func TestReady(t *testing.T) {
	mine := []ledger.NodeAddresses{held("node-1", "10.0.1.6")}
	with := func(conditions ...metav1.Condition) *v1alpha1.FixedIP {
		return record(func(r *v1alpha1.FixedIP) { r.Generation, r.Status.Conditions = 3, conditions })
	}
	bad := func(kind string, status metav1.ConditionStatus) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: "Problem", Message: "what is wrong"}
	}
	for name, c := range map[string]struct {
		record *v1alpha1.FixedIP
		// held is State.Held; nil: 10.0.1.6 on node-1.
		held            []ledger.NodeAddresses
		status          metav1.ConditionStatus
		reason, message string
	}{
		"no condition shows a problem":                     {with(), nil, metav1.ConditionTrue, "Allocated", "The addresses are reserved for the pod, and no problem is known"},
		"Conflict is False":                                {with(bad(v1alpha1.ConditionConflict, metav1.ConditionFalse)), nil, metav1.ConditionTrue, "Allocated", "The addresses are reserved for the pod, and no problem is known"},
		"Conflict is True":                                 {with(bad(v1alpha1.ConditionConflict, metav1.ConditionTrue)), nil, metav1.ConditionFalse, "Problem", "what is wrong"},
		"Mismatch is True":                                 {with(bad(v1alpha1.ConditionMismatch, metav1.ConditionTrue)), nil, metav1.ConditionFalse, "Problem", "what is wrong"},
		"SubnetAvailable is False":                         {with(bad(v1alpha1.ConditionSubnetAvailable, metav1.ConditionFalse)), nil, metav1.ConditionFalse, "Problem", "what is wrong"},
		"Allocated is False":                               {with(bad(v1alpha1.ConditionAllocated, metav1.ConditionFalse)), nil, metav1.ConditionFalse, "Problem", "what is wrong"},
		"the FixedIP is being deleted":                     {record(deleting), nil, metav1.ConditionFalse, "Releasing", "The FixedIP is being deleted; its addresses are released when no pod uses them any more"},
		"the FixedIP has no address":                       {record(func(r *v1alpha1.FixedIP) { r.Spec.IPs, r.Spec.NodeName = nil, "" }), nil, metav1.ConditionFalse, "NoAddress", "The FixedIP has no addresses; it gets those of its pod"},
		"the pod's node has an entry that is not recorded": {with(), []ledger.NodeAddresses{held("node-1", "10.0.1.5", "10.0.1.6")}, metav1.ConditionFalse, "EntriesDiffer", "the pool of node node-1 has an entry for pod db/mysql-0 that the pod should not have: IP 10.0.1.5"},
		"the pod's node has no entry":                      {with(), []ledger.NodeAddresses{held("node-2", "10.0.2.6")}, metav1.ConditionFalse, "EntriesDiffer", "the pool of node node-1 lacks an entry for pod db/mysql-0: IP 10.0.1.6"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.held == nil {
				c.held = mine
			}
			a := reclaim.Decide(at(reclaim.State{Record: c.record, Held: c.held, Pod: podOn("node-1"), Workload: existing}))
			want := &metav1.Condition{
				Type: v1alpha1.ConditionReady, Status: c.status, Reason: c.reason, Message: c.message,
				ObservedGeneration: c.record.Generation, LastTransitionTime: metav1.Time{Time: now},
			}
			if diff := cmp.Diff(want, meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionReady)); diff != "" {
				t.Errorf("condition Ready of action %q, rule %q (-want +got): %s", a.Type, a.Rule, diff)
			}
		})
	}
}

// TestRules checks that the package documentation lists the rules in the order in which Decide tries them.
func TestRules(t *testing.T) {
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, m := range regexp.MustCompile(`(?m)^//\t  ([a-z][a-zA-Z ]*?)   *[a-zA-Z']`).FindAllSubmatch(text, -1) {
		documented = append(documented, string(m[1]))
	}
	if diff := cmp.Diff(documented, reclaim.Rules()); diff != "" {
		t.Errorf("rules in doc.go and in the code differ (-doc.go +code): %s", diff)
	}
}

func node(entries map[string]pool.Entry, used ...string) pool.NodePool {
	return gen.NodePool("n", "10.0.1.0/29", entries, gen.UsedBy("db/other-2", used...))
}

func edited(edits []pool.EntryChange) []string {
	var out []string
	for _, e := range edits {
		out = append(out, e.Addr.String())
	}
	return out
}
