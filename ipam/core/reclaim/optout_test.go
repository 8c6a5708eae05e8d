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

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/reclaim"
)

// unschedulable adds the condition that a scheduler has found no node for the pod, and returns the pod.
func unschedulable(pod *corev1.Pod) *corev1.Pod {
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	return pod
}

// TestOptedOut checks that the addresses of a workload that opts out are released as if the workload were deleted, but not
// while a pod may use them.
func TestOptedOut(t *testing.T) {
	mine := []ledger.NodeAddresses{held("node-1", "10.0.1.6")}
	out := reclaim.Workload{OwnerReference: mysql, Exists: true, OptsOut: true}
	without := func(pod *corev1.Pod) *corev1.Pod {
		pod.Annotations = map[string]string{identity.AnnotationEnabled: "false"}
		return pod
	}
	onHost := func(pod *corev1.Pod) *corev1.Pod {
		pod.Spec.HostNetwork = true
		return pod
	}
	release := reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1"}
	for name, c := range map[string]struct {
		state reclaim.State
		want  reclaim.Action
	}{
		"the pod has not been restarted yet":      {reclaim.State{Record: record(), Held: mine, Pod: podOn("node-1", "10.0.1.6"), Workload: out}, reclaim.Action{}},
		"no pod exists":                           {reclaim.State{Record: reservedRecord(spec.Reclaim), Held: mine, Workload: out}, reclaim.Action{Type: reclaim.DeleteRecord}},
		"the next pod is not bound":               {reclaim.State{Record: reservedRecord(spec.Reclaim), Held: mine, Pod: without(podOn("")), Workload: out}, reclaim.Action{Type: reclaim.DeleteRecord}},
		"the next pod runs on another node":       {reclaim.State{Record: reservedRecord(spec.Reclaim), Held: mine, Pod: without(podOn("node-2", "10.0.2.3")), Workload: out}, reclaim.Action{Type: reclaim.DeleteRecord}},
		"the next pod runs with another IP":       {reclaim.State{Record: reservedRecord(spec.Reclaim), Held: mine, Pod: without(podOn("node-1", "10.0.1.1")), Workload: out}, reclaim.Action{Type: reclaim.DeleteRecord}},
		"the next pod uses the host network":      {reclaim.State{Record: reservedRecord(spec.Reclaim), Held: mine, Pod: onHost(podOn("node-1", "192.0.2.1")), Workload: out}, reclaim.Action{Type: reclaim.DeleteRecord}},
		"the next pod runs with the address":      {reclaim.State{Record: record(), Held: mine, Pod: without(podOn("node-1", "10.0.1.6")), Workload: out}, reclaim.Action{}},
		"the next pod is bound and has no IP yet": {reclaim.State{Record: record(), Held: mine, Pod: without(podOn("node-1")), Workload: out}, reclaim.Action{}},
		"whenDeleted is Retain":                   {reclaim.State{Record: reservedRecord(policy("Retain", "Retain", 0)), Held: mine, Workload: out}, reclaim.Action{}},
		// A pod without a fixed address takes no address to another node.
		"Migrate, whenDeleted is Retain, no node can take the next pod": {
			reclaim.State{Record: reservedRecord(policy("Retain", "Retain", 0)), Failover: v1alpha1.Migrate, Held: mine, Pod: without(unschedulable(podOn(""))), Workload: out}, reclaim.Action{}},
		"Migrate, no node can take a pod that has not opted out": {
			reclaim.State{Record: reservedRecord(policy("Retain", "Retain", 0)), Failover: v1alpha1.Migrate, Held: mine, Pod: unschedulable(podOn("")), Workload: existing},
			reclaim.Action{Type: reclaim.AllowMove, Node: "node-1", Addrs: mine[0].Addrs, Status: v1alpha1.FixedIPStatus{MovableFor: "uid-mysql-0"}}},
		"Migrate, no FixedIP, no node can take the next pod, its workload has not opted out": {
			reclaim.State{Failover: v1alpha1.Migrate, Held: mine, Pod: without(unschedulable(podOn(""))), Workload: existing}, reclaim.Action{}},
		"the TTL begins": {reclaim.State{Record: reservedRecord(policy("Delete", "Retain", time.Hour)), Held: mine, Workload: out},
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{ExpiresAt: &metav1.Time{Time: now.Add(time.Hour)}}, At: now.Add(time.Hour)}},

		"FixedIP deleted, the pod runs with another IP": {reclaim.State{Record: record(deleting), Held: mine, Pod: without(podOn("node-1", "10.0.1.1")), Workload: out}, release},
		"FixedIP deleted, the pod runs on another node": {reclaim.State{Record: record(deleting), Held: mine, Pod: without(podOn("node-2", "10.0.2.3")), Workload: out}, release},
		"no FixedIP, no pod exists":                     {reclaim.State{Held: mine, Workload: out}, release},
		"no FixedIP, the pod runs with the address":     {reclaim.State{Held: mine, Pod: without(podOn("node-1", "10.0.1.6")), Workload: out}, reclaim.Action{}},
		"no FixedIP, a user wrote the entry":            {reclaim.State{Held: mine, Workload: out, OwnerInferred: true}, reclaim.Action{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, decide(at(c.state)), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("Decide (-want +got): %s", diff)
			}
		})
	}
}

// TestDeadline checks that a FixedIP that is being deleted waits for a pod that may have its address: until the deadline if the
// node of the pod has no entry for the pod, otherwise without a limit.
func TestDeadline(t *testing.T) {
	deleted := record(func(r *v1alpha1.FixedIP) { r.DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Minute)} })
	releasing := v1alpha1.FixedIPStatus{PodUID: "uid-mysql-0"}
	deleted.Status = releasing
	for name, c := range map[string]struct {
		state reclaim.State
		want  reclaim.Action
	}{
		"the pod runs with its entry":                                   {reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1", "10.0.1.6"), Deadline: time.Second}, reclaim.Action{}},
		"the node has no entry, the pod runs with the address":          {reclaim.State{Pod: podOn("node-1", "10.0.1.6"), Deadline: time.Hour}, reclaim.Action{At: now.Add(59 * time.Minute)}},
		"the node has no entry, the pod runs with the address, overdue": {reclaim.State{Pod: podOn("node-1", "10.0.1.6"), Deadline: time.Minute}, reclaim.Action{Type: reclaim.FinishRecord}},
		"the node has no entry, the pod runs with another IP":           {reclaim.State{Pod: podOn("node-1", "10.0.1.7"), Deadline: time.Hour}, reclaim.Action{Type: reclaim.FinishRecord}},
	} {
		t.Run(name, func(t *testing.T) {
			c.state.Record, c.state.Workload = deleted, existing
			if diff := cmp.Diff(c.want, decide(at(c.state))); diff != "" {
				t.Errorf("Decide (-want +got): %s", diff)
			}
		})
	}
}

// TestNewAndRestoredFixedIPs checks that a FixedIP without a status is not taken for a restored one if the controller was
// killed right after creating it. Only the UID annotation distinguishes the two. The address of the new FixedIP is
// released after its workload is deleted; the restored FixedIP waits for its workload (finding C6 in
// docs/project/findings.md).
func TestNewAndRestoredFixedIPs(t *testing.T) {
	as := func(annotation string, change ...func(*v1alpha1.FixedIP)) *v1alpha1.FixedIP {
		r := record(unfinished)
		r.UID = "fip-1"
		if annotation != "" {
			r.Annotations = map[string]string{v1alpha1.AnnotationUID: annotation}
		}
		for _, c := range change {
			c(r)
		}
		return r
	}
	orphaned := spec.DeepCopy()
	orphaned.Owner.UID = ""
	mine := []ledger.NodeAddresses{held("node-1", "10.0.1.6")}
	for name, c := range map[string]struct {
		record *v1alpha1.FixedIP
		want   reclaim.Action
	}{
		"new, not marked, the workload is deleted":      {as(""), reclaim.Action{Type: reclaim.UpdateRecord, Spec: spec}},
		"new, marked, the workload is deleted":          {as("fip-1"), reclaim.Action{Type: reclaim.DeleteRecord}},
		"restored, the workload does not exist":         {as("uid-before-restore"), reclaim.Action{Type: reclaim.UpdateRecord, Spec: *orphaned}},
		"restored, marked, the workload does not exist": {as("fip-1", func(r *v1alpha1.FixedIP) { r.Spec = *orphaned }), reclaim.Action{}},
	} {
		t.Run(name, func(t *testing.T) {
			workload := reclaim.Workload{OwnerReference: c.record.Spec.Owner}
			if diff := cmp.Diff(c.want, decide(at(reclaim.State{Record: c.record, Held: mine, Workload: workload})), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("Decide (-want +got): %s", diff)
			}
		})
	}
}

// TestBriefGap checks that a FixedIP is reported as in use until its pod has been gone for Gap, so that a restart of the pod
// costs one write of the status.
func TestBriefGap(t *testing.T) {
	mine := []ledger.NodeAddresses{held("node-1", "10.0.1.6")}
	// No home is known in these rows, so status.movableFor names the pod, which may have run on a node other than the home.
	reserve := reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{MovableFor: "uid-mysql-0"}}
	for name, c := range map[string]struct {
		record *v1alpha1.FixedIP
		idle   time.Time
		want   reclaim.Action
	}{
		"the pod was deleted now":             {record(), now, reclaim.Action{At: now.Add(reclaim.Gap)}},
		"the pod was deleted a Gap ago":       {record(), now.Add(-reclaim.Gap), reserve},
		"the time of the deletion is unknown": {record(), time.Time{}, reserve},
		"no pod has used the addresses":       {record(unfinished), now, reclaim.Action{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, decide(at(reclaim.State{Record: c.record, Held: mine, Workload: existing, Idle: c.idle}))); diff != "" {
				t.Errorf("Decide (-want +got): %s", diff)
			}
		})
	}
}
