// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/nodeutil"
)

// Explain says why no node could take the pod, and what helps; nil if nothing helps that the binder knows of. refused
// returns the reasons for one node. It adds to the scheduler's count of nodes which node the pod's address belongs to, and
// why that one cannot take the pod. If the pod may leave its node, and this plan had that one only, the next plan has all
// nodes, and retry is true: the pod is to be tried again at once. That is not so while pods that the pod preempted there
// are still terminating. A plan with all nodes is not followed by another: the pod waits for an event.
func (b *Binder) Explain(p *Plan, pod *corev1.Pod, refused func(node string) []string) (why *Refusal, retry bool) {
	switch {
	case p.Unreserved:
		return b.explainUnreserved(p, pod), false
	case p.searching:
		return &Refusal{Reason: b.explainSlots(p, refused), WakeOn: b.wakeOnRoom(p)}, false
	case p.reservation.node == "" && p.lacked.Load():
		return &Refusal{WakeOn: b.wakeOnRoom(p)}, false
	case p.reservation.node == "":
		return nil, false
	}
	stuck := b.nodeUnavailable(p)
	switch {
	case stuck != "" && p.failover == "":
		// The node has gone since Find.
		return &Refusal{WakeOn: b.wakeOnRemaining(p)}, false
	case stuck != "":
		return &Refusal{Reason: p.ownedByPrefix() + b.stuckReason(p, stuck, refused), WakeOn: b.wakeOnNowhere(p)}, false
	}
	node := b.node(p.reservation.node)
	reason, remedy := hindrance(node, refused(node.Name))
	if p.failover != "" {
		return &Refusal{Reason: p.ownedByPrefix() + reason + remedy + "; no other node can take it now", WakeOn: b.wakeOnNowhere(p)}, false
	}
	policy := b.policyOf(p)
	remains, _ := b.whyNotElsewhere(p, policy)
	if remains == "" && !b.preempting(pod, node.Name) {
		b.remember(&b.widenNext, pod)
		return &Refusal{Reason: p.ownedByPrefix() + reason + "; other nodes are tried"}, true
	}
	if policy == v1alpha1.Wait && remedy == "" {
		remains = ""
	}
	return &Refusal{Reason: p.ownedByPrefix() + reason + remedy + remains, WakeOn: b.wakeOnRemaining(p)}, false
}

// stuckReason says that no other node can take the pod either, as the end of the sentence that ownedByPrefix begins.
func (b *Binder) stuckReason(p *Plan, stuck string, refused func(string) []string) string {
	home := b.node(p.home)
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
	return pod.Status.NominatedNodeName == node && slices.ContainsFunc(b.podsOn(node), func(other *corev1.Pod) bool {
		return other.DeletionTimestamp != nil && corev1helpers.PodPriority(other) < corev1helpers.PodPriority(pod)
	})
}
