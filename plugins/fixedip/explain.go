package fixedip

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"fixedip.io/fixedip/ipam/core/address"
)

// PostFilter changes nothing: it adds to the pod's message what the count of nodes that the
// framework makes does not say, namely which node the pod's address belongs to, why that one can't
// take the pod, and what would help. What is refused by PreFilter is explained there.
func (p *Plugin) PostFilter(_ context.Context, state fwk.CycleState, _ *corev1.Pod, nodes framework.NodeToStatusReader) (*framework.PostFilterResult, *fwk.Status) {
	c, err := read(state)
	if err != nil || c.bystander || c.reservation.node == "" {
		// Without a state PreFilter has refused the pod, its own or another plugin's.
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	owner, err := p.handle.SnapshotSharedLister().NodeInfos().Get(c.reservation.node)
	if err != nil {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	return nil, fwk.NewStatus(fwk.Unschedulable, fmt.Sprintf("its address %s belongs to node %s, which %s",
		address.Join(c.reservation.addrs), c.reservation.node, hindrance(owner.Node(), nodes.Get(c.reservation.node))))
}

// hindrance says what keeps a node from taking a pod, and what would help where that is plain.
func hindrance(node *corev1.Node, refused *fwk.Status) string {
	switch {
	case !ready(node):
		return "is not ready; it waits for that node to come back"
	case node.Spec.Unschedulable:
		return "is cordoned; uncordon it"
	case refused != nil && len(refused.Reasons()) > 0:
		return "can't take it: " + strings.Join(refused.Reasons(), ", ")
	}
	return "can't take it now"
}

func ready(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
