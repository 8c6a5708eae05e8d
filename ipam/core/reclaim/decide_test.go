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
	"fixedip.io/fixedip/test/gen"
)

func held(node string, addrs ...string) ledger.NodeAddresses {
	h := ledger.NodeAddresses{Node: node}
	for _, a := range addrs {
		h.Addrs = append(h.Addrs, addr(a))
	}
	return h
}

// podOn returns a pod that is bound to a node (empty: not bound) and has the IPs in its status.
func podOn(node string, ips ...string) *corev1.Pod { return gen.Pod("mysql-0", gen.On(node, ips...)) }

var (
	mysql    = v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql", UID: "sts-1"}
	existing = reclaim.Workload{OwnerReference: mysql, Exists: true}
	gone     = reclaim.Workload{OwnerReference: mysql}
	spec     = v1alpha1.FixedIPSpec{IPs: []string{"10.0.1.6"}, NodeName: "node-1", Owner: mysql, AssignedTo: v1alpha1.PodName, PodName: "mysql-0", Reclaim: identity.DefaultReclaim()}
	now      = time.Unix(1000, 0)
)

func record(change ...func(*v1alpha1.FixedIP)) *v1alpha1.FixedIP {
	inUse := func(r *v1alpha1.FixedIP) {
		r.Finalizers, r.Spec = []string{v1alpha1.Finalizer}, *spec.DeepCopy()
		r.Status = v1alpha1.FixedIPStatus{PodUID: "uid-mysql-0"}
	}
	return gen.FixedIP("mysql-0", append([]func(*v1alpha1.FixedIP){inUse}, change...)...)
}

// reservedRecord returns a FixedIP that no pod uses, with the reclaim policy p, and with status.expiresAt if expires is
// given.
func reservedRecord(p v1alpha1.ReclaimPolicy, expires ...time.Time) *v1alpha1.FixedIP {
	return record(func(r *v1alpha1.FixedIP) {
		r.Spec.Reclaim = p
		r.Status = v1alpha1.FixedIPStatus{}
		if len(expires) > 0 {
			r.Status.ExpiresAt = &metav1.Time{Time: expires[0]}
		}
	})
}

func policy(deleted, scaled v1alpha1.Retention, ttl time.Duration) v1alpha1.ReclaimPolicy {
	return v1alpha1.ReclaimPolicy{WhenDeleted: deleted, WhenScaled: scaled, TTLSeconds: int64(ttl.Seconds())}
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

// movedTo returns the state of 10.0.1.6 after it was moved from its home node-1 to node.
func movedTo(node string) []ledger.RemoteAddresses {
	return []ledger.RemoteAddresses{{Home: "node-1", At: node, Addrs: []netip.Addr{addr("10.0.1.6")}, Generation: 7}}
}

// leavingFrom returns the result of movedTo for an address that is about to leave the node. barred is the value of the
// field Fenced.
func leavingFrom(node string, barred bool) []ledger.RemoteAddresses {
	moved := movedTo(node)
	moved[0].Leaving, moved[0].Fenced = true, barred
	return moved
}

// used sets the field Used: the agent of the other node reports the address as used.
func used(moved []ledger.RemoteAddresses) []ledger.RemoteAddresses {
	moved[0].Used = true
	return moved
}

func on(node string) func(*v1alpha1.FixedIP) {
	return func(r *v1alpha1.FixedIP) { r.Spec.NodeName = node }
}

func migrates(r *v1alpha1.FixedIP)  { r.Spec.Failover = v1alpha1.Migrate }
func reassigns(r *v1alpha1.FixedIP) { r.Spec.Failover = v1alpha1.Reassign }
func reserved(r *v1alpha1.FixedIP) {
	r.Status = v1alpha1.FixedIPStatus{}
}

func deleting(r *v1alpha1.FixedIP)   { r.DeletionTimestamp = &metav1.Time{} }
func unfinished(r *v1alpha1.FixedIP) { r.Status = v1alpha1.FixedIPStatus{} }

// mysqlWithoutUID is the owner in a FixedIP that a user creates before the workload exists: the owner has no UID.
var mysqlWithoutUID = v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql"}

func createdByUser(r *v1alpha1.FixedIP) {
	r.Finalizers, r.Spec.NodeName, r.Spec.Owner.UID = nil, "", ""
	r.Status = v1alpha1.FixedIPStatus{}
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
		state reclaim.State
		want  reclaim.Action
	}{
		"no FixedIP, no entry and no pod": {reclaim.State{}, reclaim.Action{}},

		"claim is recorded: the pod runs with the claimed IP": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1", "10.0.1.6"), Workload: existing},
			reclaim.Action{Type: reclaim.CreateRecord, Spec: spec}},
		"claim waits: the pod is bound and has no IP yet": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: existing}, reclaim.Action{}},
		"claim is recorded: the pod runs with another IP": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1", "10.0.1.2"), Workload: existing},
			reclaim.Action{Type: reclaim.CreateRecord, Spec: spec}},
		"claim of requested IPs is recorded: the pod runs with another IP": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, RequestsIPs: true, Pod: podOn("node-1", "10.0.1.2"), Workload: existing},
			reclaim.Action{Type: reclaim.CreateRecord, Spec: spec}},
		"claim of two families is recorded: the pod runs with another IPv6 address": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6", "fd00::6")}, Pod: podOn("node-1", "10.0.1.6", "fd00::2"), Workload: existing},
			reclaim.Action{Type: reclaim.CreateRecord, Spec: *both}},
		"claim of two families is recorded: the pod has no IPv6 address": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6", "fd00::6")}, Pod: podOn("node-1", "10.0.1.6"), Workload: existing},
			reclaim.Action{Type: reclaim.CreateRecord, Spec: *both}},
		"two claims: the one on the node of the pod is recorded": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6"), held("node-2", "10.0.2.6")}, Pod: podOn("node-1", "10.0.1.6"), Workload: existing},
			reclaim.Action{Type: reclaim.CreateRecord, Spec: spec}},
		"claim waits: the pod is not bound": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn(""), Workload: existing}, reclaim.Action{}},
		"claim waits: the pod was deleted before the bind": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Workload: existing}, reclaim.Action{}},
		"claim is released: pod and workload do not exist": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Workload: gone}, reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1"}},
		"claim is released: another FixedIP names the address, the pod was deleted": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, OtherFixedIP: "db/web-0", Workload: existing}, reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1"}},
		"claim waits: another FixedIP names the address, the pod is not bound": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, OtherFixedIP: "db/web-0", Pod: podOn(""), Workload: existing}, reclaim.Action{}},
		"entry of a user is not released: another FixedIP names the address, the pod was deleted": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, OtherFixedIP: "db/web-0", OwnerInferred: true, Workload: existing}, reclaim.Action{}},
		"claim outside the replicas is released: whenScaled is Delete": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Workload: scaled(ptr.To(policy(v1alpha1.Delete, v1alpha1.Delete, 0)))},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1"}},
		"claim outside the replicas waits: whenScaled is Retain": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Workload: scaled(ptr.To(policy(v1alpha1.Delete, v1alpha1.Retain, 0)))}, reclaim.Action{}},
		"claim outside the replicas waits: the policy is unknown": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Workload: scaled(nil)}, reclaim.Action{}},
		"claim outside the replicas waits: the pod still exists": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn(""), Workload: scaled(ptr.To(policy(v1alpha1.Delete, v1alpha1.Delete, 0)))}, reclaim.Action{}},
		"entry of a user outside the replicas is not released": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, OwnerInferred: true, Workload: scaled(ptr.To(policy(v1alpha1.Delete, v1alpha1.Delete, 0)))}, reclaim.Action{}},
		"move target is released: pod and claim do not exist": {
			reclaim.State{MoveTargets: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Workload: existing}, reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"move target is released: a user wrote the other entry": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, MoveTargets: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, OwnerInferred: true, Workload: gone}, reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"claim is not released: the workload does not exist, its pod does": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: gone}, reclaim.Action{}},
		"claim is not recorded: the pod is bound to another node": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-2", "10.0.2.6")}, Pod: podOn("node-1"), Workload: existing}, reclaim.Action{}},

		"two claimed IPs of one family: the IP of the pod is recorded": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.5", "10.0.1.6")}, Pod: podOn("node-1", "10.0.1.6"), Workload: existing},
			reclaim.Action{Type: reclaim.CreateRecord, Spec: spec}},
		"two claimed IPs of one family: none is recorded before the pod has an IP": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.5", "10.0.1.6")}, Pod: podOn("node-1"), Workload: existing}, reclaim.Action{}},
		"additional IP on the node is released": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.5", "10.0.1.6")}, Pod: podOn("node-1", "10.0.1.6"), Workload: existing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.5")}}},
		"additional IP on the node is not released: the pod has no IP yet": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.5", "10.0.1.6")}, Pod: podOn("node-1"), Workload: existing}, reclaim.Action{}},
		"claim on another node than the recorded one is released: the pod runs without it": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6"), held("node-2", "10.0.2.6")}, Pod: podOn("node-2", "10.0.2.9"), Workload: existing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.2.6")}}},
		"claim on another node than the recorded one is not released: the pod runs with it": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6"), held("node-2", "10.0.2.6")}, Pod: podOn("node-2", "10.0.2.6"), Workload: existing}, reclaim.Action{}},
		"inherited subnet: the spec names the new node": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Workload: existing},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: *onNode2}},
		"other entry is not released: the pod on the deleted node still exists": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.9")}, Pod: podOn("node-1"), Workload: existing}, reclaim.Action{}},
		"IPv6 address is added to the FixedIP": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6", "fd00::6")}, Pod: podOn("node-1", "10.0.1.6", "fd00::6"), Workload: existing},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: *both}},
		"IPv6 address that was added is not released": {
			reclaim.State{Record: record(func(r *v1alpha1.FixedIP) { r.Spec = *both }), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6", "fd00::6")}, Pod: podOn("node-1"), Workload: existing}, reclaim.Action{}},
		"IPv6 address is not added: the IPv4 entry is not the recorded one": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.5", "fd00::6")}, Pod: podOn("node-1"), Workload: existing}, reclaim.Action{}},

		"nothing to do": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: existing}, reclaim.Action{}},
		"status is written for the first pod": {
			reclaim.State{Record: record(unfinished), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: existing},
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{PodUID: "uid-mysql-0"}}},
		"status.podUID is cleared: the pod was deleted, and no home is known": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Workload: existing},
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{MovableFor: "uid-mysql-0"}}},
		"owner UID is updated: the workload was created again": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"),
				Workload: reclaim.Workload{OwnerReference: otherUID.Owner, Exists: true}},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: *otherUID}},
		"FixedIP without addresses gets those of the pod": {
			reclaim.State{Record: record(func(r *v1alpha1.FixedIP) { r.Spec.IPs, r.Spec.NodeName = nil, "" }), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1", "10.0.1.6"), Workload: existing},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: spec}},
		"spec.nodeName is updated: the entry is on the node of the pod": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn("node-2"), Workload: existing},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: *onNode2}},
		"claim on another node is released: the pod is bound": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6"), held("node-2", "10.0.2.6")}, Pod: podOn("node-1"), Workload: existing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2"}},
		"claim on another node is not released: the pod is not bound": {
			reclaim.State{Record: record(func(r *v1alpha1.FixedIP) { r.Status = v1alpha1.FixedIPStatus{} }),
				Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6"), held("node-2", "10.0.2.6")}, Pod: podOn(""), Workload: existing}, reclaim.Action{}},

		"failover policy of the workload is recorded": {
			reclaim.State{Record: record(), Held: mine, Pod: podOn("node-1"), Workload: withFailover("Migrate")},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: migrating("node-1")}},
		"removed failover policy of the workload is recorded": {
			reclaim.State{Record: record(migrates), Held: mine, Pod: podOn("node-1"), Workload: withFailover("")},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: spec}},
		"failover policy is not changed: that of the workload is unknown": {
			reclaim.State{Record: record(migrates), Held: mine, Pod: podOn("node-1"), Workload: existing}, reclaim.Action{}},
		"claim is recorded with the failover policy": {
			reclaim.State{Held: mine, Pod: podOn("node-1", "10.0.1.6"), Workload: withFailover("Migrate")},
			reclaim.Action{Type: reclaim.CreateRecord, Spec: migrating("node-1")}},
		"claim of a pod without a node is recorded: the default is Migrate, and the workload has no policy": {
			reclaim.State{Held: mine, Pod: unschedulable(podOn("")), Workload: withFailover(""), Failover: v1alpha1.Migrate},
			reclaim.Action{Type: reclaim.CreateRecord, Spec: spec}},
		"claim of a pod without a node is not recorded: the default is Migrate, and the policy of the workload is Wait": {
			reclaim.State{Held: mine, Pod: unschedulable(podOn("")), Workload: withFailover("Wait"), Failover: v1alpha1.Migrate},
			reclaim.Action{}},
		"spec.nodeName is updated after a move": {
			reclaim.State{Record: record(migrates), Held: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Moved: movedTo("node-2"), Pod: podOn("node-2"), Workload: existing},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: migrating("node-2")}},
		"spec.nodeName is updated after a move, before the pod is bound": {
			reclaim.State{Record: record(migrates, reserved), Held: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Moved: movedTo("node-2"), Pod: podOn(""), Workload: existing},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: migrating("node-2")}},
		"spec.nodeName is updated after a return, beside the target of an earlier move": {
			reclaim.State{Record: record(migrates, reserved, on("node-2")), Held: mine, MoveTargets: []ledger.NodeAddresses{held("node-3", "10.0.1.6")}, Pod: podOn(""), Workload: existing},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: migrating("node-1")}},
		"spec.nodeName is not updated while the address leaves": {
			reclaim.State{Record: record(migrates, reserved), Held: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Moved: leavingFrom("node-2", false), Pod: podOn(""), Workload: existing},
			reclaim.Action{}},
		"spec.nodeName is not updated while the address is on its way to a third node": {
			reclaim.State{Record: record(migrates, reserved), Held: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Moved: movedTo("node-3"), MoveTargets: []ledger.NodeAddresses{held("node-3", "10.0.1.6")}, Pod: podOn(""), Workload: existing},
			reclaim.Action{}},
		"moved address is not released": {
			reclaim.State{Record: record(migrates, on("node-2")), Held: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Moved: movedTo("node-2"), Pod: podOn("node-2"), Workload: existing},
			reclaim.Action{}},
		"moved claim without a FixedIP is recorded on the new node": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Moved: movedTo("node-2"), Pod: podOn("node-2", "10.0.1.6"), Workload: withFailover("Migrate")},
			reclaim.Action{Type: reclaim.CreateRecord, Spec: migrating("node-2")}},
		"move in progress is not changed": {
			reclaim.State{Record: record(migrates, reserved), Moved: movedTo("node-2"), MoveTargets: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn(""), Workload: existing},
			reclaim.Action{}},
		"move target is released: the pod opted out": {
			reclaim.State{Record: record(migrates, reserved), Moved: movedTo("node-2"), MoveTargets: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: optedOut(podOn("node-2")), Workload: existing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}},
		},
		"move in progress is not changed: the pod was deleted": {
			reclaim.State{Record: record(migrates, reserved), Moved: movedTo("node-2"), MoveTargets: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Workload: existing},
			reclaim.Action{}},
		"move target is released: the address is still at home and the pod was deleted": {
			reclaim.State{Record: record(migrates, reserved), Held: mine, MoveTargets: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Workload: existing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"move target of a claim is released: the pod was deleted": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-3", "10.0.1.6")}, Moved: movedTo("node-3"), MoveTargets: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Workload: existing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"move target of a claim is not released: the pod waits": {
			reclaim.State{Held: []ledger.NodeAddresses{held("node-3", "10.0.1.6")}, Moved: movedTo("node-3"), MoveTargets: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn(""), Workload: existing},
			reclaim.Action{}},
		"move target is not released: the pod waits": {
			reclaim.State{Record: record(migrates, reserved), Held: mine, MoveTargets: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn(""), Workload: existing},
			reclaim.Action{}},
		"move target is not released: no pool has another entry": {
			reclaim.State{Record: record(migrates, reserved), MoveTargets: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Workload: existing},
			reclaim.Action{}},
		"move target is released: the pod is bound to another node": {
			reclaim.State{Record: record(migrates), Held: mine, MoveTargets: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn("node-1"), Workload: existing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2"}},
		"move target is released: the pod runs without the address and has no entry": {
			reclaim.State{Record: record(migrates), MoveTargets: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn("node-2", "10.0.2.1"), Workload: existing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"move target is not released: the pod has no IP yet": {
			reclaim.State{Record: record(migrates), MoveTargets: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn("node-2"), Workload: existing},
			reclaim.Action{}},
		"move target is released: the pod runs with another entry on that node": {
			reclaim.State{Record: record(migrates), Held: []ledger.NodeAddresses{mine[0], held("node-2", "10.0.2.5")}, MoveTargets: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn("node-2", "10.0.2.5"), Workload: existing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"move target is released: the FixedIP names that node already": {
			reclaim.State{Record: record(migrates, on("node-2")), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.5")}, Moved: movedTo("node-2"), MoveTargets: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn("node-2", "10.0.2.5"), Workload: existing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"move target is not released: the pod with another entry has no IP yet": {
			reclaim.State{Record: record(migrates, on("node-2")), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.5")}, Moved: movedTo("node-2"), MoveTargets: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn("node-2"), Workload: existing},
			reclaim.Action{}},
		"deleted: the move target on the pod's node is released": {
			reclaim.State{Record: record(deleting), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.5")}, MoveTargets: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn("node-2", "10.0.2.5"), Workload: existing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"deleted: the FixedIP waits for a move target, the pod has another entry": {
			reclaim.State{Record: record(deleting), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.5")}, MoveTargets: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn("node-2"), Workload: existing},
			reclaim.Action{}},
		"deleted: the FixedIP waits for a move target, the pod has no entry": {
			reclaim.State{Record: record(deleting), MoveTargets: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn("node-2"), Workload: existing},
			reclaim.Action{}},
		"Moved entry of the recorded address is not released": {
			reclaim.State{Record: record(migrates), Moved: leavingFrom("node-2", true), Pod: podOn("node-1"), Workload: existing}, reclaim.Action{}},
		"deleted: the entry on the node after a move is released first": {
			reclaim.State{Record: record(deleting, on("node-2")), Held: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Moved: movedTo("node-2"), Workload: gone},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2"}},
		"deleted: then the Moved entry is marked as leaving": {
			reclaim.State{Record: record(deleting, on("node-2")), Moved: movedTo("node-2"), Workload: gone},
			reclaim.Action{Type: reclaim.MarkLeaving, Node: "node-1", From: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"deleted: then the node after the move is fenced": {
			reclaim.State{Record: record(deleting, on("node-2")), Moved: leavingFrom("node-2", false), Workload: gone},
			reclaim.Action{Type: reclaim.FenceTarget, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"deleted: then the Moved entry is released": {
			reclaim.State{Record: record(deleting, on("node-2")), Moved: leavingFrom("node-2", true), Workload: gone},
			reclaim.Action{Type: reclaim.ReleaseHome, Node: "node-1", From: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}, Generation: 7}},
		"deleted: the Moved entry is not released, the agent reports the address": {
			reclaim.State{Record: record(deleting, on("node-2")), Moved: used(leavingFrom("node-2", true)), Workload: gone},
			reclaim.Action{At: now.Add(10 * time.Second)}},
		"deleted and overdue: the Moved entry is released, the agent reports the address": {
			reclaim.State{Record: record(deleting, on("node-2")), Moved: used(leavingFrom("node-2", true)), Workload: gone, Deadline: time.Hour},
			reclaim.Action{Type: reclaim.ReleaseHome, Node: "node-1", From: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}, Generation: 7}},
		"deleted: the FixedIP waits for the CiliumNode of the home": {
			reclaim.State{Record: record(deleting, on("node-2"), func(r *v1alpha1.FixedIP) {
				r.Status = v1alpha1.FixedIPStatus{MovableFor: "uid-mysql-0"}
			}), HomeMissing: "node-1", Workload: gone},
			reclaim.Action{At: now.Add(10 * time.Second), Why: "IP 10.0.1.6 may be in use on a node other than its home node node-1, which has no CiliumNode with the subnet of the IP; release is blocked until the Cilium agent of node node-1 has created the CiliumNode and the controller has assigned the subnet to it; when the time of --force-finalize-after is over, the FixedIP is removed anyway; check the cilium pod of that node"}},
		"deleted: the move target is released before the Moved entry": {
			reclaim.State{Record: record(deleting), Moved: movedTo("node-2"), MoveTargets: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Workload: gone},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2"}},
		"no FixedIP: the fenced Moved entry is released": {
			reclaim.State{Moved: leavingFrom("node-2", true), Workload: gone},
			reclaim.Action{Type: reclaim.ReleaseHome, Node: "node-1", From: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}, Generation: 7}},
		"no FixedIP: the Moved entry is not released, the agent reports the address": {
			reclaim.State{Moved: used(leavingFrom("node-2", true)), Workload: gone}, reclaim.Action{At: now.Add(10 * time.Second)}},
		"no FixedIP: the Moved entry is not released, the workload exists": {
			reclaim.State{Moved: leavingFrom("node-2", true), Workload: existing}, reclaim.Action{}},
		"deleted: the moved address is not released, the pod is bound": {
			reclaim.State{Record: record(deleting, on("node-2")), Held: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Moved: movedTo("node-2"), Pod: podOn("node-2"), Workload: existing},
			reclaim.Action{}},

		"Reassign: the FixedIP is replaced, the pod runs with another address": {
			reclaim.State{Record: record(reassigns), Held: []ledger.NodeAddresses{mine[0], held("node-2", "10.0.2.6")}, Pod: podOn("node-2", "10.0.2.6"), Workload: existing},
			reclaim.Action{Type: reclaim.ReplaceRecord}},
		"Reassign by default: the FixedIP is replaced": {
			reclaim.State{Record: record(), Failover: v1alpha1.Reassign, Held: []ledger.NodeAddresses{mine[0], held("node-2", "10.0.2.6")}, Pod: podOn("node-2"), Workload: existing},
			reclaim.Action{Type: reclaim.ReplaceRecord}},
		"Migrate: the FixedIP is not replaced": {
			reclaim.State{Record: record(migrates), Failover: v1alpha1.Reassign, Held: []ledger.NodeAddresses{mine[0], held("node-2", "10.0.2.6")}, Pod: podOn("node-2"), Workload: existing},
			reclaim.Action{}},
		"Reassign: the FixedIP is not replaced, the pod is not bound": {
			reclaim.State{Record: record(reassigns), Held: []ledger.NodeAddresses{mine[0], held("node-2", "10.0.2.6")}, Pod: podOn(""), Workload: existing},
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{MovableFor: "uid-mysql-0"}}},
		"Reassign: the FixedIP is not replaced, the new entry has the other family": {
			reclaim.State{Record: record(reassigns), Held: []ledger.NodeAddresses{mine[0], held("node-2", "fd00::6")}, Pod: podOn("node-2"), Workload: existing}, reclaim.Action{}},
		"Reassign: the new entry is released, the pod runs with the recorded address": {
			reclaim.State{Record: record(reassigns), Held: []ledger.NodeAddresses{mine[0], held("node-2", "10.0.2.6")}, Pod: podOn("node-2", "10.0.1.6"), Workload: existing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.2.6")}}},
		"Reassign, deleted: the entry of the recorded address is released": {
			reclaim.State{Record: record(reassigns, deleting), Held: []ledger.NodeAddresses{mine[0], held("node-2", "10.0.2.6")}, Pod: podOn("node-2"), Workload: existing},
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1"}},
		"Reassign, deleted: the Moved entry of an earlier move is released": {
			reclaim.State{Record: record(reassigns, deleting), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.6")}, Moved: movedTo("node-3"), Pod: podOn("node-2"), Workload: existing},
			reclaim.Action{Type: reclaim.MarkLeaving, Node: "node-1", From: "node-3", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"Reassign, deleted: the finalizer is removed": {
			reclaim.State{Record: record(reassigns, deleting), Held: []ledger.NodeAddresses{held("node-2", "10.0.2.6")}, Pod: podOn("node-2"), Workload: existing},
			reclaim.Action{Type: reclaim.FinishRecord}},

		"created by a user: the workload does not exist yet": {
			reclaim.State{Record: record(createdByUser, func(r *v1alpha1.FixedIP) { r.Finalizers = []string{v1alpha1.Finalizer} }), Workload: reclaim.Workload{OwnerReference: mysqlWithoutUID}},
			reclaim.Action{}},
		"created by a user: the finalizer is added": {
			reclaim.State{Record: record(createdByUser), Workload: reclaim.Workload{OwnerReference: mysqlWithoutUID}},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: v1alpha1.FixedIPSpec{IPs: spec.IPs, Owner: mysqlWithoutUID, AssignedTo: spec.AssignedTo, PodName: spec.PodName, Reclaim: spec.Reclaim}}},
		"created by a user: the workload exists": {
			reclaim.State{Record: record(createdByUser), Pod: podOn(""), Workload: existing},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: v1alpha1.FixedIPSpec{IPs: spec.IPs, Owner: mysql, AssignedTo: spec.AssignedTo, PodName: spec.PodName, Reclaim: spec.Reclaim}}},
		"created by a user: the pod is bound": {
			reclaim.State{Record: record(createdByUser), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: existing},
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: spec}},

		"workload deleted: the pod still exists": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: gone}, reclaim.Action{}},
		"workload and pod deleted": {
			reclaim.State{Record: record(), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Workload: gone}, reclaim.Action{Type: reclaim.DeleteRecord}},
		"workload deleted: whenDeleted is Retain": {
			reclaim.State{Record: reservedRecord(policy("Retain", "Retain", 0)), Held: mine, Workload: gone}, reclaim.Action{}},
		"workload deleted: the TTL begins": {
			reclaim.State{Record: reservedRecord(policy("Delete", "Retain", time.Hour)), Held: mine, Workload: gone},
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{ExpiresAt: &metav1.Time{Time: now.Add(time.Hour)}}, At: now.Add(time.Hour)}},
		"workload deleted: the TTL is not over": {
			reclaim.State{Record: reservedRecord(policy("Delete", "Retain", time.Hour), now.Add(time.Second)), Held: mine, Workload: gone}, reclaim.Action{At: now.Add(time.Second)}},
		"workload deleted: the TTL is over": {
			reclaim.State{Record: reservedRecord(policy("Delete", "Retain", time.Hour), now), Held: mine, Workload: gone}, reclaim.Action{Type: reclaim.DeleteRecord}},
		"a pod exists again within the TTL": {
			reclaim.State{Record: reservedRecord(policy("Delete", "Retain", time.Hour), now.Add(time.Second)), Held: mine, Pod: podOn("node-1"), Workload: existing},
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{PodUID: "uid-mysql-0"}}},
		"the workload exists again within the TTL, no pod does": {
			reclaim.State{Record: reservedRecord(policy("Delete", "Retain", time.Hour), now.Add(time.Second)), Held: mine, Workload: existing},
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{}}},
		"scaled down: whenScaled is Retain": {
			reclaim.State{Record: reservedRecord(identity.DefaultReclaim()), Held: mine, Workload: scaled(nil)}, reclaim.Action{}},
		"scaled down: whenScaled is Delete": {
			reclaim.State{Record: reservedRecord(policy("Retain", "Delete", 0)), Held: mine, Workload: scaled(nil)}, reclaim.Action{Type: reclaim.DeleteRecord}},
		"scaled down: the pod still exists": {
			reclaim.State{Record: record(func(r *v1alpha1.FixedIP) { r.Spec.Reclaim = policy("Retain", "Delete", 0) }), Held: mine, Pod: podOn("node-1"), Workload: scaled(nil)}, reclaim.Action{}},
		"reclaim policy of the workload is recorded": {
			reclaim.State{Record: reservedRecord(identity.DefaultReclaim()), Held: mine, Workload: scaled(&retainAll)}, reclaim.Action{Type: reclaim.UpdateRecord, Spec: *retained}},

		"deleted: the pod is bound": {
			reclaim.State{Record: record(deleting), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: existing},
			reclaim.Action{}},
		"deleted: the entries are released, no pod exists": {
			reclaim.State{Record: record(deleting), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Workload: existing}, reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1"}},
		"deleted: the entries are released, the pod is not bound": {
			reclaim.State{Record: record(deleting), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn(""), Workload: existing}, reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1"}},
		"deleted: the finalizer is removed after the release": {
			reclaim.State{Record: record(deleting), Workload: existing}, reclaim.Action{Type: reclaim.FinishRecord}},
		"deleted: another finalizer is not removed": {
			reclaim.State{Record: record(deleting, func(r *v1alpha1.FixedIP) { r.Finalizers = []string{"example.com/other"} }), Workload: existing}, reclaim.Action{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, decide(at(c.state)), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("Decide (-want +got): %s", diff)
			}
		})
	}
}

// at returns the state with Now set to the time of the tests.
func at(s reclaim.State) reclaim.State {
	s.Now = now
	return s
}
