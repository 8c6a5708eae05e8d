// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/conformance"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/test/gen"
)

var now = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func held(node string, ips ...string) ledger.NodeAddresses {
	return ledger.NodeAddresses{Node: node, Addrs: addrs(ips...)}
}

// podOn returns pod mysql-0 on a node, with IPs.
func podOn(node string, ips ...string) *corev1.Pod { return gen.Pod("mysql-0", gen.On(node, ips...)) }

// next returns the next pod with the name mysql-0. The clock of the API server that created it is an hour behind.
func next(ips ...string) *corev1.Pod {
	p := podOn("node-1", ips...)
	p.UID, p.CreationTimestamp = "pod-2", metav1.NewTime(now.Add(-time.Hour))
	return p
}

func record(change ...func(*v1alpha1.FixedIP)) *v1alpha1.FixedIP {
	return gen.FixedIP("mysql-0", change...)
}

// reported returns a FixedIP whose condition AsReserved was written at the time now minus ago. The condition is True for
// ReasonAsReserved, and otherwise False and about the pod of podOn.
func reported(ago time.Duration, reason, message string) *v1alpha1.FixedIP {
	return record(func(r *v1alpha1.FixedIP) {
		status := metav1.ConditionFalse
		if reason == conformance.ReasonAsReserved {
			status = metav1.ConditionTrue
		}
		conformance.SetAsReserved(&r.Status, metav1.Condition{Type: "AsReserved", Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now.Add(-ago))}, podOn("node-1"))
	})
}

// withOtherAddress adds the condition Allocated with status False to a FixedIP: its IP gets no entry while the pool has
// another IP for the pod.
func withOtherAddress(r *v1alpha1.FixedIP) *v1alpha1.FixedIP {
	r.Status.Conditions = append(r.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionAllocated, Status: metav1.ConditionFalse, Reason: "OtherAddressAllocated"})
	return r
}

// movedTo returns the address 10.0.1.6 as its home node-2 records it: moved to a node, or about to leave that node.
func movedTo(node string, leaving bool) []ledger.RemoteAddresses {
	return []ledger.RemoteAddresses{{Home: "node-2", At: node, Leaving: leaving, Addrs: []netip.Addr{netip.MustParseAddr("10.0.1.6")}}}
}

func TestDecide(t *testing.T) {
	const (
		wrong      = "Pod db/mysql-0 runs with 10.0.1.2 on node node-1, but 10.0.1.6 is reserved for the pod"
		noPool     = wrong + "; no pool has an entry of IP 10.0.1.6 for the pod, and a restart does not help before a pool has one; see the condition Allocated of FixedIP mysql-0"
		elsewhere  = wrong + "; the pool of node node-2 has IP 10.0.1.6 for the pod, but the next pod may be placed elsewhere, so the pod is not evicted; if another scheduler places the pod, set schedulerName in the pod template to a profile of fixedip-scheduler; then delete the pod"
		infeasible = wrong + "; the pool of node node-2 has IP 10.0.1.6 for the pod, but that node cannot take the next pod now, so the pod is not evicted; make sure that the node can take the pod, then delete the pod"
		returns    = wrong + "; the pool of node node-2 has IP 10.0.1.6 for the pod, and the scheduler can place the next pod there"
		lost       = wrong + "; IP 10.0.1.6 was moved to node node-1, whose pool does not have the entry; the scheduler writes the entry for the next pod"
		otherIP    = wrong + "; IP 10.0.1.6 has no entry as long as the pool has another IP for the pod; the next pod gets the reserved IP"
		noEndpoint = "Pod db/mysql-0 runs with 10.0.1.6 on node node-1 and has no CiliumEndpoint, so other nodes may not reach it"
		barePod    = "; the pod is not evicted, because it is a bare pod; delete the pod and create it again"
		reportOnly = "; its mismatch policy is Report, so the pod is not evicted; delete the pod, or set the annotation fixedip.io/mismatch-policy of its workload to Restart"
		asReserved = "In every family in which pod db/mysql-0 has an IP and a reserved IP, the two are the same"
	)
	mine := []ledger.NodeAddresses{held("node-1", "10.0.1.6")}
	both := []ledger.NodeAddresses{held("node-1", "10.0.1.6", "fd00::6")}
	other := []ledger.NodeAddresses{held("node-1", "10.0.1.2")}
	twoNodes := []ledger.NodeAddresses{held("node-1", "10.0.1.2"), held("node-2", "10.0.1.6")}
	setCondition := func(reason, message string) conformance.Action {
		status := metav1.ConditionFalse
		if reason == conformance.ReasonAsReserved {
			status = metav1.ConditionTrue
		}
		return conformance.Action{Type: conformance.SetCondition, Condition: metav1.Condition{Type: "AsReserved", Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now)}}
	}
	restart := func(message string) conformance.Action {
		v := setCondition(conformance.ReasonRestarting, message)
		v.Type = conformance.EvictPod
		return v
	}
	for name, c := range map[string]struct {
		state conformance.PodState
		// noEndpoint is true if the pod has no CiliumEndpoint.
		noEndpoint bool
		// report is true if the mismatch policy is Report.
		report bool
		want   conformance.Action
	}{
		"no pod":                   {state: conformance.PodState{FixedIP: record(), Held: mine}},
		"pod without IPs":          {state: conformance.PodState{FixedIP: record(), Held: mine, Pod: podOn("node-1")}},
		"pod with the reserved IP": {state: conformance.PodState{FixedIP: record(), Held: mine, Pod: podOn("node-1", "10.0.1.6")}},
		"terminating pod": {state: conformance.PodState{FixedIP: record(), Held: mine, Pod: func() *corev1.Pod {
			p := podOn("node-1", "10.0.1.2")
			p.DeletionTimestamp = &metav1.Time{}
			return p
		}()}},
		"failed pod": {state: conformance.PodState{FixedIP: record(), Held: mine, Pod: func() *corev1.Pod {
			p := podOn("node-1", "10.0.1.2")
			p.Status.Phase = corev1.PodFailed
			return p
		}()}},
		"FixedIP is being deleted": {state: conformance.PodState{FixedIP: record(func(r *v1alpha1.FixedIP) { r.DeletionTimestamp = &metav1.Time{Time: now} }), Held: mine, Pod: podOn("node-1", "10.0.1.2")}},

		"bare pod with another IP":                        {state: conformance.PodState{BarePod: true, FixedIP: record(), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: setCondition(conformance.ReasonWrongAddress, wrong+barePod)},
		"bare pod with another IP, reported an hour ago":  {state: conformance.PodState{BarePod: true, FixedIP: reported(time.Hour, conformance.ReasonWrongAddress, wrong+barePod), Held: mine, Pod: podOn("node-1", "10.0.1.2")}},
		"bare pod with another IP, no pool has the entry": {state: conformance.PodState{BarePod: true, FixedIP: record(), Pod: podOn("node-1", "10.0.1.2")}, want: setCondition(conformance.ReasonNoPoolEntry, noPool)},

		"another IP":                        {state: conformance.PodState{FixedIP: record(), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: setCondition(conformance.ReasonWrongAddress, wrong)},
		"another IP, no pool has the entry": {state: conformance.PodState{FixedIP: record(), Pod: podOn("node-1", "10.0.1.2")}, want: setCondition(conformance.ReasonNoPoolEntry, noPool)},
		"another IP, the pool of another node has the entry":                  {state: conformance.PodState{FixedIP: record(), Held: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn("node-1", "10.0.1.2")}, want: setCondition(conformance.ReasonNoPoolEntry, elsewhere)},
		"moved here, the pool of this node has lost the entry":                {state: conformance.PodState{Ours: true, FixedIP: record(), Moved: movedTo("node-1", false), Pod: podOn("node-1", "10.0.1.2")}, want: setCondition(conformance.ReasonWrongAddress, lost)},
		"moved here, the IP is about to leave this node":                      {state: conformance.PodState{Ours: true, FixedIP: record(), Moved: movedTo("node-1", true), Pod: podOn("node-1", "10.0.1.2")}, want: setCondition(conformance.ReasonNoPoolEntry, noPool)},
		"moved here, another scheduler places the pod":                        {state: conformance.PodState{FixedIP: record(), Moved: movedTo("node-1", false), Pod: podOn("node-1", "10.0.1.2")}, want: setCondition(conformance.ReasonNoPoolEntry, noPool)},
		"the entry is on the node of the next pod":                            {state: conformance.PodState{FixedIP: record(), Held: twoNodes, Ours: true, Returns: []string{"node-2"}, Pod: podOn("node-1", "10.0.1.2")}, want: setCondition(conformance.ReasonWrongAddress, returns)},
		"the entry is on the node of the next pod, the grace period is over":  {state: conformance.PodState{FixedIP: reported(20*time.Second, conformance.ReasonWrongAddress, returns), Held: twoNodes, Ours: true, Returns: []string{"node-2"}, Pod: podOn("node-1", "10.0.1.2")}, want: restart(returns)},
		"the entry is on the node of the next pod, policy Report":             {state: conformance.PodState{FixedIP: reported(time.Hour, conformance.ReasonWrongAddress, returns+reportOnly), Held: twoNodes, Ours: true, Returns: []string{"node-2"}, Pod: podOn("node-1", "10.0.1.2")}, report: true},
		"the entry is not on the node of the next pod":                        {state: conformance.PodState{FixedIP: record(), Held: append(twoNodes, held("node-3", "10.0.1.9")), Ours: true, Returns: []string{"node-3"}, Pod: podOn("node-1", "10.0.1.2")}, want: setCondition(conformance.ReasonNoPoolEntry, infeasible)},
		"the entry is on a node that no longer takes the pod":                 {state: conformance.PodState{FixedIP: reported(time.Hour, conformance.ReasonWrongAddress, returns), Held: twoNodes, Ours: true, Pod: podOn("node-1", "10.0.1.2")}, want: setCondition(conformance.ReasonNoPoolEntry, infeasible)},
		"one entry is here, the other on the node of the next pod":            {state: conformance.PodState{FixedIP: record(func(r *v1alpha1.FixedIP) { r.Spec.IPs = []string{"10.0.1.6", "fd00::6"} }), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6"), held("node-2", "fd00::6")}, Ours: true, Returns: []string{"node-2"}, Pod: podOn("node-1", "10.0.1.2", "fd00::2")}, want: setCondition(conformance.ReasonWrongAddress, "Pod db/mysql-0 runs with 10.0.1.2, fd00::2 on node node-1, but 10.0.1.6, fd00::6 are reserved for the pod; the pool of node node-2 has IP fd00::6 for the pod, and the scheduler can place the next pod there")},
		"the pool has another IP for the pod":                                 {state: conformance.PodState{FixedIP: withOtherAddress(record()), Held: other, Ours: true, Pod: podOn("node-1", "10.0.1.2")}, want: setCondition(conformance.ReasonWrongAddress, otherIP)},
		"the pool has another IP for the pod, the grace period is over":       {state: conformance.PodState{FixedIP: withOtherAddress(reported(20*time.Second, conformance.ReasonWrongAddress, otherIP)), Held: other, Ours: true, Pod: podOn("node-1", "10.0.1.2")}, want: restart(otherIP)},
		"the pool has another IP for the pod of another scheduler":            {state: conformance.PodState{FixedIP: withOtherAddress(record()), Held: other, Pod: podOn("node-1", "10.0.1.2")}, want: setCondition(conformance.ReasonNoPoolEntry, noPool)},
		"the pool has another IP for the pod, condition Allocated is missing": {state: conformance.PodState{FixedIP: record(), Held: other, Ours: true, Pod: podOn("node-1", "10.0.1.2")}, want: setCondition(conformance.ReasonNoPoolEntry, noPool)},
		"reported, within the grace period":                                   {state: conformance.PodState{FixedIP: reported(19*time.Second, conformance.ReasonWrongAddress, wrong), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: conformance.Action{At: now.Add(time.Second)}},
		"reported, the grace period is over":                                  {state: conformance.PodState{FixedIP: reported(20*time.Second, conformance.ReasonWrongAddress, wrong), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: restart(wrong)},
		"reported, a restart does not help":                                   {state: conformance.PodState{FixedIP: reported(time.Hour, conformance.ReasonNoPoolEntry, noPool), Pod: podOn("node-1", "10.0.1.2")}},
		"reported without an entry, now the pool has the entry":               {state: conformance.PodState{FixedIP: reported(time.Hour, conformance.ReasonNoPoolEntry, noPool), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: setCondition(conformance.ReasonWrongAddress, wrong)},
		"evicted, the watch still shows the pod":                              {state: conformance.PodState{FixedIP: reported(time.Second, conformance.ReasonRestarting, wrong), Held: mine, Pod: podOn("node-1", "10.0.1.2")}},
		"evicted, the next pod has another IP too":                            {state: conformance.PodState{FixedIP: reported(time.Second, conformance.ReasonRestarting, wrong), Held: mine, Pod: next("10.0.1.2")}, want: setCondition(conformance.ReasonWrongAddress, wrong)},
		"evicted, the next pod has the reserved IP":                           {state: conformance.PodState{FixedIP: reported(time.Second, conformance.ReasonRestarting, wrong), Held: mine, Pod: next("10.0.1.6")}, want: setCondition(conformance.ReasonAsReserved, asReserved)},
		"eviction refused": {state: conformance.PodState{FixedIP: reported(time.Second, conformance.ReasonRestartBlocked, wrong), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: restart(wrong)},
		"eviction refused, now no pool has the entry":        {state: conformance.PodState{FixedIP: reported(time.Second, conformance.ReasonRestartBlocked, wrong), Pod: podOn("node-1", "10.0.1.2")}, want: setCondition(conformance.ReasonNoPoolEntry, noPool)},
		"mismatch reported, now the pod has the reserved IP": {state: conformance.PodState{FixedIP: reported(time.Hour, conformance.ReasonWrongAddress, wrong), Held: mine, Pod: podOn("node-1", "10.0.1.6")}, want: setCondition(conformance.ReasonAsReserved, asReserved)},
		"no mismatch, as reported":                           {state: conformance.PodState{FixedIP: reported(time.Hour, conformance.ReasonAsReserved, ""), Held: mine, Pod: podOn("node-1", "10.0.1.6")}},
		"no mismatch reported, now the pod has another IP":   {state: conformance.PodState{FixedIP: reported(time.Hour, conformance.ReasonAsReserved, ""), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: setCondition(conformance.ReasonWrongAddress, wrong)},
		"the pod has no IPv6 address":                        {state: conformance.PodState{FixedIP: record(func(r *v1alpha1.FixedIP) { r.Spec.IPs = []string{"10.0.1.6", "fd00::6"} }), Held: both, Pod: podOn("node-1", "10.0.1.6")}},
		"no CiliumEndpoint":                                  {state: conformance.PodState{FixedIP: record(), Held: mine, Pod: podOn("node-1", "10.0.1.6")}, noEndpoint: true, want: setCondition(conformance.ReasonNoCiliumEndpoint, noEndpoint)},
		"no CiliumEndpoint, within the grace period":         {state: conformance.PodState{FixedIP: reported(59*time.Second, conformance.ReasonNoCiliumEndpoint, noEndpoint), Held: mine, Pod: podOn("node-1", "10.0.1.6")}, noEndpoint: true, want: conformance.Action{At: now.Add(time.Second)}},
		"no CiliumEndpoint, the grace period is over":        {state: conformance.PodState{FixedIP: reported(time.Minute, conformance.ReasonNoCiliumEndpoint, noEndpoint), Held: mine, Pod: podOn("node-1", "10.0.1.6")}, noEndpoint: true, want: restart(noEndpoint)},
		"another IP, policy Report":                          {state: conformance.PodState{FixedIP: record(), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, report: true, want: setCondition(conformance.ReasonWrongAddress, wrong+reportOnly)},
		"another IP, policy Report, reported an hour ago":    {state: conformance.PodState{FixedIP: reported(time.Hour, conformance.ReasonWrongAddress, wrong+reportOnly), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, report: true},
		"another IP, policy changed from Report to Restart":  {state: conformance.PodState{FixedIP: reported(time.Hour, conformance.ReasonWrongAddress, wrong+reportOnly), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: setCondition(conformance.ReasonWrongAddress, wrong)},
		"eviction refused, the next pod has another IP":      {state: conformance.PodState{FixedIP: reported(time.Hour, conformance.ReasonRestartBlocked, wrong), Held: mine, Pod: next("10.0.1.2")}, want: setCondition(conformance.ReasonWrongAddress, wrong)},
		"reported for the previous pod":                      {state: conformance.PodState{FixedIP: reported(time.Hour, conformance.ReasonWrongAddress, wrong), Held: mine, Pod: next("10.0.1.2")}, want: setCondition(conformance.ReasonWrongAddress, wrong)},
		"no CiliumEndpoint, eviction blocked":                {state: conformance.PodState{FixedIP: reported(time.Minute, conformance.ReasonNoCiliumEndpoint, noEndpoint), Held: mine, Pod: podOn("node-1", "10.0.1.6"), EndpointBlocker: "node node-1 is not ready"}, noEndpoint: true, want: setCondition(conformance.ReasonNoCiliumEndpoint, noEndpoint+"; the pod is not evicted now: node node-1 is not ready")},
		"no FixedIP":                                         {state: conformance.PodState{Held: mine, Pod: podOn("node-1", "10.0.1.2")}},
		"FixedIP without IPs":                                {state: conformance.PodState{FixedIP: record(func(r *v1alpha1.FixedIP) { r.Spec.IPs = nil }), Held: mine, Pod: podOn("node-1", "10.0.1.2")}},
		"eviction refused, policy changed to Report":         {state: conformance.PodState{FixedIP: reported(time.Hour, conformance.ReasonRestartBlocked, wrong), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, report: true, want: setCondition(conformance.ReasonWrongAddress, wrong+reportOnly)},
	} {
		t.Run(name, func(t *testing.T) {
			state := c.state
			state.Now, state.EndpointMissing, state.Policy = now, c.noEndpoint, identity.Restart
			state.Grace = conformance.GracePeriods{Address: 20 * time.Second, Endpoint: time.Minute}
			if c.report {
				state.Policy = identity.Report
			}
			if diff := cmp.Diff(c.want, conformance.Decide(state)); diff != "" {
				t.Errorf("Decide (-want +got): %s", diff)
			}
		})
	}
}

// TestClockSkewDoesNotHideTheNextPod checks that Decide does not apply a condition about an evicted pod to the next pod
// with the name, whatever the difference between the clocks of the controller and the API server (finding C11 in
// docs/project/findings.md).
func TestClockSkewDoesNotHideTheNextPod(t *testing.T) {
	for name, created := range map[string]time.Duration{"the controller is ahead": -time.Minute, "the clocks agree": 0, "the controller is behind": time.Minute} {
		evicted := reported(10*time.Second, conformance.ReasonRestarting, "evicted")
		pod := podOn("node-1", "10.0.1.2")
		pod.CreationTimestamp = metav1.NewTime(now.Add(created))
		state := conformance.PodState{FixedIP: evicted, Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: pod, Policy: identity.Restart, Now: now}
		if got := conformance.Decide(state); got.Type != conformance.None {
			t.Errorf("%s: Decide returns %v for the evicted pod, want no action", name, got)
		}
		pod.UID = "pod-2"
		if got := conformance.Decide(state); got.Type != conformance.SetCondition || got.Condition.Reason != conformance.ReasonWrongAddress {
			t.Errorf("%s: Decide returns %v for the next pod, want SetCondition with reason WrongAddress", name, got)
		}
	}
}

func TestSetAsReserved(t *testing.T) {
	other := metav1.Condition{Type: v1alpha1.ConditionExclusive, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)}
	status := v1alpha1.FixedIPStatus{Conditions: []metav1.Condition{{Type: "AsReserved"}, other}}
	wrong := metav1.Condition{Type: "AsReserved", Status: metav1.ConditionFalse, Reason: "x", LastTransitionTime: metav1.NewTime(now)}
	conformance.SetAsReserved(&status, wrong, podOn("node-1"))
	if diff := cmp.Diff(v1alpha1.FixedIPStatus{Conditions: []metav1.Condition{other, wrong}, MismatchPodUID: "uid-mysql-0"}, status); diff != "" {
		t.Errorf("status with a mismatch (-want +got): %s", diff)
	}
	right := metav1.Condition{Type: "AsReserved", Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)}
	conformance.SetAsReserved(&status, right, podOn("node-1"))
	if diff := cmp.Diff(v1alpha1.FixedIPStatus{Conditions: []metav1.Condition{other, right}}, status); diff != "" {
		t.Errorf("status without a mismatch (-want +got): %s", diff)
	}
}
