// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/nodeutil"
)

// Explain adds to the scheduler's count of nodes which node the pod's address belongs to, why that one cannot take the
// pod, and what helps. If the pod may leave its node, and this plan had that one only, the next plan has all nodes,
// unless pods that the pod preempted there are still terminating. A plan with all nodes is not followed by another: the
// pod waits for an event.
func (b *Binder) Explain(p *Plan, pod *corev1.Pod, refused func(node string) []string) Explanation {
	switch {
	case p.unreserved:
		return Explanation{WakeOn: b.wakeOnUnreserved(p, pod)}
	case p.searching:
		wake := b.wakeOnRoom(p)
		return Explanation{Reason: b.explainSlots(p, refused), WakeOn: &wake}
	case p.reservation.node == "":
		if !p.lacked.Load() {
			return Explanation{}
		}
		wake := b.wakeOnRoom(p)
		return Explanation{WakeOn: &wake}
	}
	nowhere := func(reason string) Explanation {
		wake := b.wakeOnNowhere(p)
		return Explanation{Reason: p.ownedByPrefix() + reason, WakeOn: &wake}
	}
	if stuck := b.nodeUnavailable(p); stuck != "" {
		if p.failover == "" {
			// The node has gone since Find.
			wake := b.wakeOnRemaining(p)
			return Explanation{WakeOn: &wake}
		}
		return nowhere(b.stuckReason(p, stuck, refused))
	}
	node := b.snapshot.Node(p.reservation.node)
	reason, remedy := hindrance(node, refused(node.Name))
	if p.failover != "" {
		return nowhere(reason + remedy + "; no other node can take it now")
	}
	policy := b.policyOf(p)
	remains, _ := b.whyNotElsewhere(p, policy)
	if remains == "" && !b.preempting(pod, node.Name) {
		b.tries.add(&b.tries.next, pod.UID, func() bool { return b.exists(pod) })
		return Explanation{Reason: p.ownedByPrefix() + reason + "; other nodes are tried", Retry: true}
	}
	why := remains
	if policy == v1alpha1.Wait && remedy == "" {
		why = ""
	}
	wake := b.wakeOnRemaining(p)
	return Explanation{Reason: p.ownedByPrefix() + reason + remedy + why, WakeOn: &wake}
}

// stuckReason says that no other node can take the pod either, as the end of the sentence that ownedByPrefix begins.
func (b *Binder) stuckReason(p *Plan, stuck string, refused func(string) []string) string {
	home := b.snapshot.Node(p.home)
	if home == nil {
		return stuck + "; no other node can take it now"
	}
	reason, remedy := hindrance(home, refused(home.Name))
	return fmt.Sprintf("does not exist; it goes back to node %s, in whose subnet it is, which %s%s", p.home, reason, remedy)
}

// hindrance says why a node cannot take a pod, and what helps if that is plain.
func hindrance(node *corev1.Node, refused []string) (reason, remedy string) {
	switch {
	case !nodeutil.IsReady(node):
		return "is not ready", "; it waits for that node to come back"
	case node.Spec.Unschedulable:
		return "is cordoned", "; uncordon it"
	case len(refused) > 0:
		return "can't take it: " + strings.Join(refused, ", "), ""
	}
	return "can't take it now", ""
}

// preempting reports whether pods that make room for this one on a node are still terminating.
func (b *Binder) preempting(pod *corev1.Pod, node string) bool {
	if pod.Status.NominatedNodeName != node {
		return false
	}
	for other := range b.snapshot.PodsOn(node) {
		if other.DeletionTimestamp != nil && corev1helpers.PodPriority(other) < corev1helpers.PodPriority(pod) {
			return true
		}
	}
	return false
}
