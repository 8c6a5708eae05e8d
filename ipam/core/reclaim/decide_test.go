// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/reclaim"
)

func held(node string, addrs ...string) ledger.NodeAddresses {
	h := ledger.NodeAddresses{Node: node}
	for _, a := range addrs {
		h.Addrs = append(h.Addrs, addr(a))
	}
	return h
}

// podOn returns a pod that is bound to a node (empty: not bound) and has the IPs in its status.
func podOn(node string, ips ...string) *corev1.Pod {
	var status corev1.PodStatus
	for _, ip := range ips {
		status.PodIPs = append(status.PodIPs, corev1.PodIP{IP: ip})
	}
	return &corev1.Pod{Status: status, ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0", UID: "pod-1"}, Spec: corev1.PodSpec{NodeName: node}}
}

var (
	mysql    = v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql", UID: "sts-1"}
	standing = reclaim.Workload{OwnerReference: mysql, Exists: true}
	gone     = reclaim.Workload{OwnerReference: mysql}
	spec     = v1alpha1.FixedIPSpec{IPs: []string{"10.0.1.6"}, NodeName: "node-1", Owner: mysql, PodName: "mysql-0", Reclaim: identity.DefaultReclaim()}
	now      = time.Unix(1000, 0)
)

func record(change ...func(*v1alpha1.FixedIP)) *v1alpha1.FixedIP {
	r := &v1alpha1.FixedIP{
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0", Finalizers: []string{v1alpha1.Finalizer}},
		Spec:       *spec.DeepCopy(),
		Status:     v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseInUse, PodUID: "pod-1"},
	}
	for _, c := range change {
		c(r)
	}
	return r
}

// kept returns a FixedIP without a pod that has the reclaim policy p, and status.expiresAt if expires is given.
func kept(p v1alpha1.ReclaimPolicy, expires ...time.Time) *v1alpha1.FixedIP {
	return record(func(r *v1alpha1.FixedIP) {
		r.Spec.Reclaim = p
		r.Status = v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved}
		if len(expires) > 0 {
			r.Status.ExpiresAt = &metav1.Time{Time: expires[0]}
		}
	})
}

func policy(deleted, scaled v1alpha1.Retention, ttl time.Duration) v1alpha1.ReclaimPolicy {
	return v1alpha1.ReclaimPolicy{WhenDeleted: deleted, WhenScaled: scaled, TTL: metav1.Duration{Duration: ttl}}
}

// scaled returns a workload that has no replica for the pod.
func scaled(p *v1alpha1.ReclaimPolicy) reclaim.Workload {
	return reclaim.Workload{OwnerReference: mysql, Exists: true, Excludes: true, Reclaim: p}
}

// withFailover returns a workload with a failover policy.
func withFailover(f v1alpha1.Failover) reclaim.Workload {
	return reclaim.Workload{OwnerReference: mysql, Exists: true, Failover: &f}
}

// migrating returns the spec of a FixedIP with the failover policy Migrate and spec.nodeName node.
func migrating(node string) v1alpha1.FixedIPSpec {
	s := *spec.DeepCopy()
	s.Failover, s.NodeName = v1alpha1.Migrate, node
	return s
}

// awayAt returns the Moved entry of 10.0.1.6 at its home node-1 for an address that the pool of node carries.
func awayAt(node string) []ledger.RemoteAddresses {
	return []ledger.RemoteAddresses{{Home: "node-1", At: node, Addrs: []netip.Addr{addr("10.0.1.6")}, Generation: 7}}
}

// leavingFrom is awayAt for an address that is about to leave the node. barred is RemoteAddresses.Barred.
func leavingFrom(node string, barred bool) []ledger.RemoteAddresses {
	away := awayAt(node)
	away[0].Leaving, away[0].Barred = true, barred
	return away
}

// listed sets RemoteAddresses.Listed: the agent of the other node reports the address as used.
func listed(away []ledger.RemoteAddresses) []ledger.RemoteAddresses {
	away[0].Listed = true
	return away
}

func on(node string) func(*v1alpha1.FixedIP) {
	return func(r *v1alpha1.FixedIP) { r.Spec.NodeName = node }
}

func migrates(r *v1alpha1.FixedIP)  { r.Spec.Failover = v1alpha1.Migrate }
func reassigns(r *v1alpha1.FixedIP) { r.Spec.Failover = v1alpha1.Reassign }
func reserved(r *v1alpha1.FixedIP) {
	r.Status = v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved}
}

func deleting(r *v1alpha1.FixedIP)   { r.DeletionTimestamp = &metav1.Time{} }
func unfinished(r *v1alpha1.FixedIP) { r.Status = v1alpha1.FixedIPStatus{} }

// unborn is the owner in a FixedIP that a user creates before the workload exists: it has no UID.
var unborn = v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql"}

func beforehand(r *v1alpha1.FixedIP) {
	r.Finalizers, r.Spec.NodeName, r.Spec.Owner.UID = nil, "", ""
	r.Status = v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved}
}

func TestDecide(t *testing.T) {
	otherUID := spec.DeepCopy()
	otherUID.Owner.UID = "sts-2"
	both := spec.DeepCopy()
	both.IPs = []string{"10.0.1.6", "fd00::6"}
	onNode2 := spec.DeepCopy()
	onNode2.NodeName = "node-2"
	mine := []ledger.NodeAddresses{held("node-1", "10.0.1.6")}
	retainAll := policy("Retain", "Retain", time.Minute)
	retained := spec.DeepCopy()
	retained.Reclaim = retainAll
	for name, c := range map[string]struct {
		situation reclaim.State
		want      reclaim.Action
	}{
		"nothing is known of it": {reclaim.State{}, reclaim.Action{}},

		"a claim whose pod runs with it is recorded": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1", "10.0.1.6"), Workload: standing},
			reclaim.Action{Type: reclaim.CreateRecord, Spec: spec}},
		"a claim whose pod is bound and has no address yet waits": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: standing}, reclaim.Action{}},
		"a claim whose pod runs with another IP is recorded": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1", "10.0.1.2"), Workload: standing},
			reclaim.Action{Type: reclaim.CreateRecord, Spec: spec}},
		"a claim of what was asked for does not wait": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, RequestsIPs: true, Pod: podOn("node-1", "10.0.1.2"), Workload: standing},
			reclaim.Action{Type: reclaim.CreateRecord, Spec: spec}},
		"a claim whose pod runs with another IP in one family is recorded": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6", "fd00::6")}, Pod: podOn("node-1", "10.0.1.6", "fd00::2"), Workload: standing},
			reclaim.Action{Type: reclaim.CreateRecord, Spec: *both}},
		"a claim in a family that the node does not give is recorded all the same": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6", "fd00::6")}, Pod: podOn("node-1", "10.0.1.6"), Workload: standing},
			reclaim.Action{Type: reclaim.CreateRecord, Spec: *both}},
		"of two claims that of the bind is recorded": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6"), held("node-2", "10.0.2.6")}, Pod: podOn("node-1", "10.0.1.6"), Workload: standing},
			reclaim.Action{Type: reclaim.CreateRecord, Spec: spec}},
		"a claim whose pod is not bound yet waits": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn(""), Workload: standing}, reclaim.Action{}},
		"a claim whose pod was deleted before the bind waits for the next": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Workload: standing}, reclaim.Action{}},
		"a claim whose pod and workload are gone is released": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Workload: gone}, reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1"}},
		"a claim beyond the replicas is released where the policy says Delete": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Workload: scaled(ptr.To(policy(v1alpha1.Delete, v1alpha1.Delete, 0)))},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1"}},
		"a claim beyond the replicas waits for the next pod where it says Retain": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Workload: scaled(ptr.To(policy(v1alpha1.Delete, v1alpha1.Retain, 0)))}, reclaim.Action{}},
		"a claim beyond the replicas waits where the policy can't be read": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Workload: scaled(nil)}, reclaim.Action{}},
		"a claim beyond the replicas whose pod is there yet stays": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn(""), Workload: scaled(ptr.To(policy(v1alpha1.Delete, v1alpha1.Delete, 0)))}, reclaim.Action{}},
		"an entry that a person wrote beyond the replicas stays": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Guessed: true, Workload: scaled(ptr.To(policy(v1alpha1.Delete, v1alpha1.Delete, 0)))}, reclaim.Action{}},
		"the target of a move whose pod and claim are gone is released": {
			reclaim.State{Arriving: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Workload: standing}, reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"the target of a move that was prepared beside what a person wrote is released": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Arriving: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Guessed: true, Workload: gone}, reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"a claim whose workload is gone keeps its pod's address": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: gone}, reclaim.Action{}},
		"a pod that is bound elsewhere than its claim is not recorded": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-2", "10.0.2.6")}, Pod: podOn("node-1"), Workload: standing}, reclaim.Action{}},

		"of two addresses on one node that of the pod is recorded": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.5", "10.0.1.6")}, Pod: podOn("node-1", "10.0.1.6"), Workload: standing},
			reclaim.Action{Type: reclaim.CreateRecord, Spec: spec}},
		"and none while the pod has none yet": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.5", "10.0.1.6")}, Pod: podOn("node-1"), Workload: standing}, reclaim.Action{}},
		"an address beside the recorded one is released": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.5", "10.0.1.6")}, Pod: podOn("node-1", "10.0.1.6"), Workload: standing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.5")}}},
		"but not while the pod may have it": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.5", "10.0.1.6")}, Pod: podOn("node-1"), Workload: standing}, reclaim.Action{}},
		"a claim of a scheduler that did not see the FixedIP is released while the pod runs without it": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6"), held("node-2", "10.0.2.6")}, Pod: podOn("node-2", "10.0.2.9"), Workload: standing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.2.6")}}},
		"and stays while the pod may have it": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6"), held("node-2", "10.0.2.6")}, Pod: podOn("node-2", "10.0.2.6"), Workload: standing}, reclaim.Action{}},
		"the record follows a subnet that was inherited": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Workload: standing},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: *onNode2}},
		"and what was inherited is not taken from it while its pod on the node that is gone is there": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.9")}, Pod: podOn("node-1"), Workload: standing}, reclaim.Action{}},
		"an address of the other family is recorded too": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6", "fd00::6")}, Pod: podOn("node-1", "10.0.1.6", "fd00::6"), Workload: standing},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: *both}},
		"and then left to the pod": {
			reclaim.State{Record: record(func(r *v1alpha1.FixedIP) { r.Spec = *both }), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6", "fd00::6")}, Pod: podOn("node-1"), Workload: standing}, reclaim.Action{}},
		"not beside another address than the recorded one": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.5", "fd00::6")}, Pod: podOn("node-1"), Workload: standing}, reclaim.Action{}},

		"all is well": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: standing}, reclaim.Action{}},
		"the pod is there for the first time": {
			reclaim.State{Record: record(unfinished), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: standing},
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseInUse, PodUID: "pod-1"}}},
		"the pod is gone for now": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Workload: standing},
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved}}},
		"the workload was created again": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"),
				Workload: reclaim.Workload{OwnerReference: otherUID.Owner, Exists: true}},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: *otherUID}},
		"a record without addresses takes those that the pod was seen with": {
			reclaim.State{Record: record(func(r *v1alpha1.FixedIP) { r.Spec.IPs, r.Spec.NodeName = nil, "" }), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1", "10.0.1.6"), Workload: standing},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: spec}},
		"the same address on another node is followed": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn("node-2"), Workload: standing},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: *onNode2}},
		"a claim that was left behind is released": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6"), held("node-2", "10.0.2.6")}, Pod: podOn("node-1"), Workload: standing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2"}},
		"but not before it is sure which counts": {
			reclaim.State{Record: record(func(r *v1alpha1.FixedIP) { r.Status = v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved} }),
				Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6"), held("node-2", "10.0.2.6")}, Pod: podOn(""), Workload: standing}, reclaim.Action{}},

		"the workload says what to do when its node can't take the pod": {
			reclaim.State{Record: record(), Held: mine, Pod: podOn("node-1"), Workload: withFailover("Migrate")},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: migrating("node-1")}},
		"and says nothing any more": {
			reclaim.State{Record: record(migrates), Held: mine, Pod: podOn("node-1"), Workload: withFailover("")},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: spec}},
		"what it says can't be read": {
			reclaim.State{Record: record(migrates), Held: mine, Pod: podOn("node-1"), Workload: standing}, reclaim.Action{}},
		"a claim is recorded with it": {
			reclaim.State{Held: mine, Pod: podOn("node-1", "10.0.1.6"), Workload: withFailover("Migrate")},
			reclaim.Action{Type: reclaim.CreateRecord, Spec: migrating("node-1")}},
		"an address that moved is followed": {
			reclaim.State{Record: record(migrates), Held: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Away: awayAt("node-2"), Pod: podOn("node-2"), Workload: standing},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: migrating("node-2")}},
		"and stays": {
			reclaim.State{Record: record(migrates, on("node-2")), Held: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Away: awayAt("node-2"), Pod: podOn("node-2"), Workload: standing},
			reclaim.Action{}},
		"a claim without a record that moved is recorded where it is": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Away: awayAt("node-2"), Pod: podOn("node-2", "10.0.1.6"), Workload: withFailover("Migrate")},
			reclaim.Action{Type: reclaim.CreateRecord, Spec: migrating("node-2")}},
		"a move under way is left alone": {
			reclaim.State{Record: record(migrates, reserved), Away: awayAt("node-2"), Arriving: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn(""), Workload: standing},
			reclaim.Action{}},
		"a move that was prepared for a pod that opted out is called off": {
			reclaim.State{Record: record(migrates, reserved), Away: awayAt("node-2"), Arriving: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: optedOut(podOn("node-2")), Workload: standing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}},
		},
		"and so is one whose pod is gone for now": {
			reclaim.State{Record: record(migrates, reserved), Away: awayAt("node-2"), Arriving: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Workload: standing},
			reclaim.Action{}},
		"one that was only announced goes with the pod": {
			reclaim.State{Record: record(migrates, reserved), Held: mine, Arriving: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Workload: standing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"and so does one of a claim without a FixedIP": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-3", "10.0.1.6")}, Away: awayAt("node-3"), Arriving: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Workload: standing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"which is left alone while its pod waits": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-3", "10.0.1.6")}, Away: awayAt("node-3"), Arriving: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn(""), Workload: standing},
			reclaim.Action{}},
		"and is left alone while the pod waits": {
			reclaim.State{Record: record(migrates, reserved), Held: mine, Arriving: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn(""), Workload: standing},
			reclaim.Action{}},
		"and while no pool shows where the address is": {
			reclaim.State{Record: record(migrates, reserved), Arriving: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Workload: standing},
			reclaim.Action{}},
		"an announcement that was left behind goes": {
			reclaim.State{Record: record(migrates), Held: mine, Arriving: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn("node-1"), Workload: standing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2"}},
		"and so does one of a pod that runs without it, and has nothing": {
			reclaim.State{Record: record(migrates), Arriving: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn("node-2", "10.0.2.1"), Workload: standing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"but not that of one that may come to have it": {
			reclaim.State{Record: record(migrates), Arriving: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn("node-2"), Workload: standing},
			reclaim.Action{}},
		"and so does one on the node where the pod runs with an entry of its own": {
			reclaim.State{Record: record(migrates), Held: []ledger.NodeAddresses{mine[0], held("node-2", "10.0.2.5")}, Arriving: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn("node-2", "10.0.2.5"), Workload: standing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"also where the record has been before": {
			reclaim.State{Record: record(migrates, on("node-2")), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.5")}, Away: awayAt("node-2"), Arriving: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn("node-2", "10.0.2.5"), Workload: standing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"but not before it runs": {
			reclaim.State{Record: record(migrates, on("node-2")), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.5")}, Away: awayAt("node-2"), Arriving: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn("node-2"), Workload: standing},
			reclaim.Action{}},
		"it goes with the record, too": {
			reclaim.State{Record: record(deleting), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.5")}, Arriving: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn("node-2", "10.0.2.5"), Workload: standing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"and the record does not go before": {
			reclaim.State{Record: record(deleting), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.5")}, Arriving: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn("node-2"), Workload: standing},
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReleasing, PodUID: "pod-1"}}},
		"nor is it taken from a pod that may come to have it": {
			reclaim.State{Record: record(deleting), Arriving: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn("node-2"), Workload: standing},
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReleasing, PodUID: "pod-1"}}},
		"an absence of the recorded address does not end while the record stands": {
			reclaim.State{Record: record(migrates), Away: leavingFrom("node-2", true), Pod: podOn("node-1"), Workload: standing}, reclaim.Action{}},
		"released: an address that moved is taken where it is": {
			reclaim.State{Record: record(deleting, on("node-2")), Held: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Away: awayAt("node-2"), Workload: gone},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2"}},
		"then its home says that it leaves": {
			reclaim.State{Record: record(deleting, on("node-2")), Away: awayAt("node-2"), Workload: gone},
			reclaim.Action{Type: reclaim.MarkLeaving, Node: "node-1", From: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"then its way there is barred": {
			reclaim.State{Record: record(deleting, on("node-2")), Away: leavingFrom("node-2", false), Workload: gone},
			reclaim.Action{Type: reclaim.FenceTarget, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"then it rests at home": {
			reclaim.State{Record: record(deleting, on("node-2")), Away: leavingFrom("node-2", true), Workload: gone},
			reclaim.Action{Type: reclaim.ReleaseHome, Node: "node-1", From: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}, Generation: 7}},
		"but not while the agent there lists it": {
			reclaim.State{Record: record(deleting, on("node-2")), Away: listed(leavingFrom("node-2", true)), Workload: gone},
			reclaim.Action{At: now.Add(10 * time.Second)}},
		"unless the record should have been gone": {
			reclaim.State{Record: record(deleting, on("node-2")), Away: listed(leavingFrom("node-2", true)), Workload: gone, Deadline: time.Hour},
			reclaim.Action{Type: reclaim.ReleaseHome, Node: "node-1", From: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}, Generation: 7}},
		"nor while the CiliumNode of its home is missing": {
			reclaim.State{Record: record(deleting, on("node-2"), func(r *v1alpha1.FixedIP) {
				r.Status = v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReleasing, MovableFor: "pod-1"}
			}), HomeMissing: "node-1", Workload: gone},
			reclaim.Action{At: now.Add(10 * time.Second), Why: "IPs [10.0.1.6] may be in use on another node than their home node-1, whose CiliumNode is missing; they are released after the Cilium agent of node node-1 has created it again, or at --force-finalize-after; check the cilium pod of that node"}},
		"what is announced goes before": {
			reclaim.State{Record: record(deleting), Away: awayAt("node-2"), Arriving: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Workload: gone},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2"}},
		"and without a record the same": {
			reclaim.State{Away: leavingFrom("node-2", true), Workload: gone},
			reclaim.Action{Type: reclaim.ReleaseHome, Node: "node-1", From: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}, Generation: 7}},
		"nor while the agent lists it": {
			reclaim.State{Away: listed(leavingFrom("node-2", true)), Workload: gone}, reclaim.Action{At: now.Add(10 * time.Second)}},
		"but not while the workload stands": {
			reclaim.State{Away: leavingFrom("node-2", true), Workload: standing}, reclaim.Action{}},
		"deleted while its pod runs where it moved to": {
			reclaim.State{Record: record(deleting, on("node-2")), Held: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Away: awayAt("node-2"), Pod: podOn("node-2"), Workload: standing},
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReleasing, PodUID: "pod-1"}}},

		"a pod that was to get another address elsewhere has it": {
			reclaim.State{Record: record(reassigns), Held: []ledger.NodeAddresses{mine[0], held("node-2", "10.0.2.6")}, Pod: podOn("node-2", "10.0.2.6"), Workload: standing},
			reclaim.Action{Type: reclaim.ReplaceRecord}},
		"it was to by default": {
			reclaim.State{Record: record(), Failover: v1alpha1.Reassign, Held: []ledger.NodeAddresses{mine[0], held("node-2", "10.0.2.6")}, Pod: podOn("node-2"), Workload: standing},
			reclaim.Action{Type: reclaim.ReplaceRecord}},
		"it was not to": {
			reclaim.State{Record: record(migrates), Failover: v1alpha1.Reassign, Held: []ledger.NodeAddresses{mine[0], held("node-2", "10.0.2.6")}, Pod: podOn("node-2"), Workload: standing},
			reclaim.Action{}},
		"it has not got it yet": {
			reclaim.State{Record: record(reassigns), Held: []ledger.NodeAddresses{mine[0], held("node-2", "10.0.2.6")}, Pod: podOn(""), Workload: standing},
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved}}},
		"it got one of another family alone": {
			reclaim.State{Record: record(reassigns), Held: []ledger.NodeAddresses{mine[0], held("node-2", "fd00::6")}, Pod: podOn("node-2"), Workload: standing}, reclaim.Action{}},
		"it runs with the old one all the same": {
			reclaim.State{Record: record(reassigns), Held: []ledger.NodeAddresses{mine[0], held("node-2", "10.0.2.6")}, Pod: podOn("node-2", "10.0.1.6"), Workload: standing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.2.6")}}},
		"what it had is released": {
			reclaim.State{Record: record(reassigns, deleting), Held: []ledger.NodeAddresses{mine[0], held("node-2", "10.0.2.6")}, Pod: podOn("node-2"), Workload: standing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1"}},
		"and where it had moved to before": {
			reclaim.State{Record: record(reassigns, deleting), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.6")}, Away: awayAt("node-3"), Pod: podOn("node-2"), Workload: standing},
			reclaim.Action{Type: reclaim.MarkLeaving, Node: "node-1", From: "node-3", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"and the record makes way": {
			reclaim.State{Record: record(reassigns, deleting), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.6")}, Pod: podOn("node-2"), Workload: standing},
			reclaim.Action{Type: reclaim.FinishRecord}},

		"made beforehand, the workload is yet to come": {
			reclaim.State{Record: record(beforehand, func(r *v1alpha1.FixedIP) { r.Finalizers = []string{v1alpha1.Finalizer} }), Workload: reclaim.Workload{OwnerReference: unborn}},
			reclaim.Action{}},
		"made beforehand, it gets the finalizer": {
			reclaim.State{Record: record(beforehand), Workload: reclaim.Workload{OwnerReference: unborn}},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: v1alpha1.FixedIPSpec{IPs: spec.IPs, Owner: unborn, PodName: spec.PodName, Reclaim: spec.Reclaim}}},
		"made beforehand, the workload has come": {
			reclaim.State{Record: record(beforehand), Pod: podOn(""), Workload: standing},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: v1alpha1.FixedIPSpec{IPs: spec.IPs, Owner: mysql, PodName: spec.PodName, Reclaim: spec.Reclaim}}},
		"made beforehand, the pod is placed": {
			reclaim.State{Record: record(beforehand), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: standing},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: spec}},

		"the workload is gone, the pod is not": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: gone}, reclaim.Action{}},
		"the workload and the pod are gone": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Workload: gone}, reclaim.Action{Type: reclaim.DeleteRecord}},
		"the workload is gone and its addresses are retained": {
			reclaim.State{Record: kept(policy("Retain", "Retain", 0)), Held: mine, Workload: gone}, reclaim.Action{}},
		"the workload is gone, and its addresses have time to live": {
			reclaim.State{Record: kept(policy("Delete", "Retain", time.Hour)), Held: mine, Workload: gone},
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved, ExpiresAt: &metav1.Time{Time: now.Add(time.Hour)}}, At: now.Add(time.Hour)}},
		"the time to live is not over": {
			reclaim.State{Record: kept(policy("Delete", "Retain", time.Hour), now.Add(time.Second)), Held: mine, Workload: gone}, reclaim.Action{At: now.Add(time.Second)}},
		"the time to live is over": {
			reclaim.State{Record: kept(policy("Delete", "Retain", time.Hour), now), Held: mine, Workload: gone}, reclaim.Action{Type: reclaim.DeleteRecord}},
		"the pod is back within the time to live": {
			reclaim.State{Record: kept(policy("Delete", "Retain", time.Hour), now.Add(time.Second)), Held: mine, Pod: podOn("node-1"), Workload: standing},
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseInUse, PodUID: "pod-1"}}},
		"the workload is back within the time to live, its pod is not": {
			reclaim.State{Record: kept(policy("Delete", "Retain", time.Hour), now.Add(time.Second)), Held: mine, Workload: standing},
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved}}},
		"scaled down, the address is retained": {
			reclaim.State{Record: kept(identity.DefaultReclaim()), Held: mine, Workload: scaled(nil)}, reclaim.Action{}},
		"scaled down, the address goes back": {
			reclaim.State{Record: kept(policy("Retain", "Delete", 0)), Held: mine, Workload: scaled(nil)}, reclaim.Action{Type: reclaim.DeleteRecord}},
		"scaled down, the pod still runs": {
			reclaim.State{Record: record(func(r *v1alpha1.FixedIP) { r.Spec.Reclaim = policy("Retain", "Delete", 0) }), Held: mine, Pod: podOn("node-1"), Workload: scaled(nil)}, reclaim.Action{}},
		"the workload changes its mind": {
			reclaim.State{Record: kept(identity.DefaultReclaim()), Held: mine, Workload: scaled(&retainAll)}, reclaim.Action{Type: reclaim.UpdateRecord, Spec: *retained}},

		"deleted while the pod runs": {
			reclaim.State{Record: record(deleting), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: standing},
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReleasing, PodUID: "pod-1"}}},
		"deleted and the pod is gone": {
			reclaim.State{Record: record(deleting), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Workload: standing}, reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1"}},
		"deleted while the next pod waits for it": {
			reclaim.State{Record: record(deleting), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn(""), Workload: standing}, reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1"}},
		"deleted and released": {
			reclaim.State{Record: record(deleting), Workload: standing}, reclaim.Action{Type: reclaim.FinishRecord}},
		"deleted and finished": {
			reclaim.State{Record: record(deleting, func(r *v1alpha1.FixedIP) { r.Finalizers = []string{"somebody/else"} }), Workload: standing}, reclaim.Action{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, decide(at(c.situation)), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got): %s", diff)
			}
		})
	}
}

// at returns the state with Now set to the time of the tests.
func at(s reclaim.State) reclaim.State {
	s.Now = now
	return s
}
