// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/nodeutil"
)

// PostFilter is called when no node could take the pod. It has the next cycle look at all nodes where
// this one looked at the pod's own alone, the pod may leave that, and no victims of its preemption are
// still going there: the profile has to have the plugin after DefaultPreemption, whose success ends
// the call of the others. It is so in multiPoint, where the default plugins come first. A cycle that
// has looked at all nodes is not followed by another: the pod waits for an event.
//
// Otherwise it adds to the pod's message what the count of nodes that the framework makes does not
// say, namely which node the pod's address belongs to, why that one can't take the pod, and what would
// help. What is refused by PreFilter is explained there.
func (p *Plugin) PostFilter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, nodes framework.NodeToStatusReader) (*framework.PostFilterResult, *fwk.Status) {
	c, err := read(state)
	if err == nil && c.seeks {
		return nil, fwk.NewStatus(fwk.Unschedulable, p.explainSlots(c, nodes))
	}
	if err != nil || c.bystander || c.reservation.node == "" {
		// Without a state PreFilter has refused the pod, its own or another plugin's.
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	if stuck := p.stuck(c); stuck != "" && c.failover == "" {
		// PreFilter has refused it.
		return nil, fwk.NewStatus(fwk.Unschedulable)
	} else if stuck != "" {
		p.waiting.refuse(pod, p.causeOfNowhere(c), c.decided)
		return nil, fwk.NewStatus(fwk.Unschedulable, c.belongs()+p.nowhere(c, stuck, nodes))
	}
	owner, err := p.handle.SnapshotSharedLister().NodeInfos().Get(c.reservation.node)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	reason, mends := hindrance(owner.Node(), nodes.Get(c.reservation.node))
	if c.failover != "" {
		p.waiting.refuse(pod, p.causeOfNowhere(c), c.decided)
		return nil, fwk.NewStatus(fwk.Unschedulable, c.belongs()+reason+mends+"; no other node can take it now")
	}
	policy := p.policyOf(c)
	remains, _ := p.remains(c, policy)
	switch {
	case remains == "" && !preempting(pod, owner):
		p.waiting.leave(pod)
		return nil, fwk.NewStatus(fwk.Unschedulable, c.belongs()+reason+"; other nodes are tried")
	case policy == v1alpha1.Wait && mends == "":
		remains = ""
	}
	p.waiting.refuse(pod, p.causeOfRemaining(c, policy), c.decided)
	return nil, fwk.NewStatus(fwk.Unschedulable, c.belongs()+reason+mends+remains)
}

// nowhere says that no other node can take the pod either, as the end of the sentence that belongs begins.
func (p *Plugin) nowhere(c *cycle, stuck string, nodes framework.NodeToStatusReader) string {
	home, err := p.handle.SnapshotSharedLister().NodeInfos().Get(c.home)
	if err != nil {
		return stuck + "; no other node can take it now"
	}
	reason, mends := hindrance(home.Node(), nodes.Get(c.home))
	return fmt.Sprintf("does not exist; it goes back to node %s, in whose subnet it is, which %s%s", c.home, reason, mends)
}

// hindrance says what keeps a node from taking a pod, and what would help where that is plain.
func hindrance(node *corev1.Node, refused *fwk.Status) (reason, mends string) {
	switch {
	case !nodeutil.IsReady(node):
		return "is not ready", "; it waits for that node to come back"
	case node.Spec.Unschedulable:
		return "is cordoned", "; uncordon it"
	case refused != nil && len(refused.Reasons()) > 0:
		return "can't take it: " + strings.Join(refused.Reasons(), ", "), ""
	}
	return "can't take it now", ""
}

// preempting tells whether pods that make room for this one are still going.
func preempting(pod *corev1.Pod, node fwk.NodeInfo) bool {
	if pod.Status.NominatedNodeName != node.Node().Name {
		return false
	}
	for _, other := range node.GetPods() {
		if o := other.GetPod(); o.DeletionTimestamp != nil && corev1helpers.PodPriority(o) < corev1helpers.PodPriority(pod) {
			return true
		}
	}
	return false
}
