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
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
	"fixedip.io/fixedip/test/gen"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// decide returns the result of Decide for the state in which the FixedIP already has the condition Ready and the conditions
// that every FixedIP gets, so that the tables need not contain them. The result has neither these conditions, which TestReady
// and TestFirstConditions check, nor the name of the rule.
func decide(s reclaim.State) reclaim.Action {
	usual := func(c metav1.Condition) bool {
		return c.Type == v1alpha1.ConditionReady || c.Reason == v1alpha1.ReasonNothingKnown || c.Reason == v1alpha1.ReasonNoHome
	}
	a := reclaim.Decide(s)
	if slices.ContainsFunc(a.Status.Conditions, usual) {
		record := *s.Record
		record.Status.Conditions = slices.Clone(record.Status.Conditions)
		for _, c := range a.Status.Conditions {
			if usual(c) {
				meta.SetStatusCondition(&record.Status.Conditions, c)
			}
		}
		s.Record = &record
		a = reclaim.Decide(s)
		a.Status.Conditions = slices.DeleteFunc(a.Status.Conditions, usual)
		if len(a.Status.Conditions) == 0 {
			a.Status.Conditions = nil
		}
	}
	a.Rule = ""
	return a
}

// TestFirstConditions checks that the first status has all conditions, and that the conditions of other controllers are not
// changed later.
func TestFirstConditions(t *testing.T) {
	s := at(reclaim.State{Record: reservedRecord(spec.Reclaim), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Homes: homes(), Workload: existing})
	s.Record.Generation = 3
	s.Homes[0].Entry = &pool.Entry{}
	a := reclaim.Decide(s)
	types := map[string]metav1.ConditionStatus{}
	for _, c := range a.Status.Conditions {
		types[c.Type] = c.Status
		if c.ObservedGeneration != 3 || c.LastTransitionTime.Unix() != now.Unix() || c.Message == "" {
			t.Errorf("got condition %+v, want the generation 3, the time of the decision and a message", c)
		}
	}
	want := map[string]metav1.ConditionStatus{"SubnetAvailable": "True", "Exclusive": "True", "AsReserved": "True", "Allocated": "True", "Ready": "True"}
	if diff := cmp.Diff(want, types); diff != "" || a.Status.ObservedGeneration != 3 {
		t.Errorf("observed generation %d, want 3; conditions (-want +got): %s", a.Status.ObservedGeneration, diff)
	}
	homeless := s
	homeless.Record, homeless.Homes = s.Record.DeepCopy(), nil
	for _, generation := range []int64{3, 4} {
		homeless.Record.Generation = generation
		homeless.Record.Status = reclaim.Decide(homeless).Status
		for _, c := range homeless.Record.Status.Conditions {
			if c.ObservedGeneration != generation || c.Type == v1alpha1.ConditionAllocated && (c.Status != metav1.ConditionUnknown || c.Reason != v1alpha1.ReasonNoHome) {
				t.Errorf("without a home, generation %d: got condition %+v, want that generation, and Allocated Unknown with the reason NoHome", generation, c)
			}
		}
		if n := len(homeless.Record.Status.Conditions); n != len(want) {
			t.Errorf("without a home: got %d conditions, want %d", n, len(want))
		}
	}
	s.Record.Status = a.Status
	other := metav1.Condition{Type: v1alpha1.ConditionExclusive, Status: metav1.ConditionFalse, Reason: "Shared", Message: "pods a and b"}
	meta.SetStatusCondition(&s.Record.Status.Conditions, other)
	if got := meta.FindStatusCondition(reclaim.Decide(s).Status.Conditions, v1alpha1.ConditionExclusive); got.Reason != "Shared" {
		t.Errorf("condition Exclusive of another controller: got %+v, want it unchanged", got)
	}
}

// asSlot returns the state s as the state of a slot with the given holder.
func asSlot(s reclaim.State, holder string) reclaim.State {
	s.Slot, s.Holder = true, holder
	return s
}

// TestReady checks the condition Ready: it has the reason and message of the condition that shows a problem, if there is one.
// Ready itself shows that the FixedIP is being deleted or has no address, or that the entries on the pod's node are wrong.
func TestReady(t *testing.T) {
	mine := []ledger.NodeAddresses{held("node-1", "10.0.1.6")}
	with := func(conditions ...metav1.Condition) *v1alpha1.FixedIP {
		return record(func(r *v1alpha1.FixedIP) { r.Generation, r.Status.Conditions = 3, conditions })
	}
	bad := func(kind string, status metav1.ConditionStatus) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: "Problem", Message: "what is wrong"}
	}
	noSubnet := metav1.Condition{Type: v1alpha1.ConditionAllocated, Status: metav1.ConditionFalse, Reason: string(pool.SubnetNotFound), Message: "no node has the subnet"}
	// about returns a FixedIP whose condition AsReserved is False because of the pod with the UID.
	about := func(pod types.UID) *v1alpha1.FixedIP {
		r := with(bad(v1alpha1.ConditionAsReserved, metav1.ConditionFalse))
		r.Status.MismatchPodUID = pod
		return r
	}
	for name, c := range map[string]struct {
		record *v1alpha1.FixedIP
		// held is State.Held; nil: 10.0.1.6 on node-1.
		held            []ledger.NodeAddresses
		status          metav1.ConditionStatus
		reason, message string
	}{
		"no condition shows a problem":                     {with(), nil, metav1.ConditionTrue, "InUse", "A pod uses the addresses, and no problem is known"},
		"Exclusive is True":                                {with(bad(v1alpha1.ConditionExclusive, metav1.ConditionTrue)), nil, metav1.ConditionTrue, "InUse", "A pod uses the addresses, and no problem is known"},
		"Exclusive is False":                               {with(bad(v1alpha1.ConditionExclusive, metav1.ConditionFalse)), nil, metav1.ConditionFalse, "Problem", "what is wrong"},
		"AsReserved is False":                              {about(podOn("node-1").UID), nil, metav1.ConditionFalse, "Problem", "what is wrong"},
		"AsReserved is False because of an earlier pod":    {about("earlier"), nil, metav1.ConditionTrue, "InUse", "A pod uses the addresses, and no problem is known"},
		"SubnetAvailable is False":                         {with(bad(v1alpha1.ConditionSubnetAvailable, metav1.ConditionFalse)), nil, metav1.ConditionFalse, "Problem", "what is wrong"},
		"Allocated is False":                               {with(bad(v1alpha1.ConditionAllocated, metav1.ConditionFalse)), nil, metav1.ConditionFalse, "Problem", "what is wrong"},
		"SubnetAvailable and Allocated are False":          {with(noSubnet, bad(v1alpha1.ConditionSubnetAvailable, metav1.ConditionFalse)), nil, metav1.ConditionFalse, "Problem", "what is wrong"},
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
