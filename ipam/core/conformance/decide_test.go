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
)

var now = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func held(node string, ips ...string) ledger.NodeAddresses {
	return ledger.NodeAddresses{Node: node, Addrs: addrs(ips...)}
}

// podOn returns pod mysql-0 on a node, with IPs.
func podOn(node string, ips ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0", UID: "pod-1"}, Spec: corev1.PodSpec{NodeName: node}}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

// next returns the next pod with the name mysql-0. The API server that created it has a clock that is an hour behind.
func next(ips ...string) *corev1.Pod {
	p := podOn("node-1", ips...)
	p.UID, p.CreationTimestamp = "pod-2", metav1.NewTime(now.Add(-time.Hour))
	return p
}

func record(change ...func(*v1alpha1.FixedIP)) *v1alpha1.FixedIP {
	r := &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0"}, Spec: v1alpha1.FixedIPSpec{IPs: []string{"10.0.1.6"}, PodName: "mysql-0"}}
	for _, c := range change {
		c(r)
	}
	return r
}

// told returns a FixedIP whose condition Mismatch about pod-1 was written some time ago.
func told(ago time.Duration, reason, message string) *v1alpha1.FixedIP {
	return record(func(r *v1alpha1.FixedIP) {
		status := metav1.ConditionTrue
		if reason == conformance.ReasonAsReserved {
			status = metav1.ConditionFalse
		}
		conformance.SetMismatch(&r.Status, metav1.Condition{Type: "Mismatch", Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now.Add(-ago))}, podOn("node-1"))
	})
}

// beside adds to a FixedIP the condition that its IP gets no entry while the pool has another IP for the pod.
func beside(r *v1alpha1.FixedIP) *v1alpha1.FixedIP {
	r.Status.Conditions = append(r.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionAllocated, Status: metav1.ConditionFalse, Reason: "OtherAddressAllocated"})
	return r
}

// awayTo returns the address 10.0.1.6 as its home node-2 records it: moved to a node, or about to leave that node.
func awayTo(node string, leaving bool) []ledger.RemoteAddresses {
	return []ledger.RemoteAddresses{{Home: "node-2", At: node, Leaving: leaving, Addrs: []netip.Addr{netip.MustParseAddr("10.0.1.6")}}}
}

func TestDecide(t *testing.T) {
	const (
		wrong   = "Pod db/mysql-0 runs with 10.0.1.2 on node node-1, but 10.0.1.6 is reserved for the pod"
		nowhere = wrong + " and is in no pool: a restart does not help before the pool of node node-1 has the entry"
		there   = wrong + ", in the pool of node node-2: a restart helps only if the scheduler places the next pod there"
		back    = wrong + ", in the pool of node node-2, where the scheduler places the next pod"
		lost    = wrong + ", which was moved to node node-1, whose pool has lost the entry; the scheduler writes the entry for the next pod"
		instead = wrong + ", which has no entry as long as the pool has another IP for the pod; the next pod gets the reserved IP"
		mute    = "Pod db/mysql-0 runs with 10.0.1.6 on node node-1 and has no CiliumEndpoint, so other nodes may not reach it"
		alone   = "; the pod is a bare pod and is not evicted. Delete the pod and create it again"
		hands   = "; its mismatch policy is Report, so the pod is not evicted. Delete the pod, or set fixedip.io/mismatch-policy to Restart"
	)
	mine := []ledger.NodeAddresses{held("node-1", "10.0.1.6")}
	both := []ledger.NodeAddresses{held("node-1", "10.0.1.6", "fd00::6")}
	other := []ledger.NodeAddresses{held("node-1", "10.0.1.2")}
	apart := []ledger.NodeAddresses{held("node-1", "10.0.1.2"), held("node-2", "10.0.1.6")}
	tell := func(reason, message string) conformance.Action {
		status := metav1.ConditionTrue
		if reason == conformance.ReasonAsReserved {
			status = metav1.ConditionFalse
		}
		return conformance.Action{Type: conformance.SetCondition, Condition: metav1.Condition{Type: "Mismatch", Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now)}}
	}
	restart := func(message string) conformance.Action {
		v := tell(conformance.ReasonRestarting, message)
		v.Type = conformance.EvictPod
		return v
	}
	for name, c := range map[string]struct {
		seen conformance.PodState
		// silent is true if the pod has no CiliumEndpoint.
		silent bool
		report bool
		want   conformance.Action
	}{
		"no pod":                  {seen: conformance.PodState{FixedIP: record(), Held: mine}},
		"a pod without addresses": {seen: conformance.PodState{FixedIP: record(), Held: mine, Pod: podOn("node-1")}},
		"as it should be":         {seen: conformance.PodState{FixedIP: record(), Held: mine, Pod: podOn("node-1", "10.0.1.6")}},
		"a pod that stops is not judged": {seen: conformance.PodState{FixedIP: record(), Held: mine, Pod: func() *corev1.Pod {
			p := podOn("node-1", "10.0.1.2")
			p.DeletionTimestamp = &metav1.Time{}
			return p
		}()}},
		"nor one that has ended": {seen: conformance.PodState{FixedIP: record(), Held: mine, Pod: func() *corev1.Pod {
			p := podOn("node-1", "10.0.1.2")
			p.Status.Phase = corev1.PodFailed
			return p
		}()}},
		"nor one whose address is given up": {seen: conformance.PodState{FixedIP: record(func(r *v1alpha1.FixedIP) { r.DeletionTimestamp = &metav1.Time{Time: now} }), Held: mine, Pod: podOn("node-1", "10.0.1.2")}},

		"alone, recorded, with another address": {seen: conformance.PodState{BarePod: true, FixedIP: record(), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: tell(conformance.ReasonWrongAddress, wrong+alone)},
		"alone, told long ago":                  {seen: conformance.PodState{BarePod: true, FixedIP: told(time.Hour, conformance.ReasonWrongAddress, wrong+alone), Held: mine, Pod: podOn("node-1", "10.0.1.2")}},
		"alone, and no entry":                   {seen: conformance.PodState{BarePod: true, FixedIP: record(), Pod: podOn("node-1", "10.0.1.2")}, want: tell(conformance.ReasonNoPoolEntry, nowhere)},

		"another address":                                {seen: conformance.PodState{FixedIP: record(), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: tell(conformance.ReasonWrongAddress, wrong)},
		"another address, entry nowhere":                 {seen: conformance.PodState{FixedIP: record(), Pod: podOn("node-1", "10.0.1.2")}, want: tell(conformance.ReasonNoPoolEntry, nowhere)},
		"another address, entry on another node":         {seen: conformance.PodState{FixedIP: record(), Held: []ledger.NodeAddresses{held("node-2", "10.0.1.6")}, Pod: podOn("node-1", "10.0.1.2")}, want: tell(conformance.ReasonNoPoolEntry, there)},
		"moved here, and this pool has lost the entry":   {seen: conformance.PodState{Ours: true, FixedIP: record(), Away: awayTo("node-1", false), Pod: podOn("node-1", "10.0.1.2")}, want: tell(conformance.ReasonWrongAddress, lost)},
		"moved here, and it is about to leave":           {seen: conformance.PodState{Ours: true, FixedIP: record(), Away: awayTo("node-1", true), Pod: podOn("node-1", "10.0.1.2")}, want: tell(conformance.ReasonNoPoolEntry, nowhere)},
		"moved here, of another scheduler":               {seen: conformance.PodState{FixedIP: record(), Away: awayTo("node-1", false), Pod: podOn("node-1", "10.0.1.2")}, want: tell(conformance.ReasonNoPoolEntry, nowhere)},
		"its address waits where it returns to":          {seen: conformance.PodState{FixedIP: record(), Held: apart, Returns: []string{"node-2"}, Pod: podOn("node-1", "10.0.1.2")}, want: tell(conformance.ReasonWrongAddress, back)},
		"and has waited long enough":                     {seen: conformance.PodState{FixedIP: told(20*time.Second, conformance.ReasonWrongAddress, back), Held: apart, Returns: []string{"node-2"}, Pod: podOn("node-1", "10.0.1.2")}, want: restart(back)},
		"and by its policy goes on waiting":              {seen: conformance.PodState{FixedIP: told(time.Hour, conformance.ReasonWrongAddress, back+hands), Held: apart, Returns: []string{"node-2"}, Pod: podOn("node-1", "10.0.1.2")}, report: true},
		"it waits on another node than it returns to":    {seen: conformance.PodState{FixedIP: record(), Held: apart, Returns: []string{"node-3"}, Pod: podOn("node-1", "10.0.1.2")}, want: tell(conformance.ReasonNoPoolEntry, there)},
		"it returned, and the node takes no pods now":    {seen: conformance.PodState{FixedIP: told(time.Hour, conformance.ReasonWrongAddress, back), Held: apart, Pod: podOn("node-1", "10.0.1.2")}, want: tell(conformance.ReasonNoPoolEntry, there)},
		"one family here, the other where it returns":    {seen: conformance.PodState{FixedIP: record(func(r *v1alpha1.FixedIP) { r.Spec.IPs = []string{"10.0.1.6", "fd00::6"} }), Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6"), held("node-2", "fd00::6")}, Returns: []string{"node-2"}, Pod: podOn("node-1", "10.0.1.2", "fd00::2")}, want: tell(conformance.ReasonWrongAddress, "Pod db/mysql-0 runs with 10.0.1.2, fd00::2 on node node-1, but 10.0.1.6, fd00::6 is reserved for the pod, in the pool of node node-2, where the scheduler places the next pod")},
		"its address waits for the pod to go":            {seen: conformance.PodState{FixedIP: beside(record()), Held: other, Ours: true, Pod: podOn("node-1", "10.0.1.2")}, want: tell(conformance.ReasonWrongAddress, instead)},
		"and has waited for long enough":                 {seen: conformance.PodState{FixedIP: beside(told(20*time.Second, conformance.ReasonWrongAddress, instead)), Held: other, Ours: true, Pod: podOn("node-1", "10.0.1.2")}, want: restart(instead)},
		"another scheduler might not bring it there":     {seen: conformance.PodState{FixedIP: beside(record()), Held: other, Pod: podOn("node-1", "10.0.1.2")}, want: tell(conformance.ReasonNoPoolEntry, nowhere)},
		"something else is in the way of its address":    {seen: conformance.PodState{FixedIP: record(), Held: other, Ours: true, Pod: podOn("node-1", "10.0.1.2")}, want: tell(conformance.ReasonNoPoolEntry, nowhere)},
		"told, and the agent may not have seen":          {seen: conformance.PodState{FixedIP: told(19*time.Second, conformance.ReasonWrongAddress, wrong), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: conformance.Action{At: now.Add(time.Second)}},
		"told long enough ago":                           {seen: conformance.PodState{FixedIP: told(20*time.Second, conformance.ReasonWrongAddress, wrong), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: restart(wrong)},
		"told, and a restart would not help":             {seen: conformance.PodState{FixedIP: told(time.Hour, conformance.ReasonNoPoolEntry, nowhere), Pod: podOn("node-1", "10.0.1.2")}},
		"the entry has come":                             {seen: conformance.PodState{FixedIP: told(time.Hour, conformance.ReasonNoPoolEntry, nowhere), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: tell(conformance.ReasonWrongAddress, wrong)},
		"evicted, and the watch is late":                 {seen: conformance.PodState{FixedIP: told(time.Second, conformance.ReasonRestarting, wrong), Held: mine, Pod: podOn("node-1", "10.0.1.2")}},
		"evicted, and the next is wrong too":             {seen: conformance.PodState{FixedIP: told(time.Second, conformance.ReasonRestarting, wrong), Held: mine, Pod: next("10.0.1.2")}, want: tell(conformance.ReasonWrongAddress, wrong)},
		"evicted, and the next is right":                 {seen: conformance.PodState{FixedIP: told(time.Second, conformance.ReasonRestarting, wrong), Held: mine, Pod: next("10.0.1.6")}, want: tell(conformance.ReasonAsReserved, "The pod runs with the IPs that are reserved for it")},
		"blocked":                                        {seen: conformance.PodState{FixedIP: told(time.Second, conformance.ReasonRestartBlocked, wrong), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: restart(wrong)},
		"blocked, and the entry has gone":                {seen: conformance.PodState{FixedIP: told(time.Second, conformance.ReasonRestartBlocked, wrong), Pod: podOn("node-1", "10.0.1.2")}, want: tell(conformance.ReasonNoPoolEntry, nowhere)},
		"right again by itself":                          {seen: conformance.PodState{FixedIP: told(time.Hour, conformance.ReasonWrongAddress, wrong), Held: mine, Pod: podOn("node-1", "10.0.1.6")}, want: tell(conformance.ReasonAsReserved, "The pod runs with the IPs that are reserved for it")},
		"right, as was told":                             {seen: conformance.PodState{FixedIP: told(time.Hour, conformance.ReasonAsReserved, ""), Held: mine, Pod: podOn("node-1", "10.0.1.6")}},
		"wrong once more":                                {seen: conformance.PodState{FixedIP: told(time.Hour, conformance.ReasonAsReserved, ""), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: tell(conformance.ReasonWrongAddress, wrong)},
		"a family that its node does not give":           {seen: conformance.PodState{FixedIP: record(func(r *v1alpha1.FixedIP) { r.Spec.IPs = []string{"10.0.1.6", "fd00::6"} }), Held: both, Pod: podOn("node-1", "10.0.1.6")}},
		"no CiliumEndpoint":                              {seen: conformance.PodState{FixedIP: record(), Held: mine, Pod: podOn("node-1", "10.0.1.6")}, silent: true, want: tell(conformance.ReasonNoCiliumEndpoint, mute)},
		"no CiliumEndpoint, told a while ago":            {seen: conformance.PodState{FixedIP: told(59*time.Second, conformance.ReasonNoCiliumEndpoint, mute), Held: mine, Pod: podOn("node-1", "10.0.1.6")}, silent: true, want: conformance.Action{At: now.Add(time.Second)}},
		"no CiliumEndpoint for too long":                 {seen: conformance.PodState{FixedIP: told(time.Minute, conformance.ReasonNoCiliumEndpoint, mute), Held: mine, Pod: podOn("node-1", "10.0.1.6")}, silent: true, want: restart(mute)},
		"reported":                                       {seen: conformance.PodState{FixedIP: record(), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, report: true, want: tell(conformance.ReasonWrongAddress, wrong+hands)},
		"reported long ago":                              {seen: conformance.PodState{FixedIP: told(time.Hour, conformance.ReasonWrongAddress, wrong+hands), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, report: true},
		"reported, and the policy has changed":           {seen: conformance.PodState{FixedIP: told(time.Hour, conformance.ReasonWrongAddress, wrong+hands), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: tell(conformance.ReasonWrongAddress, wrong)},
		"blocked, and another pod has come":              {seen: conformance.PodState{FixedIP: told(time.Hour, conformance.ReasonRestartBlocked, wrong), Held: mine, Pod: next("10.0.1.2")}, want: tell(conformance.ReasonWrongAddress, wrong)},
		"told of another pod":                            {seen: conformance.PodState{FixedIP: told(time.Hour, conformance.ReasonWrongAddress, wrong), Held: mine, Pod: next("10.0.1.2")}, want: tell(conformance.ReasonWrongAddress, wrong)},
		"no CiliumEndpoint, and the agent does not work": {seen: conformance.PodState{FixedIP: told(time.Minute, conformance.ReasonNoCiliumEndpoint, mute), Held: mine, Pod: podOn("node-1", "10.0.1.6"), EndpointBlocker: "node node-1 is not ready"}, silent: true, want: tell(conformance.ReasonNoCiliumEndpoint, mute+"; the pod is not evicted: node node-1 is not ready")},
		"no FixedIP":                                     {seen: conformance.PodState{Held: mine, Pod: podOn("node-1", "10.0.1.2")}},
		"a FixedIP that waits for IPs":                   {seen: conformance.PodState{FixedIP: record(func(r *v1alpha1.FixedIP) { r.Spec.IPs = nil }), Held: mine, Pod: podOn("node-1", "10.0.1.2")}},
		"blocked, and the policy has changed too":        {seen: conformance.PodState{FixedIP: told(time.Hour, conformance.ReasonRestartBlocked, wrong), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, report: true, want: tell(conformance.ReasonWrongAddress, wrong+hands)},
	} {
		t.Run(name, func(t *testing.T) {
			state := c.seen
			state.Now, state.EndpointMissing, state.Policy = now, c.silent, identity.Restart
			state.Grace = conformance.GracePeriods{Address: 20 * time.Second, Endpoint: time.Minute}
			if c.report {
				state.Policy = identity.Report
			}
			if diff := cmp.Diff(c.want, conformance.Decide(state)); diff != "" {
				t.Errorf("(-want +got): %s", diff)
			}
		})
	}
}

// TestClockSkewDoesNotHideTheNextPod checks that a condition about an evicted pod is not applied to the next pod with the
// name, whatever the difference between the clocks of the controller and the API server (finding C11).
func TestClockSkewDoesNotHideTheNextPod(t *testing.T) {
	for name, created := range map[string]time.Duration{"the controller is ahead": -time.Minute, "the clocks agree": 0, "the controller is behind": time.Minute} {
		evicted := told(10*time.Second, conformance.ReasonRestarting, "evicted")
		pod := podOn("node-1", "10.0.1.2")
		pod.CreationTimestamp = metav1.NewTime(now.Add(created))
		state := conformance.PodState{FixedIP: evicted, Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Pod: pod, Policy: identity.Restart, Now: now}
		if got := conformance.Decide(state); got.Type != conformance.None {
			t.Errorf("%s: %v for the pod that was evicted", name, got)
		}
		pod.UID = "pod-2"
		if got := conformance.Decide(state); got.Type != conformance.SetCondition || got.Condition.Reason != conformance.ReasonWrongAddress {
			t.Errorf("%s: %v for the next pod, which is wrong too", name, got)
		}
	}
}

func TestSetMismatch(t *testing.T) {
	other := metav1.Condition{Type: "Conflict", Status: metav1.ConditionFalse, LastTransitionTime: metav1.NewTime(now)}
	status := v1alpha1.FixedIPStatus{Conditions: []metav1.Condition{{Type: "Mismatch"}, other}}
	wrong := metav1.Condition{Type: "Mismatch", Status: metav1.ConditionTrue, Reason: "x", LastTransitionTime: metav1.NewTime(now)}
	conformance.SetMismatch(&status, wrong, podOn("node-1"))
	if diff := cmp.Diff(v1alpha1.FixedIPStatus{Conditions: []metav1.Condition{other, wrong}, MismatchPodUID: "pod-1"}, status); diff != "" {
		t.Errorf("(-want +got): %s", diff)
	}
	right := metav1.Condition{Type: "Mismatch", Status: metav1.ConditionFalse, LastTransitionTime: metav1.NewTime(now)}
	conformance.SetMismatch(&status, right, podOn("node-1"))
	if diff := cmp.Diff(v1alpha1.FixedIPStatus{Conditions: []metav1.Condition{other, right}}, status); diff != "" {
		t.Errorf("(-want +got): %s", diff)
	}
}
