// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
)

// place returns the home of 10.0.1.6 on node-1, changed by change.
func place(change ...func(*reclaim.AddressHome)) []reclaim.AddressHome {
	p := reclaim.AddressHome{Addr: addr("10.0.1.6"), Node: "node-1"}
	for _, c := range change {
		c(&p)
	}
	return []reclaim.AddressHome{p}
}

func entry(e pool.Entry) func(*reclaim.AddressHome) {
	return func(p *reclaim.AddressHome) { p.Entry = &e }
}

func reported(p *reclaim.AddressHome) { p.Reported = true }

// running returns a pod on node-1 in the phase Running, with the IPs if any are given.
func running(ips ...string) *corev1.Pod {
	p := podOn("node-1", ips...)
	p.Status.Phase = corev1.PodRunning
	return p
}

// optedOut annotates the pod as one without a fixed address and returns it.
func optedOut(p *corev1.Pod) *corev1.Pod {
	p.Annotations = map[string]string{identity.AnnotationEnabled: "false"}
	return p
}

// TestProjection checks what Decide returns for a FixedIP with recorded addresses that have no entries: Allocate or
// Withdraw, or the condition with the reason why neither is possible.
func TestProjection(t *testing.T) {
	project := reclaim.Action{Type: reclaim.Allocate, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6")}}
	withdraw := project
	withdraw.Type = reclaim.Withdraw
	waiting := func(reason, message string) reclaim.Action {
		return reclaim.Action{
			Type: reclaim.UpdateStatus,
			Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved, Conditions: []metav1.Condition{{
				Type: "Allocated", Status: metav1.ConditionFalse, Reason: reason, Message: message, LastTransitionTime: metav1.Time{Time: now},
			}}},
			At: now.Add(10 * time.Second),
		}
	}
	// runs returns the action of waiting for a FixedIP whose pod runs on the node.
	runs := func(reason, message string) reclaim.Action {
		n := waiting(reason, message)
		n.Status.Phase, n.Status.PodUID = v1alpha1.PhaseInUse, "pod-1"
		return n
	}
	unconfirmed := runs("NotAcknowledged", "The Cilium agent has not confirmed yet that no other pod has 10.0.1.6; the entries are written after that")
	unconfirmed.At = time.Time{}
	stands := []metav1.Condition{{Type: "Allocated", Status: metav1.ConditionTrue, Reason: "Allocated", Message: "Every address has its entry in the pool of a node", LastTransitionTime: metav1.Time{Time: now}}}
	without := kept(spec.Reclaim)
	both := kept(spec.Reclaim)
	both.Spec.IPs = append(both.Spec.IPs, "fd00::6")
	dual := func(home string) []reclaim.AddressHome {
		return append(place(), reclaim.AddressHome{Addr: addr("fd00::6"), Node: home})
	}
	restored := record(func(r *v1alpha1.FixedIP) {
		r.Status, r.Annotations = v1alpha1.FixedIPStatus{}, map[string]string{v1alpha1.AnnotationUID: "of-another-life"}
	})
	orphaned := spec.DeepCopy()
	orphaned.Owner.UID = ""
	for name, c := range map[string]struct {
		situation reclaim.State
		want      reclaim.Action
	}{
		"no pod has it":                                     {reclaim.State{Record: without, Homes: place(), Workload: standing}, project},
		"the pod waits":                                     {reclaim.State{Record: without, Homes: place(), Pod: podOn(""), Workload: standing}, project},
		"the pod runs, its entry went":                      {reclaim.State{Record: record(), Homes: place(), Pod: running("10.0.1.6"), Workload: standing}, project},
		"the pod runs elsewhere":                            {reclaim.State{Record: record(), Homes: place(), Pod: podOn("node-2", "10.0.2.9"), Workload: standing}, project},
		"its time to live passes":                           {reclaim.State{Record: kept(policy("Delete", "Retain", time.Hour)), Homes: place(), Workload: gone}, project},
		"its workload is gone":                              {reclaim.State{Record: kept(policy("Delete", "Retain", 0)), Homes: place(), Workload: gone}, reclaim.Action{Type: reclaim.DeleteRecord}},
		"it is being deleted":                               {reclaim.State{Record: record(deleting), Workload: standing}, reclaim.Action{Type: reclaim.FinishRecord}},
		"its owner was cleared":                             {reclaim.State{Record: record(), Homes: place(entry(pool.Entry{}), reported), Pod: running("10.0.1.6"), Workload: standing}, withdraw},
		"an entry for it is on its way":                     {reclaim.State{Record: without, Homes: place(entry(pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"))), Workload: standing}, project},
		"both families on one node":                         {reclaim.State{Record: both, Homes: dual("node-1"), Workload: standing}, reclaim.Action{Type: reclaim.Allocate, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6"), addr("fd00::6")}}},
		"one family stands":                                 {reclaim.State{Record: both, Homes: dual("node-1"), Held: []ledger.NodeAddresses{held("node-1", "fd00::6")}, Workload: standing}, project},
		"the entries exist, and the status does not say so": {reclaim.State{Record: without, Homes: place(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Workload: standing}, reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved, Conditions: stands}}},

		"restored before its workload": {reclaim.State{Record: restored, Homes: place(), Workload: gone}, reclaim.Action{Type: reclaim.UpdateRecord, Spec: *orphaned}},
		"then it stands by itself": {reclaim.State{Record: record(func(r *v1alpha1.FixedIP) { r.Spec, r.Status = *orphaned, v1alpha1.FixedIPStatus{} }), Homes: place(), Workload: reclaim.Workload{OwnerReference: unborn}},
			project},
		"the node of the spec is that of the entries": {reclaim.State{Record: record(func(r *v1alpha1.FixedIP) { r.Spec, r.Spec.NodeName, r.Status = *orphaned, "", v1alpha1.FixedIPStatus{} }), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Homes: place(), Workload: reclaim.Workload{OwnerReference: unborn}},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: *orphaned}},

		"its home is not there": {reclaim.State{Record: without, Homes: place(func(p *reclaim.AddressHome) { p.Node = "" }), Workload: standing},
			waiting("SubnetNotFound", "IP 10.0.1.6 is in no node's subnet; it becomes available when a node gets that subnet")},
		"a dynamic entry": {reclaim.State{Record: without, Homes: place(entry(pool.Entry{})), Workload: standing},
			waiting("DynamicEntry", "IP 10.0.1.6 on node node-1 is a dynamic entry, which any pod may be using; request an address nearer to the top of the node's subnet, or wait until the pool no longer has this one")},
		"another pod's entry": {reclaim.State{Record: without, Homes: place(entry(pool.ForOwner("db/other-0"))), Workload: standing},
			waiting("OwnedByPod", "IP 10.0.1.6 on node node-1 belongs to pod db/other-0; request another address, or release this one")},
		"the router's": {reclaim.State{Record: without, Homes: place(entry(pool.ForOwner("router"))), Workload: standing},
			waiting("ReservedByNode", `IP 10.0.1.6 on node node-1 is reserved for "router"; request another address`)},
		"used by another pod": {reclaim.State{Record: without, Homes: place(func(p *reclaim.AddressHome) { p.User = "db/other-0" }), Workload: standing},
			waiting("InUseByPod", "IP 10.0.1.6 on node node-1 is still in use by pod db/other-0; it becomes available when that pod is gone and the agent no longer reports it")},
		"named by a record that comes first": {reclaim.State{Record: without, Homes: place(func(p *reclaim.AddressHome) { p.ConflictingFixedIP = "db/older" }), Workload: standing},
			waiting("ReservedByOtherFixedIP", "IP 10.0.1.6 is reserved by FixedIP db/older; request another address, or have that FixedIP deleted")},
		"it rests": {reclaim.State{Record: without, Homes: place(entry(pool.CooldownEntry("", now))), Workload: standing},
			waiting("CoolingDown", "IP 10.0.1.6 on node node-1 is cooling down after its release at 1970-01-01T00:16:40Z; it becomes available after the cooldown")},
		"it rests, and its pod waits": {reclaim.State{Record: without, Homes: place(entry(pool.CooldownEntry("", now))), Pod: podOn(""), Workload: standing},
			waiting("CoolingDown", "IP 10.0.1.6 on node node-1 is cooling down after its release at 1970-01-01T00:16:40Z; it becomes available after the cooldown")},
		"it rests, and its pod runs with it": {reclaim.State{Record: without, Homes: place(entry(pool.CooldownEntry("", now))), Pod: running("10.0.1.6"), Workload: standing},
			unconfirmed},
		"it rests, and its pod runs with it, by another name's word": {reclaim.State{Record: without, Homes: place(entry(pool.CooldownEntry("", now)), func(p *reclaim.AddressHome) { p.User = "db/other-0" }), Pod: running("10.0.1.6"), Workload: standing},
			runs("InUseByPod", "IP 10.0.1.6 on node node-1 is still in use by pod db/other-0; it becomes available when that pod is gone and the agent no longer reports it")},
		"it rests, and its pod that runs with it has another there": {reclaim.State{Record: without, Homes: place(entry(pool.CooldownEntry("", now))), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.7")}, Pod: running("10.0.1.6"), Workload: standing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.7")}, At: now.Add(10 * time.Second)}},
		"it is on its way to another node": {reclaim.State{Record: without, Homes: place(entry(pool.MovedEntry("node-2", "db/mysql-0"))), Workload: standing},
			reclaim.Action{At: now.Add(10 * time.Second)}},
		"another pod took it along": {reclaim.State{Record: without, Homes: place(entry(pool.MovedEntry("node-2", "db/other-0"))), Workload: standing},
			waiting("OnOtherNode", "IP 10.0.1.6 on node node-1 belongs to pod db/other-0 and has moved to another node; request another address, or release this one")},
		"its pod has another on the node": {reclaim.State{Record: without, Homes: place(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.7")}, Pod: podOn("node-1", "10.0.1.7"), Workload: standing},
			reclaim.Action{Type: reclaim.UpdateStatus, At: now.Add(10 * time.Second), Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseInUse, PodUID: "pod-1", Conditions: []metav1.Condition{{
				Type: v1alpha1.ConditionAllocated, Status: metav1.ConditionFalse, Reason: "OtherAddressAllocated", LastTransitionTime: metav1.NewTime(now),
				Message: "pod db/mysql-0 already has IP 10.0.1.7 on node node-1, and can't have IP 10.0.1.6 there as well; delete the pod to release its other address"}}}}},
		"its pod had another on the node, and is gone": {reclaim.State{Record: without, Homes: place(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.7")}, Workload: standing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.7")}}},
		"its pod had another on another node, and is gone": {reclaim.State{Record: without, Homes: place(), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.7")}, Workload: standing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.2.7")}}},
		"what its pod has in its place goes while it waits": {reclaim.State{Record: record(), Homes: place(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.7")}, Pod: podOn(""), Workload: standing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.7")}}},
		"and so does what it has on another node": {reclaim.State{Record: record(), Homes: place(), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.7")}, Pod: podOn(""), Workload: standing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.2.7")}}},
		"and what it has beside it": {reclaim.State{Record: record(), Homes: place(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6", "10.0.1.7")}, Pod: podOn(""), Workload: standing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.7")}}},
		"but not where its scheduler brings it to the recorded one": {reclaim.State{Record: without, Homes: place(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6"), held("node-2", "10.0.2.7")}, Pod: podOn(""), Workload: standing},
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved, Conditions: stands}}},
		"nor where the recorded one is on its way": {reclaim.State{Record: without, Homes: place(entry(pool.MovedEntry("node-3", "db/mysql-0"))), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.7")}, Away: awayAt("node-3"), Pod: podOn(""), Workload: standing},
			reclaim.Action{At: now.Add(10 * time.Second)}},
		"nor where that may come in its place":   {reclaim.State{Record: record(reassigns), Homes: place(), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.7")}, Pod: podOn(""), Workload: standing}, project},
		"nor what a pod counts on that is bound": {reclaim.State{Record: record(), Homes: place(), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.7")}, Pod: podOn("node-2"), Workload: standing}, project},
		"a pod that opts out is to have none of it, though the recorded one is held": {reclaim.State{Record: without, Homes: place(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6"), held("node-2", "10.0.2.7")}, Pod: optedOut(podOn("")), Workload: standing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.2.7")}}},
		"the families have two homes": {reclaim.State{Record: both, Homes: dual("node-2"), Workload: standing},
			waiting("AddressesOnDifferentNodes", "IP fd00::6 is in a subnet of node node-2, and another address of the same FixedIP in one of node node-1: no pod can have both; delete the FixedIP and request addresses of one node")},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, decide(at(c.situation)), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got): %s", diff)
			}
		})
	}
}

// TestConditionsAreQuiet checks that a condition is written only once, and that the conditions of other controllers are not
// changed.
func TestConditionsAreQuiet(t *testing.T) {
	s := reclaim.State{Record: kept(spec.Reclaim), Homes: place(entry(pool.Entry{})), Workload: standing}
	s.Record.Status.Conditions = []metav1.Condition{{Type: "Mismatch", Status: metav1.ConditionTrue, Reason: "Other"}}
	next := decide(at(s))
	if next.Type != reclaim.UpdateStatus || len(next.Status.Conditions) != 2 || next.Status.Conditions[0] != s.Record.Status.Conditions[0] {
		t.Fatalf("%+v", next)
	}
	s.Record.Status = next.Status
	s.Now = now.Add(time.Hour)
	if again := decide(s); again.Type != reclaim.Nothing || !again.At.Equal(now.Add(time.Hour+10*time.Second)) {
		t.Errorf("an hour later: %+v", again)
	}
}

// TestMovableForStaysWhileAway checks that status.movableFor is kept until the addresses are at home again. The pools of
// both nodes may be lost, and the pod may be deleted by force and run on. Seed 217105 of the model.
func TestMovableForStaysWhileAway(t *testing.T) {
	for name, c := range map[string]struct {
		home string
		pod  *corev1.Pod
		want types.UID
	}{
		"its home has no node":                {"", nil, "pod-0"},
		"the next pod waits":                  {"", podOn(""), "pod-0"},
		"its home is another node":            {"node-2", nil, "pod-0"},
		"it is at home":                       {"node-1", nil, ""},
		"it is at home, and its pod waits":    {"node-1", podOn(""), ""},
		"it is at home, and the pod may move": {"node-1", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "mysql-0", UID: "pod-0"}}, "pod-0"},
	} {
		t.Run(name, func(t *testing.T) {
			r := record(migrates, reserved)
			r.Status.MovableFor = "pod-0"
			s := reclaim.State{Record: r, Pod: c.pod, Homes: []reclaim.AddressHome{{Addr: addr("10.0.1.6"), Node: c.home}}, Workload: standing}
			if c.home != "" {
				s.Held = []ledger.NodeAddresses{held("node-1", "10.0.1.6")}
			}
			if next := decide(at(s)); next.Type != reclaim.UpdateStatus || next.Status.MovableFor != c.want {
				t.Errorf("%+v, want the field to be %q", next, c.want)
			}
		})
	}
}

// TestWithdrawn checks that an address in its cooldown that the pod runs with gets its entry (Own) after the status was
// updated: questions to the agent come after all writes.
func TestWithdrawn(t *testing.T) {
	s := reclaim.State{Record: record(), Homes: place(entry(pool.CooldownEntry("", now))), Pod: running("10.0.1.6"), Workload: standing}
	for _, want := range []reclaim.ActionType{reclaim.UpdateStatus, reclaim.Own} {
		next := decide(at(s))
		if next.Type != want {
			t.Fatalf("%+v, want %s", next, want)
		}
		if next.Type == reclaim.UpdateStatus {
			s.Record.Status = next.Status
		} else if !slices.Equal(next.Addrs, []netip.Addr{addr("10.0.1.6")}) || next.Node != "node-1" {
			t.Errorf("%+v", next)
		}
	}
}

// TestProject checks for which addresses AllocateEntries and WithdrawEntries return edits, and for which ErrTaken.
func TestProject(t *testing.T) {
	mine := pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")
	n := node(map[string]pool.Entry{
		"10.0.1.1": {}, "10.0.1.2": {}, "10.0.1.7": {}, "10.0.1.3": pool.ForOwner("db/other-0"), "10.0.1.4": pool.CooldownEntry("", now), "10.0.1.5": mine,
	}, "10.0.1.2", "10.0.1.6")
	// none has no entry of the pod.
	none := node(map[string]pool.Entry{"10.0.1.4": pool.CooldownEntry("", now), "10.0.1.8": pool.CooldownEntry("", now)}, "10.0.1.8")
	n.Used[addr("10.0.1.6")], n.Used[addr("10.0.1.1")] = "db/other-1", mine.Owner
	for a, c := range map[string]struct {
		own   bool
		taken bool
		edits int
	}{
		"10.0.1.1":   {own: true, taken: true},
		"10.0.1.2":   {own: true, taken: true},
		"10.0.1.3":   {taken: true},
		"10.0.1.4":   {taken: true},
		"10.0.1.5":   {},
		"10.0.1.6":   {taken: true},
		"10.0.9.200": {taken: true},
	} {
		edits, err := reclaim.AllocateEntries(n, []netip.Addr{addr(a)}, mine, func(netip.Addr) bool { return c.own })
		if len(edits) != c.edits || errors.Is(err, pool.ErrTaken) != c.taken {
			t.Errorf("%s: %v, %v", a, edited(edits), err)
		}
	}
	// The agent does not report 10.0.1.7 as used by the pod, whose status may date from before a reboot. The entry of
	// 10.0.1.5 is not dynamic.
	for a, want := range map[string]int{"10.0.1.1": 1, "10.0.1.2": 0, "10.0.1.7": 0, "10.0.1.5": 0, "10.0.1.9": 0} {
		edits, err := reclaim.WithdrawEntries(n, []netip.Addr{addr(a)}, mine.Owner, now)
		if len(edits) != want || errors.Is(err, pool.ErrTaken) != (want == 0) || want == 1 && *edits[0].To != pool.CooldownEntry("", now) {
			t.Errorf("%s is withdrawn: %v, %v", a, edited(edits), err)
		}
	}
	// The agent reports 10.0.1.8 as used, but not by the pod.
	for a, want := range map[string]int{"10.0.1.4": 1, "10.0.1.8": 0} {
		edits, err := reclaim.AllocateEntries(none, []netip.Addr{addr(a)}, mine, func(netip.Addr) bool { return true })
		if len(edits) != want || errors.Is(err, pool.ErrTaken) != (want == 0) {
			t.Errorf("%s, which rests, and that the pod runs with: %v, %v", a, edited(edits), err)
		}
		if _, err := reclaim.AllocateEntries(none, []netip.Addr{addr(a)}, mine, func(netip.Addr) bool { return false }); !errors.Is(err, pool.ErrTaken) {
			t.Errorf("%s, which rests, and that the pod does not have: %v", a, err)
		}
	}
	if edits, err := reclaim.AllocateEntries(n, []netip.Addr{addr("10.0.1.4")}, mine, func(netip.Addr) bool { return true }); !errors.Is(err, pool.ErrTaken) {
		t.Errorf("one that rests beside another of the pod: %v, %v", edited(edits), err)
	}
	if edits, err := reclaim.AllocateEntries(n, []netip.Addr{addr("10.0.1.1")}, mine, func(netip.Addr) bool { return false }); !errors.Is(err, pool.ErrTaken) {
		t.Errorf("a dynamic entry that another pod may have: %v, %v", edited(edits), err)
	}
}

func TestPrecedes(t *testing.T) {
	at := func(name string, sec int64) *v1alpha1.FixedIP {
		return &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, CreationTimestamp: metav1.Unix(sec, 0)}}
	}
	none := func(*v1alpha1.FixedIP) bool { return false }
	for name, c := range map[string]struct {
		a, b  *v1alpha1.FixedIP
		holds func(*v1alpha1.FixedIP) bool
		want  bool
	}{
		"the older":                  {at("b", 1), at("a", 2), none, true},
		"not the younger":            {at("b", 2), at("a", 1), none, false},
		"the first of the alphabet":  {at("a", 1), at("b", 1), none, true},
		"the one whose entry stands": {at("b", 2), at("a", 1), func(f *v1alpha1.FixedIP) bool { return f.Name == "b" }, true},
	} {
		if got := reclaim.Precedes(c.a, c.b, c.holds); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
