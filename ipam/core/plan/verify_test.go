// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package plan_test

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
	"fixedip.io/fixedip/ipam/core/plan"
)

// told is a record whose condition Mismatch was written some time ago.
func told(ago time.Duration, reason, message string) *v1alpha1.FixedIP {
	return record(func(r *v1alpha1.FixedIP) {
		status := metav1.ConditionTrue
		if reason == plan.ReasonAsReserved {
			status = metav1.ConditionFalse
		}
		r.Status.Conditions = []metav1.Condition{{Type: "Mismatch", Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now.Add(-ago))}}
	})
}

// madeAgo is a pod on node-1 that was made some time ago.
func madeAgo(ago time.Duration, ips ...string) *corev1.Pod {
	p := podOn("node-1", ips...)
	p.CreationTimestamp = metav1.NewTime(now.Add(-ago))
	return p
}

// beside is a record whose address can't stand in the pool beside another that this has for its pod.
func beside(r *v1alpha1.FixedIP) *v1alpha1.FixedIP {
	r.Status.Conditions = append(r.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionAllocated, Status: metav1.ConditionFalse, Reason: "OtherAddressAllocated"})
	return r
}

func TestVerify(t *testing.T) {
	const (
		wrong   = "Pod db/mysql-0 runs with 10.0.1.2 on node node-1, and 10.0.1.6 is kept for it"
		nowhere = wrong + ", in no pool: a restart would not help before node node-1 has the entry"
		there   = wrong + ", in the pool of node node-2: a restart helps only if its scheduler brings it there"
		back    = wrong + ", in the pool of node node-2, where its scheduler brings it"
		instead = wrong + ", which it can't have beside what the pool has for it, and has once it is made again"
		mute    = "Pod db/mysql-0 runs with 10.0.1.6 on node node-1 and has no CiliumEndpoint, so that other nodes know nothing of it"
		alone   = "; nobody would make it again, so that it is not restarted. Delete it and make it again"
		hands   = "; it is not restarted, by its policy. Restart it, or set fixedip.io/mismatch-policy to Restart"
	)
	mine := []ledger.Holding{held("node-1", "10.0.1.6")}
	both := []ledger.Holding{held("node-1", "10.0.1.6", "fd00::6")}
	other := []ledger.Holding{held("node-1", "10.0.1.2")}
	apart := []ledger.Holding{held("node-1", "10.0.1.2"), held("node-2", "10.0.1.6")}
	tell := func(reason, message string) plan.Verdict {
		status := metav1.ConditionTrue
		if reason == plan.ReasonAsReserved {
			status = metav1.ConditionFalse
		}
		return plan.Verdict{Step: plan.TellMismatch, Condition: metav1.Condition{Type: "Mismatch", Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now)}}
	}
	onPod := func(message string) plan.Verdict {
		v := tell(plan.ReasonWrongAddress, message)
		v.Step = plan.TellPod
		return v
	}
	restart := func(message string) plan.Verdict {
		v := tell(plan.ReasonRestarting, message)
		v.Step = plan.RestartPod
		return v
	}
	adopt := func(addrs ...string) plan.Verdict {
		v := plan.Verdict{Step: plan.AdoptAddress}
		for _, a := range addrs {
			v.Addrs = append(v.Addrs, addr(a))
		}
		return v
	}
	for name, c := range map[string]struct {
		seen plan.Observed
		// silent: the pod has no CiliumEndpoint.
		silent bool
		report bool
		want   plan.Verdict
	}{
		"no pod":                  {seen: plan.Observed{Record: record(), Held: mine}},
		"a pod without addresses": {seen: plan.Observed{Record: record(), Held: mine, Pod: podOn("node-1")}},
		"as it should be":         {seen: plan.Observed{Record: record(), Held: mine, Pod: podOn("node-1", "10.0.1.6")}},
		"a pod that stops is not judged": {seen: plan.Observed{Record: record(), Held: mine, Pod: func() *corev1.Pod {
			p := podOn("node-1", "10.0.1.2")
			p.DeletionTimestamp = &metav1.Time{}
			return p
		}()}},
		"nor one that has ended": {seen: plan.Observed{Record: record(), Held: mine, Pod: func() *corev1.Pod {
			p := podOn("node-1", "10.0.1.2")
			p.Status.Phase = corev1.PodFailed
			return p
		}()}},
		"nor one whose address is given up": {seen: plan.Observed{Record: record(deleting), Held: mine, Pod: podOn("node-1", "10.0.1.2")}},

		"a first placement with its claim":            {seen: plan.Observed{Held: mine, Pod: podOn("node-1", "10.0.1.6")}},
		"a first placement with another address":      {seen: plan.Observed{Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: adopt("10.0.1.2")},
		"right in one family only":                    {seen: plan.Observed{Held: both, Pod: podOn("node-1", "10.0.1.6", "fd00::2")}, want: adopt("10.0.1.6", "fd00::2")},
		"a family that was not claimed is left alone": {seen: plan.Observed{Held: mine, Pod: podOn("node-1", "10.0.1.6", "fd00::2")}},
		"claimed on another node than it is on":       {seen: plan.Observed{Held: []ledger.Holding{held("node-2", "10.0.2.6")}, Pod: podOn("node-1", "10.0.1.2")}, want: adopt("10.0.1.2")},
		"what was asked for is not given up":          {seen: plan.Observed{Held: mine, Asked: true, Pod: podOn("node-1", "10.0.1.2")}},
		"nothing was claimed":                         {seen: plan.Observed{Pod: podOn("node-1", "10.0.1.2")}},
		"a family that is new to the record":          {seen: plan.Observed{Record: record(), Held: both, Pod: podOn("node-1", "10.0.1.6", "fd00::2")}, want: adopt("fd00::2")},
		"a record that waits for addresses":           {seen: plan.Observed{Record: record(func(r *v1alpha1.FixedIP) { r.Spec.IPs = nil }), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: adopt("10.0.1.2")},

		"alone, with its claim":                 {seen: plan.Observed{Alone: true, Held: mine, Pod: podOn("node-1", "10.0.1.6")}},
		"alone, with another address":           {seen: plan.Observed{Alone: true, Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: onPod(wrong + alone)},
		"alone, wrong in one family":            {seen: plan.Observed{Alone: true, Held: both, Pod: podOn("node-1", "10.0.1.2", "fd00::6")}, want: onPod("Pod db/mysql-0 runs with 10.0.1.2, fd00::6 on node node-1, and 10.0.1.6 is kept for it" + alone)},
		"alone, a family that its node lacks":   {seen: plan.Observed{Alone: true, Held: both, Pod: podOn("node-1", "10.0.1.6")}},
		"alone, on another node than its claim": {seen: plan.Observed{Alone: true, Held: []ledger.Holding{held("node-2", "10.0.2.6")}, Pod: podOn("node-1", "10.0.1.2")}},
		"alone, recorded, with another address": {seen: plan.Observed{Alone: true, Record: record(), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: tell(plan.ReasonWrongAddress, wrong+alone)},
		"alone, told long ago":                  {seen: plan.Observed{Alone: true, Record: told(time.Hour, plan.ReasonWrongAddress, wrong+alone), Held: mine, Pod: podOn("node-1", "10.0.1.2")}},
		"alone, and no entry":                   {seen: plan.Observed{Alone: true, Record: record(), Pod: podOn("node-1", "10.0.1.2")}, want: tell(plan.ReasonNoPoolEntry, nowhere)},

		"another address":                             {seen: plan.Observed{Record: record(), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: tell(plan.ReasonWrongAddress, wrong)},
		"another address, entry nowhere":              {seen: plan.Observed{Record: record(), Pod: podOn("node-1", "10.0.1.2")}, want: tell(plan.ReasonNoPoolEntry, nowhere)},
		"another address, entry on another node":      {seen: plan.Observed{Record: record(), Held: []ledger.Holding{held("node-2", "10.0.1.6")}, Pod: podOn("node-1", "10.0.1.2")}, want: tell(plan.ReasonNoPoolEntry, there)},
		"its address waits where it returns to":       {seen: plan.Observed{Record: record(), Held: apart, Returns: []string{"node-2"}, Pod: podOn("node-1", "10.0.1.2")}, want: tell(plan.ReasonWrongAddress, back)},
		"and has waited long enough":                  {seen: plan.Observed{Record: told(20*time.Second, plan.ReasonWrongAddress, back), Held: apart, Returns: []string{"node-2"}, Pod: podOn("node-1", "10.0.1.2")}, want: restart(back)},
		"and by its policy goes on waiting":           {seen: plan.Observed{Record: told(time.Hour, plan.ReasonWrongAddress, back+hands), Held: apart, Returns: []string{"node-2"}, Pod: podOn("node-1", "10.0.1.2")}, report: true},
		"it waits on another node than it returns to": {seen: plan.Observed{Record: record(), Held: apart, Returns: []string{"node-3"}, Pod: podOn("node-1", "10.0.1.2")}, want: tell(plan.ReasonNoPoolEntry, there)},
		"it returned, and the node takes no pods now": {seen: plan.Observed{Record: told(time.Hour, plan.ReasonWrongAddress, back), Held: apart, Pod: podOn("node-1", "10.0.1.2")}, want: tell(plan.ReasonNoPoolEntry, there)},
		"one family here, the other where it returns": {seen: plan.Observed{Record: record(func(r *v1alpha1.FixedIP) { r.Spec.IPs = []string{"10.0.1.6", "fd00::6"} }), Held: []ledger.Holding{held("node-1", "10.0.1.6"), held("node-2", "fd00::6")}, Returns: []string{"node-2"}, Pod: podOn("node-1", "10.0.1.2", "fd00::2")}, want: tell(plan.ReasonWrongAddress, "Pod db/mysql-0 runs with 10.0.1.2, fd00::2 on node node-1, and 10.0.1.6, fd00::6 is kept for it, in the pool of node node-2, where its scheduler brings it")},
		"its address waits for the pod to go":         {seen: plan.Observed{Record: beside(record()), Held: other, Ours: true, Pod: podOn("node-1", "10.0.1.2")}, want: tell(plan.ReasonWrongAddress, instead)},
		"and has waited for long enough":              {seen: plan.Observed{Record: beside(told(20*time.Second, plan.ReasonWrongAddress, instead)), Held: other, Ours: true, Pod: podOn("node-1", "10.0.1.2")}, want: restart(instead)},
		"another scheduler might not bring it there":  {seen: plan.Observed{Record: beside(record()), Held: other, Pod: podOn("node-1", "10.0.1.2")}, want: tell(plan.ReasonNoPoolEntry, nowhere)},
		"something else is in the way of its address": {seen: plan.Observed{Record: record(), Held: other, Ours: true, Pod: podOn("node-1", "10.0.1.2")}, want: tell(plan.ReasonNoPoolEntry, nowhere)},
		"told, and the agent may not have seen":       {seen: plan.Observed{Record: told(19*time.Second, plan.ReasonWrongAddress, wrong), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: plan.Verdict{At: now.Add(time.Second)}},
		"told long enough ago":                        {seen: plan.Observed{Record: told(20*time.Second, plan.ReasonWrongAddress, wrong), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: restart(wrong)},
		"told, and a restart would not help":          {seen: plan.Observed{Record: told(time.Hour, plan.ReasonNoPoolEntry, nowhere), Pod: podOn("node-1", "10.0.1.2")}},
		"the entry has come":                          {seen: plan.Observed{Record: told(time.Hour, plan.ReasonNoPoolEntry, nowhere), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: tell(plan.ReasonWrongAddress, wrong)},
		"evicted, and the watch is late":              {seen: plan.Observed{Record: told(time.Second, plan.ReasonRestarting, wrong), Held: mine, Pod: madeAgo(time.Hour, "10.0.1.2")}},
		"evicted, and the next is wrong too":          {seen: plan.Observed{Record: told(time.Second, plan.ReasonRestarting, wrong), Held: mine, Pod: madeAgo(0, "10.0.1.2")}, want: tell(plan.ReasonWrongAddress, wrong)},
		"evicted, and the next is right":              {seen: plan.Observed{Record: told(time.Second, plan.ReasonRestarting, wrong), Held: mine, Pod: madeAgo(0, "10.0.1.6")}, want: tell(plan.ReasonAsReserved, "The pod runs with what is kept for it")},
		"blocked":                                     {seen: plan.Observed{Record: told(time.Second, plan.ReasonRestartBlocked, wrong), Held: mine, Pod: madeAgo(time.Hour, "10.0.1.2")}, want: restart(wrong)},
		"blocked, and the entry has gone":             {seen: plan.Observed{Record: told(time.Second, plan.ReasonRestartBlocked, wrong), Pod: madeAgo(time.Hour, "10.0.1.2")}, want: tell(plan.ReasonNoPoolEntry, nowhere)},
		"right again by itself":                       {seen: plan.Observed{Record: told(time.Hour, plan.ReasonWrongAddress, wrong), Held: mine, Pod: podOn("node-1", "10.0.1.6")}, want: tell(plan.ReasonAsReserved, "The pod runs with what is kept for it")},
		"right, as was told":                          {seen: plan.Observed{Record: told(time.Hour, plan.ReasonAsReserved, ""), Held: mine, Pod: podOn("node-1", "10.0.1.6")}},
		"wrong once more":                             {seen: plan.Observed{Record: told(time.Hour, plan.ReasonAsReserved, ""), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: tell(plan.ReasonWrongAddress, wrong)},
		"a family that its node does not give":        {seen: plan.Observed{Record: record(func(r *v1alpha1.FixedIP) { r.Spec.IPs = []string{"10.0.1.6", "fd00::6"} }), Held: both, Pod: podOn("node-1", "10.0.1.6")}},
		"no CiliumEndpoint":                           {seen: plan.Observed{Record: record(), Held: mine, Pod: podOn("node-1", "10.0.1.6")}, silent: true, want: tell(plan.ReasonNoCiliumEndpoint, mute)},
		"no CiliumEndpoint, told a while ago":         {seen: plan.Observed{Record: told(59*time.Second, plan.ReasonNoCiliumEndpoint, mute), Held: mine, Pod: podOn("node-1", "10.0.1.6")}, silent: true, want: plan.Verdict{At: now.Add(time.Second)}},
		"no CiliumEndpoint for too long":              {seen: plan.Observed{Record: told(time.Minute, plan.ReasonNoCiliumEndpoint, mute), Held: mine, Pod: podOn("node-1", "10.0.1.6")}, silent: true, want: restart(mute)},
		"reported":                                    {seen: plan.Observed{Record: record(), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, report: true, want: tell(plan.ReasonWrongAddress, wrong+hands)},
		"reported long ago":                           {seen: plan.Observed{Record: told(time.Hour, plan.ReasonWrongAddress, wrong+hands), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, report: true},
		"reported, and the policy has changed":        {seen: plan.Observed{Record: told(time.Hour, plan.ReasonWrongAddress, wrong+hands), Held: mine, Pod: podOn("node-1", "10.0.1.2")}, want: tell(plan.ReasonWrongAddress, wrong)},
		"blocked, and the policy has changed too":     {seen: plan.Observed{Record: told(time.Hour, plan.ReasonRestartBlocked, wrong), Held: mine, Pod: madeAgo(2*time.Hour, "10.0.1.2")}, report: true, want: tell(plan.ReasonWrongAddress, wrong+hands)},
	} {
		t.Run(name, func(t *testing.T) {
			o := c.seen
			o.Now, o.Endpoint, o.Policy = now, !c.silent, identity.Restart
			o.Patience = plan.Patience{Address: 20 * time.Second, Endpoint: time.Minute}
			if c.report {
				o.Policy = identity.Report
			}
			if diff := cmp.Diff(c.want, plan.Verify(o), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got): %s", diff)
			}
		})
	}
}
