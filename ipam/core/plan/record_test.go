package plan_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
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
	spec     = v1alpha1.FixedIPSpec{IPs: []string{"10.0.1.6"}, NodeName: "node-1", Owner: mysql, PodName: "mysql-0"}
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

func deleting(r *v1alpha1.FixedIP)   { r.DeletionTimestamp = &metav1.Time{} }
func unfinished(r *v1alpha1.FixedIP) { r.Status = v1alpha1.FixedIPStatus{} }

func TestDecide(t *testing.T) {
	otherUID := spec.DeepCopy()
	otherUID.Owner.UID = "sts-2"
	onNode2 := spec.DeepCopy()
	onNode2.NodeName = "node-2"
	for name, c := range map[string]struct {
		situation plan.Situation
		want      plan.Next
	}{
		"nothing is known of it": {plan.Situation{}, plan.Next{}},

		"a claim whose pod is bound is recorded": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: standing},
			plan.Next{Step: plan.CreateRecord, Spec: spec}},
		"of two claims that of the bind is recorded": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.6"), held("node-2", "10.0.2.6")}, Pod: podOn("node-1"), Workload: standing},
			plan.Next{Step: plan.CreateRecord, Spec: spec}},
		"a claim whose pod is not bound yet waits": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Pod: podOn(""), Workload: standing}, plan.Next{}},
		"a claim whose pod was deleted before the bind waits for the next": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Workload: standing}, plan.Next{}},
		"a claim whose pod and workload are gone is released": {
			plan.Situation{Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Workload: gone}, plan.Next{Step: plan.ReleaseEntries, Node: "node-1"}},
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
		"an address of the other family is left to the pod": {
			plan.Situation{Record: record(), Held: []ledger.Holding{held("node-1", "10.0.1.6", "fd00::6")}, Pod: podOn("node-1", "10.0.1.6", "fd00::6"), Workload: standing}, plan.Next{}},

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
		"a record without addresses takes those of the claim": {
			plan.Situation{Record: record(func(r *v1alpha1.FixedIP) { r.Spec.IPs, r.Spec.NodeName = nil, "" }), Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: standing},
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

		"the workload is gone, the pod is not": {
			plan.Situation{Record: record(), Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Pod: podOn("node-1"), Workload: gone}, plan.Next{}},
		"the workload and the pod are gone": {
			plan.Situation{Record: record(), Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Workload: gone}, plan.Next{Step: plan.DeleteRecord}},
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
			if diff := cmp.Diff(c.want, plan.Decide(c.situation), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got): %s", diff)
			}
		})
	}
}
