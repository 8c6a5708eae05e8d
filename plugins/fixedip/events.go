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

// EventsToRegister names the one event of the framework that the plugin needs: the node of a pod's address is created.
// All else comes from the plugin's own cache. The scheduler calls this when its profiles are complete, so that the order
// of their plugins is checked here.
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	if err := checkOrder(p.handle); err != nil {
		return nil, err
	}
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
	if !p.binder.MayUse(pod, node.Name) {
		return fwk.QueueSkip, nil
	}
	metrics.Woken(metrics.Node)
	logger.V(5).Info("The node of the pod's address was created", "pod", klog.KObj(pod), "node", node.Name)
	return fwk.Queue, nil
}
