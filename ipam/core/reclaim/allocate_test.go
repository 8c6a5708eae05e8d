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
	"fixedip.io/fixedip/test/gen"
)

// homes returns node-1 as the home of 10.0.1.6, changed by change.
func homes(change ...func(*reclaim.AddressHome)) []reclaim.AddressHome {
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

// blocked sets the reason for which the pool of the home node allows no entry.
func blocked(reason pool.Reason) func(*reclaim.AddressHome) {
	return func(p *reclaim.AddressHome) {
		p.Blocker = &pool.Blocker{Addr: p.Addr, Node: p.Node, Reason: reason, Requester: "db/mysql-0"}
	}
}

// running returns a pod on node-1 in the phase Running, with the IPs if any are given.
func running(ips ...string) *corev1.Pod {
	return gen.Pod("mysql-0", gen.On("node-1", ips...), gen.Running)
}

// optedOut annotates the pod as one without a fixed address and returns it.
func optedOut(p *corev1.Pod) *corev1.Pod {
	p.Annotations = map[string]string{identity.AnnotationEnabled: "false"}
	return p
}

// TestMissingEntries checks the result of Decide for FixedIPs, most of which have recorded addresses without entries: Allocate
// or Withdraw, the condition with the reason why neither is possible, or an action that comes first.
func TestMissingEntries(t *testing.T) {
	project := reclaim.Action{Type: reclaim.Allocate, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6")}}
	withdraw := project
	withdraw.Type = reclaim.Withdraw
	waiting := func(reason, message string) reclaim.Action {
		return reclaim.Action{
			Type: reclaim.UpdateStatus,
			Status: v1alpha1.FixedIPStatus{Conditions: []metav1.Condition{{
				Type: "Allocated", Status: metav1.ConditionFalse, Reason: reason, Message: message, LastTransitionTime: metav1.Time{Time: now},
			}}},
			At: now.Add(10 * time.Second),
		}
	}
	// runs returns the result of waiting, changed for a FixedIP whose pod runs on the node.
	runs := func(reason, message string) reclaim.Action {
		n := waiting(reason, message)
		n.Status.PodUID = "uid-mysql-0"
		return n
	}
	unconfirmed := runs("NotAcknowledged", "The Cilium agent of node node-1 has not confirmed yet that no other pod has IP 10.0.1.6; no pool entry is written before the confirmation")
	unconfirmed.At = time.Time{}
	allocated := []metav1.Condition{{Type: "Allocated", Status: metav1.ConditionTrue, Reason: "Allocated", Message: "Every address has its entry in the pool of a node", LastTransitionTime: metav1.Time{Time: now}}}
	without := reservedRecord(spec.Reclaim)
	both := reservedRecord(spec.Reclaim)
	both.Spec.IPs = append(both.Spec.IPs, "fd00::6")
	dual := func(home string) []reclaim.AddressHome {
		return append(homes(), reclaim.AddressHome{Addr: addr("fd00::6"), Node: home})
	}
	restored := record(func(r *v1alpha1.FixedIP) {
		r.Status, r.Annotations = v1alpha1.FixedIPStatus{}, map[string]string{v1alpha1.AnnotationUID: "uid-before-restore"}
	})
	orphaned := spec.DeepCopy()
	orphaned.Owner.UID = ""
	for name, c := range map[string]struct {
		state reclaim.State
		want  reclaim.Action
	}{
		"no pod exists":        {reclaim.State{Record: without, Homes: homes(), Workload: existing}, project},
		"the pod is not bound": {reclaim.State{Record: without, Homes: homes(), Pod: podOn(""), Workload: existing}, project},
		"the pod runs with the address, the entry is missing":     {reclaim.State{Record: record(), Homes: homes(), Pod: running("10.0.1.6"), Workload: existing}, project},
		"the pod runs on another node":                            {reclaim.State{Record: record(), Homes: homes(), Pod: podOn("node-2", "10.0.2.9"), Workload: existing}, project},
		"workload deleted, the TTL is not over":                   {reclaim.State{Record: reservedRecord(policy("Delete", "Retain", time.Hour)), Homes: homes(), Workload: gone}, project},
		"workload deleted, no TTL":                                {reclaim.State{Record: reservedRecord(policy("Delete", "Retain", 0)), Homes: homes(), Workload: gone}, reclaim.Action{Type: reclaim.DeleteRecord}},
		"the FixedIP is being deleted":                            {reclaim.State{Record: record(deleting), Workload: existing}, reclaim.Action{Type: reclaim.FinishRecord}},
		"the entry became dynamic, the pod runs with the address": {reclaim.State{Record: record(), Homes: homes(entry(pool.Entry{}), reported), Pod: running("10.0.1.6"), Workload: existing}, withdraw},
		"the home has the entry, the ledger does not show it yet": {reclaim.State{Record: without, Homes: homes(entry(pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"))), Workload: existing}, project},
		"both families need entries on one node":                  {reclaim.State{Record: both, Homes: dual("node-1"), Workload: existing}, reclaim.Action{Type: reclaim.Allocate, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6"), addr("fd00::6")}}},
		"one family has its entry":                                {reclaim.State{Record: both, Homes: dual("node-1"), Held: []ledger.NodeAddresses{held("node-1", "fd00::6")}, Workload: existing}, project},
		"the entry exists, the condition is missing":              {reclaim.State{Record: without, Homes: homes(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Workload: existing}, reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Conditions: allocated}}},

		"restored, the workload does not exist": {reclaim.State{Record: restored, Homes: homes(), Workload: gone}, reclaim.Action{Type: reclaim.UpdateRecord, Spec: *orphaned}},
		"restored, the owner has no UID": {reclaim.State{Record: record(func(r *v1alpha1.FixedIP) { r.Spec, r.Status = *orphaned, v1alpha1.FixedIPStatus{} }), Homes: homes(), Workload: reclaim.Workload{OwnerReference: mysqlWithoutUID}},
			project},
		"restored, spec.nodeName is set from the entry": {reclaim.State{Record: record(func(r *v1alpha1.FixedIP) { r.Spec, r.Spec.NodeName, r.Status = *orphaned, "", v1alpha1.FixedIPStatus{} }), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Homes: homes(), Workload: reclaim.Workload{OwnerReference: mysqlWithoutUID}},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: *orphaned}},

		"no node has the subnet": {reclaim.State{Record: without, Homes: homes(func(p *reclaim.AddressHome) { p.Node = "" }), Workload: existing},
			waiting("SubnetNotFound", "IP 10.0.1.6 is in no node's subnet, or the subnets of its node overlap those of another node; it becomes available when a node has subnets that contain it and do not overlap those of other nodes")},
		"the entry is dynamic": {reclaim.State{Record: without, Homes: homes(entry(pool.Entry{})), Workload: existing},
			waiting("DynamicEntry", "IP 10.0.1.6 has a dynamic entry in the pool of node node-1, so that any pod may be using it; the controller removes that entry when a FixedIP reserves the IP and no pod uses it; otherwise request an address nearer to the top of the node's subnet")},
		"the entry belongs to another pod": {reclaim.State{Record: without, Homes: homes(entry(pool.ForOwner("db/other-0"))), Workload: existing},
			waiting("OwnedByPod", "IP 10.0.1.6 on node node-1 belongs to pod db/other-0; request another address; this one becomes available when it has been released and its cooldown has ended")},
		"the entry belongs to the router": {reclaim.State{Record: without, Homes: homes(entry(pool.ForOwner("router"))), Workload: existing},
			waiting("ReservedByNode", `IP 10.0.1.6 on node node-1 is reserved for the node itself (router); request another address`)},
		"another pod uses the address": {reclaim.State{Record: without, Homes: homes(func(p *reclaim.AddressHome) { p.User = "db/other-0" }), Workload: existing},
			waiting("InUseByPod", "IP 10.0.1.6 on node node-1 is still in use by pod db/other-0; it becomes available when no pod has it and the Cilium agent no longer reports it as used")},
		"the agent of the home node has not reported": {reclaim.State{Record: without, Homes: homes(blocked(pool.NotReported)), Workload: existing},
			waiting("NotReported", "IP 10.0.1.6 on node node-1 may be in use: the Cilium agent has not reported yet which addresses its pods use; it becomes available when the agent has reported and no pod uses it; check the cilium pod of the node")},
		"the agent withholds the address": {reclaim.State{Record: without, Homes: homes(blocked(pool.Releasing)), Workload: existing},
			waiting("Releasing", "IP 10.0.1.6 on node node-1 is withheld by the Cilium agent, because a release handshake has not ended; it becomes available when the handshake has ended; if that takes minutes, check the cilium pod of the node")},
		"no pod can have the address": {reclaim.State{Record: without, Homes: homes(blocked(pool.SubnetEdge)), Workload: existing},
			waiting("SubnetEdge", "IP 10.0.1.6 is the first or last address of a subnet of node node-1, which no pod can have; request another address")},
		"another FixedIP takes precedence": {reclaim.State{Record: without, Homes: homes(func(p *reclaim.AddressHome) { p.ConflictingFixedIP = "db/older" }), Workload: existing},
			waiting("ReservedByOtherFixedIP", "IP 10.0.1.6 is reserved by FixedIP db/older; request another address, or have that FixedIP deleted if its addresses are no longer needed")},
		"cooldown, no pod exists": {reclaim.State{Record: without, Homes: homes(entry(pool.CooldownEntry("", now))), Workload: existing},
			waiting("CoolingDown", "IP 10.0.1.6 on node node-1 has been cooling down since 1970-01-01T00:16:40Z; it becomes available when the cooldown is over and the Cilium agent has confirmed that no pod uses it")},
		"cooldown, the pod is not bound": {reclaim.State{Record: without, Homes: homes(entry(pool.CooldownEntry("", now))), Pod: podOn(""), Workload: existing},
			waiting("CoolingDown", "IP 10.0.1.6 on node node-1 has been cooling down since 1970-01-01T00:16:40Z; it becomes available when the cooldown is over and the Cilium agent has confirmed that no pod uses it")},
		"cooldown, the pod runs with the address": {reclaim.State{Record: without, Homes: homes(entry(pool.CooldownEntry("", now))), Pod: running("10.0.1.6"), Workload: existing},
			unconfirmed},
		"cooldown, the agent reports the address for another pod": {reclaim.State{Record: without, Homes: homes(entry(pool.CooldownEntry("", now)), func(p *reclaim.AddressHome) { p.User = "db/other-0" }), Pod: running("10.0.1.6"), Workload: existing},
			runs("InUseByPod", "IP 10.0.1.6 on node node-1 is still in use by pod db/other-0; it becomes available when no pod has it and the Cilium agent no longer reports it as used")},
		"cooldown, the pod runs with the address and has another entry": {reclaim.State{Record: without, Homes: homes(entry(pool.CooldownEntry("", now))), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.7")}, Pod: running("10.0.1.6"), Workload: existing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.7")}, At: now.Add(10 * time.Second)}},
		"the address is moving to another node": {reclaim.State{Record: without, Homes: homes(entry(pool.MovedEntry("node-2", "db/mysql-0"))), Workload: existing},
			reclaim.Action{At: now.Add(10 * time.Second)}},
		"the address moved to another node with another pod": {reclaim.State{Record: without, Homes: homes(entry(pool.MovedEntry("node-2", "db/other-0"))), Workload: existing},
			waiting("OnOtherNode", "IP 10.0.1.6 of node node-1 belongs to pod db/other-0 and has moved to another node, or is about to; request another address; this one becomes available when it has been released and its cooldown has ended")},
		"the bound pod has another entry on the home node": {reclaim.State{Record: without, Homes: homes(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.7")}, Pod: podOn("node-1", "10.0.1.7"), Workload: existing},
			reclaim.Action{Type: reclaim.UpdateStatus, At: now.Add(10 * time.Second), Status: v1alpha1.FixedIPStatus{PodUID: "uid-mysql-0", Conditions: []metav1.Condition{{
				Type: v1alpha1.ConditionAllocated, Status: metav1.ConditionFalse, Reason: "OtherAddressAllocated", LastTransitionTime: metav1.NewTime(now),
				Message: "the pool of node node-1 already has IP 10.0.1.7 for pod db/mysql-0, which can't have IP 10.0.1.6 there as well; the controller releases IP 10.0.1.7 when no pod needs it; delete the pod if it runs with IP 10.0.1.7"}}}}},
		"another entry on the home node, no pod exists": {reclaim.State{Record: without, Homes: homes(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.7")}, Workload: existing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.7")}}},
		"another entry on another node, no pod exists": {reclaim.State{Record: without, Homes: homes(), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.7")}, Workload: existing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.2.7")}}},
		"another entry on the home node, the pod is not bound": {reclaim.State{Record: record(), Homes: homes(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.7")}, Pod: podOn(""), Workload: existing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.7")}}},
		"another entry on another node, the pod is not bound": {reclaim.State{Record: record(), Homes: homes(), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.7")}, Pod: podOn(""), Workload: existing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.2.7")}}},
		"another entry in addition to the recorded one, the pod is not bound": {reclaim.State{Record: record(), Homes: homes(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6", "10.0.1.7")}, Pod: podOn(""), Workload: existing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.7")}}},
		"another entry on another node, the pod is not bound and has the recorded one": {reclaim.State{Record: without, Homes: homes(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6"), held("node-2", "10.0.2.7")}, Pod: podOn(""), Workload: existing},
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Conditions: allocated}}},
		// The model found this case with the seed 1694920231: the volume of the pod was in the zone of node-2, so that the
		// pod was never bound, and the other entry stayed forever.
		"another entry on another node, no node can take the pod, which has the recorded one": {reclaim.State{Record: record(), Homes: homes(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6"), held("node-2", "10.0.2.7")}, Pod: unschedulable(podOn("")), Workload: existing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.2.7")}}},
		"another entry on another node, the recorded address is moving": {reclaim.State{Record: without, Homes: homes(entry(pool.MovedEntry("node-3", "db/mysql-0"))), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.7")}, Moved: movedTo("node-3"), Pod: podOn(""), Workload: existing},
			reclaim.Action{At: now.Add(10 * time.Second)}},
		"another entry on another node, the policy is Reassign":    {reclaim.State{Record: record(reassigns), Homes: homes(), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.7")}, Pod: podOn(""), Workload: existing}, project},
		"another entry on another node, to which the pod is bound": {reclaim.State{Record: record(), Homes: homes(), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.7")}, Pod: podOn("node-2"), Workload: existing}, project},
		"another entry on another node, the pod opts out": {reclaim.State{Record: without, Homes: homes(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6"), held("node-2", "10.0.2.7")}, Pod: optedOut(podOn("")), Workload: existing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.2.7")}}},
		"the families have different home nodes": {reclaim.State{Record: both, Homes: dual("node-2"), Workload: existing},
			waiting("AddressesOnDifferentNodes", "IP fd00::6 is in a subnet of node node-2, and another address of the same FixedIP is in a subnet of node node-1: no pod can have both; delete the FixedIP and request addresses of one node")},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, decide(at(c.state)), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("Decide (-want +got): %s", diff)
			}
		})
	}
}

// TestConditionIsWrittenOnce checks that an unchanged condition is not written again, and that the conditions of other
// controllers are not changed.
func TestConditionIsWrittenOnce(t *testing.T) {
	s := reclaim.State{Record: reservedRecord(spec.Reclaim), Homes: homes(entry(pool.Entry{})), Workload: existing}
	s.Record.Status.Conditions = []metav1.Condition{{Type: "AsReserved", Status: metav1.ConditionFalse, Reason: "Other"}}
	next := decide(at(s))
	if next.Type != reclaim.UpdateStatus || len(next.Status.Conditions) != 2 || next.Status.Conditions[0] != s.Record.Status.Conditions[0] {
		t.Fatalf("Decide returns %+v; want a status with the unchanged condition AsReserved and one more condition", next)
	}
	s.Record.Status = next.Status
	s.Now = now.Add(time.Hour)
	if again := decide(s); again.Type != reclaim.Nothing || !again.At.Equal(now.Add(time.Hour+10*time.Second)) {
		t.Errorf("an hour later, Decide returns %+v; want no action and a recheck after 10s", again)
	}
}

// TestMovableForWhileAway checks that status.movableFor keeps the pod that was allowed to move the addresses, or else names
// the last pod that used them, as long as the addresses may be away from home. The pools of both nodes may be lost, and a pod
// that was deleted by force may still run. If the addresses are at home, status.movableFor keeps only a pod that exists. The
// model in test/sim found the cases with seeds 217105 and 1338973065 (ADR 0029).
func TestMovableForWhileAway(t *testing.T) {
	allowed := v1alpha1.FixedIPStatus{MovableFor: "pod-0"}
	used := v1alpha1.FixedIPStatus{PodUID: "pod-0"}
	for name, c := range map[string]struct {
		home   string
		pod    *corev1.Pod
		status v1alpha1.FixedIPStatus
		want   types.UID
	}{
		"no node has the subnet":                               {"", nil, allowed, "pod-0"},
		"no node has the subnet, the next pod waits":           {"", podOn(""), allowed, "pod-0"},
		"the home is another node":                             {"node-2", nil, allowed, "pod-0"},
		"the address is at home":                               {"node-1", nil, allowed, ""},
		"the address is at home, the next pod waits":           {"node-1", podOn(""), allowed, ""},
		"the address is at home, the pod may move":             {"node-1", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "mysql-0", UID: "pod-0"}}, allowed, "pod-0"},
		"no node has the subnet, a pod has used it":            {"", nil, used, "pod-0"},
		"the home is another node, a pod has used it":          {"node-2", nil, used, "pod-0"},
		"the home is another node, the next pod waits":         {"node-2", podOn(""), used, "pod-0"},
		"the home is another node, two pods have used it":      {"node-2", nil, v1alpha1.FixedIPStatus{PodUID: "pod-1", MovableFor: "pod-0"}, "pod-0"},
		"the address is at home, a pod has used it":            {"node-1", nil, used, ""},
		"the home is another node, and no pod has used it yet": {"node-2", nil, v1alpha1.FixedIPStatus{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := record(migrates, reserved)
			r.Status = c.status
			s := reclaim.State{Record: r, Pod: c.pod, Homes: []reclaim.AddressHome{{Addr: addr("10.0.1.6"), Node: c.home}}, Workload: existing}
			if c.home != "" {
				s.Held = []ledger.NodeAddresses{held("node-1", "10.0.1.6")}
			}
			if next := decide(at(s)); next.Type != reclaim.UpdateStatus || next.Status.MovableFor != c.want || next.Status.PodUID != "" {
				t.Errorf("Decide returns %+v; want UpdateStatus with movableFor %q and no podUID", next, c.want)
			}
		})
	}
}

// TestWithdrawn checks that an address in its cooldown that the pod runs with gets its entry (Own) after the status was
// updated: actions that need evidence from an agent come after all writes.
func TestWithdrawn(t *testing.T) {
	s := reclaim.State{Record: record(), Homes: homes(entry(pool.CooldownEntry("", now))), Pod: running("10.0.1.6"), Workload: existing}
	for _, want := range []reclaim.ActionType{reclaim.UpdateStatus, reclaim.Own} {
		next := decide(at(s))
		if next.Type != want {
			t.Fatalf("Decide returns %+v, want %s", next, want)
		}
		if next.Type == reclaim.UpdateStatus {
			s.Record.Status = next.Status
		} else if !slices.Equal(next.Addrs, []netip.Addr{addr("10.0.1.6")}) || next.Node != "node-1" {
			t.Errorf("Decide returns %+v, want Own for 10.0.1.6 on node-1", next)
		}
	}
}

// TestEntryEdits checks for which addresses AllocateEntries and WithdrawEntries return edits, and for which ErrTaken.
func TestEntryEdits(t *testing.T) {
	mine := pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")
	n := node(map[string]pool.Entry{
		"10.0.1.1": {}, "10.0.1.2": {}, "10.0.1.7": {}, "10.0.1.3": pool.ForOwner("db/other-0"), "10.0.1.4": pool.CooldownEntry("", now), "10.0.1.5": mine,
	}, "10.0.1.2", "10.0.1.6")
	// none is a pool without an entry of the pod.
	none := node(map[string]pool.Entry{"10.0.1.4": pool.CooldownEntry("", now), "10.0.1.8": pool.CooldownEntry("", now)}, "10.0.1.8")
	n.Used[addr("10.0.1.6")], n.Used[addr("10.0.1.1")] = "db/other-1", mine.Owner()
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
			t.Errorf("AllocateEntries(%s): edits of %v, error %v; want %d edits, ErrTaken: %v", a, edited(edits), err, c.edits, c.taken)
		}
	}
	// The agent does not report 10.0.1.7 as used by the pod: the status of the pod may date from before a reboot. The entry
	// of 10.0.1.5 is not dynamic.
	for a, want := range map[string]int{"10.0.1.1": 1, "10.0.1.2": 0, "10.0.1.7": 0, "10.0.1.5": 0, "10.0.1.9": 0} {
		edits, err := reclaim.WithdrawEntries(n, []netip.Addr{addr(a)}, mine.Owner(), now)
		if len(edits) != want || errors.Is(err, pool.ErrTaken) != (want == 0) || want == 1 && *edits[0].To != pool.CooldownEntry("", now) {
			t.Errorf("WithdrawEntries(%s): edits of %v, error %v; want %d edits (0 with ErrTaken)", a, edited(edits), err, want)
		}
	}
	// The agent reports 10.0.1.8 as used, but not by the pod.
	for a, want := range map[string]int{"10.0.1.4": 1, "10.0.1.8": 0} {
		edits, err := reclaim.AllocateEntries(none, []netip.Addr{addr(a)}, mine, func(netip.Addr) bool { return true })
		if len(edits) != want || errors.Is(err, pool.ErrTaken) != (want == 0) {
			t.Errorf("AllocateEntries(%s) in cooldown, the pod runs with it: edits of %v, error %v; want %d edits (0 with ErrTaken)", a, edited(edits), err, want)
		}
		if _, err := reclaim.AllocateEntries(none, []netip.Addr{addr(a)}, mine, func(netip.Addr) bool { return false }); !errors.Is(err, pool.ErrTaken) {
			t.Errorf("AllocateEntries(%s) in cooldown, the pod does not run with it: error %v, want ErrTaken", a, err)
		}
	}
	if edits, err := reclaim.AllocateEntries(n, []netip.Addr{addr("10.0.1.4")}, mine, func(netip.Addr) bool { return true }); !errors.Is(err, pool.ErrTaken) {
		t.Errorf("AllocateEntries in cooldown, the pod has another entry: edits of %v, error %v; want ErrTaken", edited(edits), err)
	}
	if edits, err := reclaim.AllocateEntries(n, []netip.Addr{addr("10.0.1.1")}, mine, func(netip.Addr) bool { return false }); !errors.Is(err, pool.ErrTaken) {
		t.Errorf("AllocateEntries of a dynamic entry: edits of %v, error %v; want ErrTaken", edited(edits), err)
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
		"the older one takes precedence": {at("b", 1), at("a", 2), none, true},
		"the younger one does not":       {at("b", 2), at("a", 1), none, false},
		"same age: the first by name":    {at("a", 1), at("b", 1), none, true},
		"the one with the entry":         {at("b", 2), at("a", 1), func(f *v1alpha1.FixedIP) bool { return f.Name == "b" }, true},
	} {
		if got := reclaim.Precedes(c.a, c.b, c.holds); got != c.want {
			t.Errorf("%s: Precedes returns %v, want %v", name, got, c.want)
		}
	}
}
