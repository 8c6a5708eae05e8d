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

// PreFilter finds the pod's reservation and narrows the cycle to the nodes that can have it. Narrowing saves work and
// decides nothing: a nominated node is tried through Filter alone.
func (p *Plugin) PreFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) (*framework.PreFilterResult, *fwk.Status) {
	decided := p.queue.Now()
	plan, err := p.binder.Find(ctx, pod)
	if err != nil {
		return nil, p.refuse(pod, decided, err)
	}
	state.Write(stateKey, &stateData{Plan: plan, decided: decided})
	if plan.Skip(p.binder.AnyStrict()) {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	if plan.Fixed() {
		metrics.Cycle(plan.Nodes() != nil)
	}
	if plan.Nodes() == nil {
		return nil, nil
	}
	return &framework.PreFilterResult{NodeNames: plan.Nodes()}, nil
}

// PreFilterExtensions returns nil: other pods on a node change nothing about its addresses.
func (p *Plugin) PreFilterExtensions() framework.PreFilterExtensions { return nil }
