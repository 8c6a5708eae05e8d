package plan_test

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
	"fixedip.io/fixedip/ipam/core/plan"
)

func held(node string, addrs ...string) ledger.Holding {
	h := ledger.Holding{Node: node}
	for _, a := range addrs {
		h.Addrs = append(h.Addrs, addr(a))
	}
	return h
}

// podOn makes a pod that is bound to a node, or to none, and runs with addresses, if given.
func podOn(node string, ips ...string) *corev1.Pod {
	var status corev1.PodStatus
	for _, ip := range ips {
		status.PodIPs = append(status.PodIPs, corev1.PodIP{IP: ip})
	}
	return &corev1.Pod{Status: status, ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0", UID: "pod-1"}, Spec: corev1.PodSpec{NodeName: node}}
}

var (
	mysql    = v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql", UID: "sts-1"}
	standing = plan.Workload{OwnerReference: mysql, Exists: true}
	gone     = plan.Workload{OwnerReference: mysql}
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

// kept is a record without a pod, under a policy.
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

// scaled is a workload that has fewer replicas than would take in the pod.
func scaled(p *v1alpha1.ReclaimPolicy) plan.Workload {
	return plan.Workload{OwnerReference: mysql, Exists: true, Excludes: true, Reclaim: p}
}

// withFailover is a workload that says what becomes of its pods.
func withFailover(f v1alpha1.Failover) plan.Workload {
	return plan.Workload{OwnerReference: mysql, Exists: true, Failover: &f}
}

// migrating is the spec of a record whose address may move, and is on a node.
func migrating(node string) v1alpha1.FixedIPSpec {
	s := *spec.DeepCopy()
	s.Failover, s.NodeName = v1alpha1.Migrate, node
	return s
}

// awayAt says that node-1, the home of the address, has it marked as on another node.
func awayAt(node string) []ledger.Absence {
	return []ledger.Absence{{Home: "node-1", At: node, Addrs: []netip.Addr{addr("10.0.1.6")}, Generation: 7}}
}

// leavingFrom is awayAt for an address that is about to leave that node, and tells whether that bars it.
func leavingFrom(node string, barred bool) []ledger.Absence {
	away := awayAt(node)
	away[0].Leaving, away[0].Barred = true, barred
	return away
}

// listed is an absence of an address that the agent there says it has given out.
func listed(away []ledger.Absence) []ledger.Absence {
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

// unborn is the owner of a record that a person makes before there is one.
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
	mine := []ledger.Holding{held("node-1", "10.0.1.6")}
	retainAll := policy("Retain", "Retain", time.Minute)
	retained := spec.DeepCopy()
	retained.Reclaim = retainAll
	for name, c := range map[string]struct {
		situation plan.Situation
		want      plan.Next
	}{
		"nothing is known of it": {plan.Situation{}, plan.Next{}},

		"a claim whose pod runs with it is recorded": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Pod: podOn("node-1", "10.0.1.6"), Workload: standing},
			plan.Next{Step: plan.CreateRecord, Spec: spec}},
		"a claim whose pod is bound and has no address yet waits": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: standing}, plan.Next{}},
		"a claim whose pod runs with another IP is recorded": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Pod: podOn("node-1", "10.0.1.2"), Workload: standing},
			plan.Next{Step: plan.CreateRecord, Spec: spec}},
		"whom the condition Mismatch is about stays": {
			plan.Situation{Record: record(func(r *v1alpha1.FixedIP) { r.Status.Phase, r.Status.MismatchPodUID = v1alpha1.PhaseReserved, "pod-1" }), Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Pod: podOn("node-1", "10.0.1.6"), Workload: standing},
			plan.Next{Step: plan.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseInUse, PodUID: "pod-1", MismatchPodUID: "pod-1"}}},
		"a claim of what was asked for does not wait": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Asked: true, Pod: podOn("node-1", "10.0.1.2"), Workload: standing},
			plan.Next{Step: plan.CreateRecord, Spec: spec}},
		"a claim whose pod runs with another IP in one family is recorded": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.6", "fd00::6")}, Pod: podOn("node-1", "10.0.1.6", "fd00::2"), Workload: standing},
			plan.Next{Step: plan.CreateRecord, Spec: *both}},
		"a claim in a family that the node does not give is recorded all the same": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.6", "fd00::6")}, Pod: podOn("node-1", "10.0.1.6"), Workload: standing},
			plan.Next{Step: plan.CreateRecord, Spec: *both}},
		"of two claims that of the bind is recorded": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.6"), held("node-2", "10.0.2.6")}, Pod: podOn("node-1", "10.0.1.6"), Workload: standing},
			plan.Next{Step: plan.CreateRecord, Spec: spec}},
		"a claim whose pod is not bound yet waits": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Pod: podOn(""), Workload: standing}, plan.Next{}},
		"a claim whose pod was deleted before the bind waits for the next": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Workload: standing}, plan.Next{}},
		"a claim whose pod and workload are gone is released": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Workload: gone}, plan.Next{Step: plan.ReleaseEntries, Node: "node-1"}},
		"a claim beyond the replicas is released where the policy says Delete": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Workload: scaled(ptr.To(policy(v1alpha1.Delete, v1alpha1.Delete, 0)))},
			plan.Next{Step: plan.ReleaseEntries, Node: "node-1"}},
		"a claim beyond the replicas waits for the next pod where it says Retain": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Workload: scaled(ptr.To(policy(v1alpha1.Delete, v1alpha1.Retain, 0)))}, plan.Next{}},
		"a claim beyond the replicas waits where the policy can't be read": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Workload: scaled(nil)}, plan.Next{}},
		"a claim beyond the replicas whose pod is there yet stays": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Pod: podOn(""), Workload: scaled(ptr.To(policy(v1alpha1.Delete, v1alpha1.Delete, 0)))}, plan.Next{}},
		"an entry that a person wrote beyond the replicas stays": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Guessed: true, Workload: scaled(ptr.To(policy(v1alpha1.Delete, v1alpha1.Delete, 0)))}, plan.Next{}},
		"a claim whose workload is gone keeps its pod's address": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: gone}, plan.Next{}},
		"a pod that is bound elsewhere than its claim is not recorded": {
			plan.Situation{Held: []ledger.Holding{held("node-2", "10.0.2.6")}, Pod: podOn("node-1"), Workload: standing}, plan.Next{}},

		"of two addresses on one node that of the pod is recorded": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.5", "10.0.1.6")}, Pod: podOn("node-1", "10.0.1.6"), Workload: standing},
			plan.Next{Step: plan.CreateRecord, Spec: spec}},
		"and none while the pod has none yet": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.5", "10.0.1.6")}, Pod: podOn("node-1"), Workload: standing}, plan.Next{}},
		"an address beside the recorded one is released": {
			plan.Situation{Record: record(), Held: []ledger.Holding{held("node-1", "10.0.1.5", "10.0.1.6")}, Pod: podOn("node-1", "10.0.1.6"), Workload: standing},
			plan.Next{Step: plan.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.5")}}},
		"but not while the pod may have it": {
			plan.Situation{Record: record(), Held: []ledger.Holding{held("node-1", "10.0.1.5", "10.0.1.6")}, Pod: podOn("node-1"), Workload: standing}, plan.Next{}},
		"the record follows a subnet that was inherited": {
			plan.Situation{Record: record(), Held: []ledger.Holding{held("node-2", "10.0.1.6")}, Workload: standing},
			plan.Next{Step: plan.UpdateRecord, Spec: *onNode2}},
		"and what was inherited is not taken from it while its pod on the node that is gone is there": {
			plan.Situation{Record: record(), Held: []ledger.Holding{held("node-2", "10.0.2.9")}, Pod: podOn("node-1"), Workload: standing}, plan.Next{}},
		"an address of the other family is recorded too": {
			plan.Situation{Record: record(), Held: []ledger.Holding{held("node-1", "10.0.1.6", "fd00::6")}, Pod: podOn("node-1", "10.0.1.6", "fd00::6"), Workload: standing},
			plan.Next{Step: plan.UpdateRecord, Spec: *both}},
		"and then left to the pod": {
			plan.Situation{Record: record(func(r *v1alpha1.FixedIP) { r.Spec = *both }), Held: []ledger.Holding{held("node-1", "10.0.1.6", "fd00::6")}, Pod: podOn("node-1"), Workload: standing}, plan.Next{}},
		"not beside another address than the recorded one": {
			plan.Situation{Record: record(), Held: []ledger.Holding{held("node-1", "10.0.1.5", "fd00::6")}, Pod: podOn("node-1"), Workload: standing}, plan.Next{}},

		"all is well": {
			plan.Situation{Record: record(), Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: standing}, plan.Next{}},
		"the pod is there for the first time": {
			plan.Situation{Record: record(unfinished), Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: standing},
			plan.Next{Step: plan.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseInUse, PodUID: "pod-1"}}},
		"the pod is gone for now": {
			plan.Situation{Record: record(), Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Workload: standing},
			plan.Next{Step: plan.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved}}},
		"the workload was made anew": {
			plan.Situation{Record: record(), Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"),
				Workload: plan.Workload{OwnerReference: otherUID.Owner, Exists: true}},
			plan.Next{Step: plan.UpdateRecord, Spec: *otherUID}},
		"a record without addresses takes those that the pod was seen with": {
			plan.Situation{Record: record(func(r *v1alpha1.FixedIP) { r.Spec.IPs, r.Spec.NodeName = nil, "" }), Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Pod: podOn("node-1", "10.0.1.6"), Workload: standing},
			plan.Next{Step: plan.UpdateRecord, Spec: spec}},
		"the same address on another node is followed": {
			plan.Situation{Record: record(), Held: []ledger.Holding{held("node-2", "10.0.1.6")}, Pod: podOn("node-2"), Workload: standing},
			plan.Next{Step: plan.UpdateRecord, Spec: *onNode2}},
		"a claim that was left behind is released": {
			plan.Situation{Record: record(), Held: []ledger.Holding{held("node-1", "10.0.1.6"), held("node-2", "10.0.2.6")}, Pod: podOn("node-1"), Workload: standing},
			plan.Next{Step: plan.ReleaseEntries, Node: "node-2"}},
		"but not before it is sure which counts": {
			plan.Situation{Record: record(func(r *v1alpha1.FixedIP) { r.Status = v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved} }),
				Held: []ledger.Holding{held("node-1", "10.0.1.6"), held("node-2", "10.0.2.6")}, Pod: podOn(""), Workload: standing}, plan.Next{}},

		"the workload says what to do when its node can't take the pod": {
			plan.Situation{Record: record(), Held: mine, Pod: podOn("node-1"), Workload: withFailover("Migrate")},
			plan.Next{Step: plan.UpdateRecord, Spec: migrating("node-1")}},
		"and says nothing any more": {
			plan.Situation{Record: record(migrates), Held: mine, Pod: podOn("node-1"), Workload: withFailover("")},
			plan.Next{Step: plan.UpdateRecord, Spec: spec}},
		"what it says can't be read": {
			plan.Situation{Record: record(migrates), Held: mine, Pod: podOn("node-1"), Workload: standing}, plan.Next{}},
		"a claim is recorded with it": {
			plan.Situation{Held: mine, Pod: podOn("node-1", "10.0.1.6"), Workload: withFailover("Migrate")},
			plan.Next{Step: plan.CreateRecord, Spec: migrating("node-1")}},
		"an address that moved is followed": {
			plan.Situation{Record: record(migrates), Held: []ledger.Holding{held("node-2", "10.0.1.6")}, Away: awayAt("node-2"), Pod: podOn("node-2"), Workload: standing},
			plan.Next{Step: plan.UpdateRecord, Spec: migrating("node-2")}},
		"and stays": {
			plan.Situation{Record: record(migrates, on("node-2")), Held: []ledger.Holding{held("node-2", "10.0.1.6")}, Away: awayAt("node-2"), Pod: podOn("node-2"), Workload: standing},
			plan.Next{}},
		"a claim without a record that moved is recorded where it is": {
			plan.Situation{Held: []ledger.Holding{held("node-2", "10.0.1.6")}, Away: awayAt("node-2"), Pod: podOn("node-2", "10.0.1.6"), Workload: withFailover("Migrate")},
			plan.Next{Step: plan.CreateRecord, Spec: migrating("node-2")}},
		"a move under way is left alone": {
			plan.Situation{Record: record(migrates, reserved), Away: awayAt("node-2"), Arriving: []ledger.Holding{held("node-2", "10.0.1.6")}, Pod: podOn(""), Workload: standing},
			plan.Next{}},
		"and so is one whose pod is gone for now": {
			plan.Situation{Record: record(migrates, reserved), Away: awayAt("node-2"), Arriving: []ledger.Holding{held("node-2", "10.0.1.6")}, Workload: standing},
			plan.Next{}},
		"one that was only announced goes with the pod": {
			plan.Situation{Record: record(migrates, reserved), Held: mine, Arriving: []ledger.Holding{held("node-2", "10.0.1.6")}, Workload: standing},
			plan.Next{Step: plan.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"and so does one of a claim that nobody has recorded": {
			plan.Situation{Held: []ledger.Holding{held("node-3", "10.0.1.6")}, Away: awayAt("node-3"), Arriving: []ledger.Holding{held("node-2", "10.0.1.6")}, Workload: standing},
			plan.Next{Step: plan.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"which is left alone while its pod waits": {
			plan.Situation{Held: []ledger.Holding{held("node-3", "10.0.1.6")}, Away: awayAt("node-3"), Arriving: []ledger.Holding{held("node-2", "10.0.1.6")}, Pod: podOn(""), Workload: standing},
			plan.Next{}},
		"and is left alone while the pod waits": {
			plan.Situation{Record: record(migrates, reserved), Held: mine, Arriving: []ledger.Holding{held("node-2", "10.0.1.6")}, Pod: podOn(""), Workload: standing},
			plan.Next{}},
		"and while nobody says where the address is": {
			plan.Situation{Record: record(migrates, reserved), Arriving: []ledger.Holding{held("node-2", "10.0.1.6")}, Workload: standing},
			plan.Next{}},
		"an announcement that was left behind goes": {
			plan.Situation{Record: record(migrates), Held: mine, Arriving: []ledger.Holding{held("node-2", "10.0.1.6")}, Pod: podOn("node-1"), Workload: standing},
			plan.Next{Step: plan.ReleaseEntries, Node: "node-2"}},
		"and so does one of a pod that runs without it, and has nothing": {
			plan.Situation{Record: record(migrates), Arriving: []ledger.Holding{held("node-2", "10.0.1.6")}, Pod: podOn("node-2", "10.0.2.1"), Workload: standing},
			plan.Next{Step: plan.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"but not that of one that may come to have it": {
			plan.Situation{Record: record(migrates), Arriving: []ledger.Holding{held("node-2", "10.0.1.6")}, Pod: podOn("node-2"), Workload: standing},
			plan.Next{}},
		"and so does one on the node where the pod runs with an entry of its own": {
			plan.Situation{Record: record(migrates), Held: []ledger.Holding{mine[0], held("node-2", "10.0.2.5")}, Arriving: []ledger.Holding{held("node-2", "10.0.1.6")}, Pod: podOn("node-2", "10.0.2.5"), Workload: standing},
			plan.Next{Step: plan.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"also where the record has been before": {
			plan.Situation{Record: record(migrates, on("node-2")), Held: []ledger.Holding{held("node-2", "10.0.2.5")}, Away: awayAt("node-2"), Arriving: []ledger.Holding{held("node-2", "10.0.1.6")}, Pod: podOn("node-2", "10.0.2.5"), Workload: standing},
			plan.Next{Step: plan.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"but not before it runs": {
			plan.Situation{Record: record(migrates, on("node-2")), Held: []ledger.Holding{held("node-2", "10.0.2.5")}, Away: awayAt("node-2"), Arriving: []ledger.Holding{held("node-2", "10.0.1.6")}, Pod: podOn("node-2"), Workload: standing},
			plan.Next{}},
		"it goes with the record, too": {
			plan.Situation{Record: record(deleting), Held: []ledger.Holding{held("node-2", "10.0.2.5")}, Arriving: []ledger.Holding{held("node-2", "10.0.1.6")}, Pod: podOn("node-2", "10.0.2.5"), Workload: standing},
			plan.Next{Step: plan.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"and the record does not go before": {
			plan.Situation{Record: record(deleting), Held: []ledger.Holding{held("node-2", "10.0.2.5")}, Arriving: []ledger.Holding{held("node-2", "10.0.1.6")}, Pod: podOn("node-2"), Workload: standing},
			plan.Next{Step: plan.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReleasing, PodUID: "pod-1"}}},
		"nor is it taken from a pod that may come to have it": {
			plan.Situation{Record: record(deleting), Arriving: []ledger.Holding{held("node-2", "10.0.1.6")}, Pod: podOn("node-2"), Workload: standing},
			plan.Next{Step: plan.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReleasing, PodUID: "pod-1"}}},
		"an absence of the recorded address does not end while the record stands": {
			plan.Situation{Record: record(migrates), Away: leavingFrom("node-2", true), Pod: podOn("node-1"), Workload: standing}, plan.Next{}},
		"released: an address that moved is taken where it is": {
			plan.Situation{Record: record(deleting, on("node-2")), Held: []ledger.Holding{held("node-2", "10.0.1.6")}, Away: awayAt("node-2"), Workload: gone},
			plan.Next{Step: plan.ReleaseEntries, Node: "node-2"}},
		"then its home says that it leaves": {
			plan.Situation{Record: record(deleting, on("node-2")), Away: awayAt("node-2"), Workload: gone},
			plan.Next{Step: plan.Depart, Node: "node-1", From: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"then its way there is barred": {
			plan.Situation{Record: record(deleting, on("node-2")), Away: leavingFrom("node-2", false), Workload: gone},
			plan.Next{Step: plan.Bar, Node: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"then it rests at home": {
			plan.Situation{Record: record(deleting, on("node-2")), Away: leavingFrom("node-2", true), Workload: gone},
			plan.Next{Step: plan.ReleaseHome, Node: "node-1", From: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}, Generation: 7}},
		"but not while the agent there lists it": {
			plan.Situation{Record: record(deleting, on("node-2")), Away: listed(leavingFrom("node-2", true)), Workload: gone},
			plan.Next{At: now.Add(10 * time.Second)}},
		"unless the record should have been gone": {
			plan.Situation{Record: record(deleting, on("node-2")), Away: listed(leavingFrom("node-2", true)), Workload: gone, Deadline: time.Hour},
			plan.Next{Step: plan.ReleaseHome, Node: "node-1", From: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}, Generation: 7}},
		"what is announced goes before": {
			plan.Situation{Record: record(deleting), Away: awayAt("node-2"), Arriving: []ledger.Holding{held("node-2", "10.0.1.6")}, Workload: gone},
			plan.Next{Step: plan.ReleaseEntries, Node: "node-2"}},
		"and without a record the same": {
			plan.Situation{Away: leavingFrom("node-2", true), Workload: gone},
			plan.Next{Step: plan.ReleaseHome, Node: "node-1", From: "node-2", Addrs: []netip.Addr{addr("10.0.1.6")}, Generation: 7}},
		"nor while the agent lists it": {
			plan.Situation{Away: listed(leavingFrom("node-2", true)), Workload: gone}, plan.Next{At: now.Add(10 * time.Second)}},
		"but not while the workload stands": {
			plan.Situation{Away: leavingFrom("node-2", true), Workload: standing}, plan.Next{}},
		"deleted while its pod runs where it moved to": {
			plan.Situation{Record: record(deleting, on("node-2")), Held: []ledger.Holding{held("node-2", "10.0.1.6")}, Away: awayAt("node-2"), Pod: podOn("node-2"), Workload: standing},
			plan.Next{Step: plan.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReleasing, PodUID: "pod-1"}}},

		"a pod that was to get another address elsewhere has it": {
			plan.Situation{Record: record(reassigns), Held: []ledger.Holding{mine[0], held("node-2", "10.0.2.6")}, Pod: podOn("node-2", "10.0.2.6"), Workload: standing},
			plan.Next{Step: plan.ReplaceRecord}},
		"it was to by default": {
			plan.Situation{Record: record(), Failover: v1alpha1.Reassign, Held: []ledger.Holding{mine[0], held("node-2", "10.0.2.6")}, Pod: podOn("node-2"), Workload: standing},
			plan.Next{Step: plan.ReplaceRecord}},
		"it was not to": {
			plan.Situation{Record: record(migrates), Failover: v1alpha1.Reassign, Held: []ledger.Holding{mine[0], held("node-2", "10.0.2.6")}, Pod: podOn("node-2"), Workload: standing},
			plan.Next{}},
		"it has not got it yet": {
			plan.Situation{Record: record(reassigns), Held: []ledger.Holding{mine[0], held("node-2", "10.0.2.6")}, Pod: podOn(""), Workload: standing},
			plan.Next{Step: plan.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved}}},
		"it got one of another family alone": {
			plan.Situation{Record: record(reassigns), Held: []ledger.Holding{mine[0], held("node-2", "fd00::6")}, Pod: podOn("node-2"), Workload: standing}, plan.Next{}},
		"it runs with the old one all the same": {
			plan.Situation{Record: record(reassigns), Held: []ledger.Holding{mine[0], held("node-2", "10.0.2.6")}, Pod: podOn("node-2", "10.0.1.6"), Workload: standing}, plan.Next{}},
		"what it had is released": {
			plan.Situation{Record: record(reassigns, deleting), Held: []ledger.Holding{mine[0], held("node-2", "10.0.2.6")}, Pod: podOn("node-2"), Workload: standing},
			plan.Next{Step: plan.ReleaseEntries, Node: "node-1"}},
		"and where it had moved to before": {
			plan.Situation{Record: record(reassigns, deleting), Held: []ledger.Holding{held("node-2", "10.0.2.6")}, Away: awayAt("node-3"), Pod: podOn("node-2"), Workload: standing},
			plan.Next{Step: plan.Depart, Node: "node-1", From: "node-3", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"and the record makes way": {
			plan.Situation{Record: record(reassigns, deleting), Held: []ledger.Holding{held("node-2", "10.0.2.6")}, Pod: podOn("node-2"), Workload: standing},
			plan.Next{Step: plan.FinishRecord}},

		"made beforehand, the workload is yet to come": {
			plan.Situation{Record: record(beforehand, func(r *v1alpha1.FixedIP) { r.Finalizers = []string{v1alpha1.Finalizer} }), Workload: plan.Workload{OwnerReference: unborn}},
			plan.Next{}},
		"made beforehand, it gets the finalizer": {
			plan.Situation{Record: record(beforehand), Workload: plan.Workload{OwnerReference: unborn}},
			plan.Next{Step: plan.UpdateRecord, Spec: v1alpha1.FixedIPSpec{IPs: spec.IPs, Owner: unborn, PodName: spec.PodName, Reclaim: spec.Reclaim}}},
		"made beforehand, the workload has come": {
			plan.Situation{Record: record(beforehand), Pod: podOn(""), Workload: standing},
			plan.Next{Step: plan.UpdateRecord, Spec: v1alpha1.FixedIPSpec{IPs: spec.IPs, Owner: mysql, PodName: spec.PodName, Reclaim: spec.Reclaim}}},
		"made beforehand, the pod is placed": {
			plan.Situation{Record: record(beforehand), Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: standing},
			plan.Next{Step: plan.UpdateRecord, Spec: spec}},

		"the workload is gone, the pod is not": {
			plan.Situation{Record: record(), Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: gone}, plan.Next{}},
		"the workload and the pod are gone": {
			plan.Situation{Record: record(), Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Workload: gone}, plan.Next{Step: plan.DeleteRecord}},
		"the workload is gone and its addresses are retained": {
			plan.Situation{Record: kept(policy("Retain", "Retain", 0)), Held: mine, Workload: gone}, plan.Next{}},
		"the workload is gone, and its addresses have time to live": {
			plan.Situation{Record: kept(policy("Delete", "Retain", time.Hour)), Held: mine, Workload: gone},
			plan.Next{Step: plan.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved, ExpiresAt: &metav1.Time{Time: now.Add(time.Hour)}}, At: now.Add(time.Hour)}},
		"the time to live is not over": {
			plan.Situation{Record: kept(policy("Delete", "Retain", time.Hour), now.Add(time.Second)), Held: mine, Workload: gone}, plan.Next{At: now.Add(time.Second)}},
		"the time to live is over": {
			plan.Situation{Record: kept(policy("Delete", "Retain", time.Hour), now), Held: mine, Workload: gone}, plan.Next{Step: plan.DeleteRecord}},
		"the pod is back within the time to live": {
			plan.Situation{Record: kept(policy("Delete", "Retain", time.Hour), now.Add(time.Second)), Held: mine, Pod: podOn("node-1"), Workload: standing},
			plan.Next{Step: plan.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseInUse, PodUID: "pod-1"}}},
		"the workload is back within the time to live, its pod is not": {
			plan.Situation{Record: kept(policy("Delete", "Retain", time.Hour), now.Add(time.Second)), Held: mine, Workload: standing},
			plan.Next{Step: plan.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved}}},
		"scaled down, the address is retained": {
			plan.Situation{Record: kept(identity.DefaultReclaim()), Held: mine, Workload: scaled(nil)}, plan.Next{}},
		"scaled down, the address goes back": {
			plan.Situation{Record: kept(policy("Retain", "Delete", 0)), Held: mine, Workload: scaled(nil)}, plan.Next{Step: plan.DeleteRecord}},
		"scaled down, the pod still runs": {
			plan.Situation{Record: record(func(r *v1alpha1.FixedIP) { r.Spec.Reclaim = policy("Retain", "Delete", 0) }), Held: mine, Pod: podOn("node-1"), Workload: scaled(nil)}, plan.Next{}},
		"the workload changes its mind": {
			plan.Situation{Record: kept(identity.DefaultReclaim()), Held: mine, Workload: scaled(&retainAll)}, plan.Next{Step: plan.UpdateRecord, Spec: *retained}},

		"deleted while the pod runs": {
			plan.Situation{Record: record(deleting), Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: standing},
			plan.Next{Step: plan.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReleasing, PodUID: "pod-1"}}},
		"deleted and the pod is gone": {
			plan.Situation{Record: record(deleting), Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Workload: standing}, plan.Next{Step: plan.ReleaseEntries, Node: "node-1"}},
		"deleted while the next pod waits for it": {
			plan.Situation{Record: record(deleting), Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Pod: podOn(""), Workload: standing}, plan.Next{Step: plan.ReleaseEntries, Node: "node-1"}},
		"deleted and released": {
			plan.Situation{Record: record(deleting), Workload: standing}, plan.Next{Step: plan.FinishRecord}},
		"deleted and finished": {
			plan.Situation{Record: record(deleting, func(r *v1alpha1.FixedIP) { r.Finalizers = []string{"somebody/else"} }), Workload: standing}, plan.Next{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, plan.Decide(at(c.situation)), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got): %s", diff)
			}
		})
	}
}

// at puts a situation at the time of the test.
func at(s plan.Situation) plan.Situation {
	s.Now = now
	return s
}
