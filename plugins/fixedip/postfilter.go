// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

// PostFilter says why no node could take the pod, and has the pod wait for what helps it. The profile calls it after
// DefaultPreemption, whose success ends the calls: then the pod waits for its victims.
func (p *Plugin) PostFilter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, nodes framework.NodeToStatusReader) (*framework.PostFilterResult, *fwk.Status) {
	s, err := read(state)
	if err != nil {
		// PreFilter has refused the pod, the plugin's own or another plugin's.
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	e := p.binder.Explain(s.Plan, pod, func(node string) []string { return nodes.Get(node).Reasons() })
	switch {
	case e.Retry:
		p.queue.Retry(pod, metrics.Failover)
	case e.WakeOn != nil:
		p.queue.Add(pod, *e.WakeOn, s.decided)
	default:
		p.queue.PassOn(pod.UID)
	}
	if e.Reason == "" {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	return nil, fwk.NewStatus(fwk.Unschedulable, e.Reason)
}
