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

// TestOptedOut checks that the addresses of a workload that opts out are released as if the workload were deleted, each one
// only when no pod can have it any more.
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
		situation reclaim.State
		want      reclaim.Action
	}{
		"its pod is yet to be restarted":            {reclaim.State{Record: record(), Held: mine, Pod: podOn("node-1", "10.0.1.6"), Workload: out}, reclaim.Action{}},
		"its pod is gone":                           {reclaim.State{Record: kept(spec.Reclaim), Held: mine, Workload: out}, reclaim.Action{Type: reclaim.DeleteRecord}},
		"its next pod waits":                        {reclaim.State{Record: kept(spec.Reclaim), Held: mine, Pod: without(podOn("")), Workload: out}, reclaim.Action{Type: reclaim.DeleteRecord}},
		"its next pod runs elsewhere":               {reclaim.State{Record: kept(spec.Reclaim), Held: mine, Pod: without(podOn("node-2", "10.0.2.3")), Workload: out}, reclaim.Action{Type: reclaim.DeleteRecord}},
		"its next pod runs with another":            {reclaim.State{Record: kept(spec.Reclaim), Held: mine, Pod: without(podOn("node-1", "10.0.1.1")), Workload: out}, reclaim.Action{Type: reclaim.DeleteRecord}},
		"its next pod uses the network of its node": {reclaim.State{Record: kept(spec.Reclaim), Held: mine, Pod: onHost(podOn("node-1", "192.0.2.1")), Workload: out}, reclaim.Action{Type: reclaim.DeleteRecord}},
		"its next pod got it all the same":          {reclaim.State{Record: record(), Held: mine, Pod: without(podOn("node-1", "10.0.1.6")), Workload: out}, reclaim.Action{}},
		"its next pod may get it":                   {reclaim.State{Record: record(), Held: mine, Pod: without(podOn("node-1")), Workload: out}, reclaim.Action{}},
		"and retains":                               {reclaim.State{Record: kept(policy("Retain", "Retain", 0)), Held: mine, Workload: out}, reclaim.Action{}},
		"and has time to live": {reclaim.State{Record: kept(policy("Delete", "Retain", time.Hour)), Held: mine, Workload: out},
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved, ExpiresAt: &metav1.Time{Time: now.Add(time.Hour)}}, At: now.Add(time.Hour)}},

		"deleted, and the pod runs without it":   {reclaim.State{Record: record(deleting), Held: mine, Pod: without(podOn("node-1", "10.0.1.1")), Workload: out}, release},
		"deleted, and the pod runs elsewhere":    {reclaim.State{Record: record(deleting), Held: mine, Pod: without(podOn("node-2", "10.0.2.3")), Workload: out}, release},
		"without a record, and the pod is gone":  {reclaim.State{Held: mine, Workload: out}, release},
		"without a record, and the pod has it":   {reclaim.State{Held: mine, Pod: without(podOn("node-1", "10.0.1.6")), Workload: out}, reclaim.Action{}},
		"written by hand for one that opted out": {reclaim.State{Held: mine, Workload: out, Guessed: true}, reclaim.Action{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, decide(at(c.situation)), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got): %s", diff)
			}
		})
	}
}

// TestDeadline checks that a FixedIP that is being deleted waits for its pod: until the deadline if the node of the pod has
// no entry for it, otherwise without a limit.
func TestDeadline(t *testing.T) {
	deleted := record(func(r *v1alpha1.FixedIP) { r.DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Minute)} })
	releasing := v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReleasing, PodUID: "pod-1"}
	deleted.Status = releasing
	for name, c := range map[string]struct {
		situation reclaim.State
		want      reclaim.Action
	}{
		"its pod has it":                    {reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: podOn("node-1", "10.0.1.6"), Deadline: time.Second}, reclaim.Action{}},
		"its node is gone, and the pod not": {reclaim.State{Pod: podOn("node-1", "10.0.1.6"), Deadline: time.Hour}, reclaim.Action{At: now.Add(59 * time.Minute)}},
		"and it is overdue":                 {reclaim.State{Pod: podOn("node-1", "10.0.1.6"), Deadline: time.Minute}, reclaim.Action{Type: reclaim.FinishRecord}},
		"its pod runs with another":         {reclaim.State{Pod: podOn("node-1", "10.0.1.7"), Deadline: time.Hour}, reclaim.Action{Type: reclaim.FinishRecord}},
	} {
		t.Run(name, func(t *testing.T) {
			c.situation.Record, c.situation.Workload = deleted, standing
			if diff := cmp.Diff(c.want, decide(at(c.situation))); diff != "" {
				t.Errorf("(-want +got): %s", diff)
			}
		})
	}
}

// TestNewAndRestoredFixedIPs checks that a FixedIP whose controller was killed between its creation and the write of its
// status is not taken for a restored one, from which only the UID annotation distinguishes it. The address of the new one
// is released after its workload is deleted; the restored one waits for its workload. Finding C6.
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
		"new, its workload gone":         {as(""), reclaim.Action{Type: reclaim.UpdateRecord, Spec: spec}},
		"then it is marked":              {as("fip-1"), reclaim.Action{Type: reclaim.DeleteRecord}},
		"restored before its workload":   {as("of-another-life"), reclaim.Action{Type: reclaim.UpdateRecord, Spec: *orphaned}},
		"then it waits for the workload": {as("fip-1", func(r *v1alpha1.FixedIP) { r.Spec = *orphaned }), reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved}}},
	} {
		t.Run(name, func(t *testing.T) {
			workload := reclaim.Workload{OwnerReference: c.record.Spec.Owner}
			if diff := cmp.Diff(c.want, decide(at(reclaim.State{Record: c.record, Held: mine, Workload: workload})), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got): %s", diff)
			}
		})
	}
}

// TestBriefGap checks that a FixedIP is reported as reserved only if its pod has been gone for Gap, so that a restart costs
// one write of the status.
func TestBriefGap(t *testing.T) {
	mine := []ledger.NodeAddresses{held("node-1", "10.0.1.6")}
	reserve := reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved}}
	for name, c := range map[string]struct {
		record *v1alpha1.FixedIP
		idle   time.Time
		want   reclaim.Action
	}{
		"its pod has just gone":         {record(), now, reclaim.Action{At: now.Add(reclaim.Gap)}},
		"its pod went a while ago":      {record(), now.Add(-reclaim.Gap), reserve},
		"it is not known since when":    {record(), time.Time{}, reserve},
		"it was never reported as used": {record(unfinished), now, reserve},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, decide(at(reclaim.State{Record: c.record, Held: mine, Workload: standing, Idle: c.idle}))); diff != "" {
				t.Errorf("(-want +got): %s", diff)
			}
		})
	}
}
