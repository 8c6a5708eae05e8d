// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

// EventsToRegister names the one event of the framework's that the plugin needs: a pod whose owner
// node was missing. CiliumNodes and FixedIPs are watched by the plugin itself, which wakes pods
// from there (see waiting): one view of the world for hints and decisions.
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{{
		Event:          fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add},
		QueueingHintFn: p.nodeAdded,
	}}, nil
}

func (p *Plugin) nodeAdded(logger klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	_, node, err := util.As[*corev1.Node](before, after)
	if err != nil {
		return fwk.Queue, err
	}
	id, fixed, _, err := p.identityOf(pod)
	if err != nil || !fixed {
		// The annotation is at fault, or the owner not seen, which no node mends.
		return fwk.QueueSkip, nil
	}
	r, err := p.world.reservationOf(context.Background(), id)
	if err != nil || r.node != node.Name && p.homeward(id, r) != node.Name && (r.node != "" || !p.reaches(pod, id, node.Name) && !p.slotOn(id, node.Name)) {
		return fwk.QueueSkip, nil
	}
	metrics.Woken(metrics.Node)
	logger.V(5).Info("The node whose subnets have the pod's address is there", "pod", klog.KObj(pod), "node", node.Name)
	return fwk.Queue, nil
}
