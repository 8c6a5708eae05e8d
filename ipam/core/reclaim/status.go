// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Gap is the time for which a FixedIP, except that of a slot, is still reported as in use after its pod was deleted. If the
// next pod with the same name is bound within that time, the status is written once instead of twice.
const Gap = 5 * time.Second

// report returns the action that updates the status; Nothing if the status is up to date. pod is the pod that uses the
// addresses; nil: none. expiresAt is the time at which the addresses are released; nil: no release is scheduled.
func (v *evaluation) report(pod *corev1.Pod, expiresAt *metav1.Time) Action {
	have := v.Record.Status
	want := v1alpha1.FixedIPStatus{ObservedGeneration: v.Record.Generation, ExpiresAt: expiresAt, Conditions: v.conditions(pod), MismatchPodUID: have.MismatchPodUID}
	if pod != nil {
		want.PodUID = pod.UID
	}
	if v.Slot && v.Pod == nil && have.VacatedBy == v.Record.Spec.PodName {
		want.VacatedBy = have.VacatedBy
	}
	switch {
	case v.mayBeAway() && pod == nil && !v.Slot:
		// The last pod that used the addresses may still run on a node other than their home (ADR 0029). The addresses of a
		// slot do not move.
		want.MovableFor = cmp.Or(have.MovableFor, have.PodUID)
	case v.mayBeAway(), v.Pod != nil && have.MovableFor == v.Pod.UID:
		want.MovableFor = have.MovableFor
	}
	if equality.Semantic.DeepEqual(have, want) {
		return Action{}
	}
	return Action{Type: UpdateStatus, Status: want}
}

// mayBeAway reports whether a pod may use the addresses on a node other than their home: the homes are unknown, or one of
// them is not the node that the FixedIP names. A pod that was deleted by force may still run on the node that the FixedIP
// names, although no pool has an entry for the pod, because a pool is lost with its CiliumNode.
func (v *evaluation) mayBeAway() bool {
	away := func(h AddressHome) bool { return h.Node != v.Record.Spec.NodeName }
	return len(v.Homes) == 0 || slices.ContainsFunc(v.Homes, away)
}

// afterGap returns a, or Nothing until the end of the Gap if a reports that the addresses are no longer in use. A report
// that changes more of the conditions than the reason and message of Ready is not delayed.
func (v *evaluation) afterGap(a Action) Action {
	due := v.Idle.Add(Gap)
	if v.Idle.IsZero() || !v.Now.Before(due) || a.Type != UpdateStatus || v.Record.Status.PodUID == "" ||
		!equality.Semantic.DeepEqual(withoutUse(v.Record.Status.Conditions), withoutUse(a.Status.Conditions)) {
		return a
	}
	return Action{At: due}
}

// withoutUse returns the conditions without the reason and message of Ready if these depend only on the use of the
// addresses.
func withoutUse(conditions []metav1.Condition) []metav1.Condition {
	same := slices.Clone(conditions)
	if c := meta.FindStatusCondition(same, v1alpha1.ConditionReady); c != nil && (c.Reason == v1alpha1.ReasonInUse || c.Reason == v1alpha1.ReasonReserved) {
		c.Reason, c.Message = "", ""
	}
	return same
}

// positive are the conditions that other controllers change. message is the message of the condition until another
// controller changes it.
var positive = []struct{ kind, message string }{
	{v1alpha1.ConditionSubnetAvailable, "No problem with the subnet of the addresses is known"},
	{v1alpha1.ConditionExclusive, "No other pod, FixedIP or pool is known to have the addresses"},
	{v1alpha1.ConditionAsReserved, "The pod is not known to run with other addresses"},
}

// conditions returns the conditions that the FixedIP should have. The conditions of other controllers are unchanged, except
// for the generation of those that are True; those that the FixedIP lacks are True. user is the pod that uses the addresses;
// nil: none.
func (v *evaluation) conditions(user *corev1.Pod) []metav1.Condition {
	want := slices.Clone(v.Record.Status.Conditions)
	set := func(kind string, status metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&want, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: v.Record.Generation,
			// The API stores whole seconds.
			LastTransitionTime: metav1.Time{Time: v.Now.Truncate(time.Second)},
		})
	}
	for _, c := range positive {
		switch have := meta.FindStatusCondition(want, c.kind); {
		case have == nil:
			set(c.kind, metav1.ConditionTrue, v1alpha1.ReasonNothingKnown, c.message)
		case have.Status == metav1.ConditionTrue:
			// kubectl wait does not accept a condition of an earlier generation, and no controller writes a condition that
			// stays True.
			have.ObservedGeneration = v.Record.Generation
		}
	}
	if have := meta.FindStatusCondition(want, v1alpha1.ConditionAllocated); have == nil || have.Reason == v1alpha1.ReasonNoHome {
		// The condition stays Unknown if Homes is empty, because the FixedIP has no addresses or is being deleted, and while
		// the addresses are moving. If no node has the subnet, allocation returns a Blocker.
		set(v1alpha1.ConditionAllocated, metav1.ConditionUnknown, v1alpha1.ReasonNoHome, "Not known yet: the FixedIP has no addresses, is being deleted, or its addresses are moving to another node")
	}
	if len(v.Homes) > 0 {
		node, missing, blocker := allocation(v.State)
		switch {
		case blocker != nil && blocker.Reason == pool.Moving:
			// Transient; no condition is needed.
		case blocker != nil:
			set(v1alpha1.ConditionAllocated, metav1.ConditionFalse, string(blocker.Reason), blocker.Message())
		case len(v.homesWith(pool.Cooldown, missing)) > 0:
			set(v1alpha1.ConditionAllocated, metav1.ConditionFalse, "NotAcknowledged", fmt.Sprintf("The Cilium agent of node %s has not confirmed yet that no other pod has IP %s; no pool entry is written before the confirmation", node, address.Join(missing)))
		case len(missing) == 0:
			set(v1alpha1.ConditionAllocated, metav1.ConditionTrue, "Allocated", "Every address has its entry in the pool of a node")
		}
	}
	status, reason, message := v.ready(want, user)
	set(v1alpha1.ConditionReady, status, reason, message)
	return want
}

// mismatched reports whether the condition AsReserved is about the current pod, and that pod has not opted out. No controller
// updates the condition when its pod is deleted or opts out.
func (v *evaluation) mismatched() bool {
	return v.Pod != nil && v.Pod.UID == v.Record.Status.MismatchPodUID && !identity.OptsOut(v.Pod)
}

// ready returns the condition Ready. It is false if the FixedIP is being deleted or has no addresses, if another condition
// shows a problem, or if the entries on the pod's node violate the binding invariant. If no node has the subnet of the
// addresses, or subnets overlap, both SubnetAvailable and Allocated may be False. SubnetAvailable is tried first, because only
// its message says what happened to the subnet, and which node gets it and when.
func (v *evaluation) ready(conditions []metav1.Condition, user *corev1.Pod) (status metav1.ConditionStatus, reason, message string) {
	r := v.Record
	switch {
	case r.DeletionTimestamp != nil:
		return metav1.ConditionFalse, v1alpha1.ReasonReleasing, "The FixedIP is being deleted; its addresses are released when no pod uses them any more"
	case len(r.Spec.IPs) == 0:
		return metav1.ConditionFalse, v1alpha1.ReasonNoAddress, "The FixedIP has no addresses; it gets those of its pod"
	}
	for _, kind := range []string{v1alpha1.ConditionSubnetAvailable, v1alpha1.ConditionAllocated, v1alpha1.ConditionExclusive, v1alpha1.ConditionAsReserved} {
		if kind == v1alpha1.ConditionAsReserved && !v.mismatched() {
			continue
		}
		if c := meta.FindStatusCondition(conditions, kind); c != nil && c.Status == metav1.ConditionFalse {
			return metav1.ConditionFalse, c.Reason, c.Message
		}
	}
	if v.node != "" && v.Pod.DeletionTimestamp == nil && !identity.OptsOut(v.Pod) {
		if err := pool.CheckBinding(ownerOf(v.State), v.node, v.held.Addrs, recorded(r)); err != nil {
			return metav1.ConditionFalse, "EntriesDiffer", err.Error()
		}
	}
	if user != nil {
		return metav1.ConditionTrue, v1alpha1.ReasonInUse, "A pod uses the addresses, and no problem is known"
	}
	return metav1.ConditionTrue, v1alpha1.ReasonReserved, "The addresses are reserved, no pod uses them, and no problem is known"
}
