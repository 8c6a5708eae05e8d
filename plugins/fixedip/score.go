// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// PreScore skips pods for which the free addresses of a node do not matter.
func (p *Plugin) PreScore(_ context.Context, state fwk.CycleState, _ *corev1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	s, err := read(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if !p.binder.Scores(s.Plan) {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

// Score prefers nodes with more free addresses, as a share of their subnets, so that these fill evenly.
func (p *Plugin) Score(_ context.Context, state fwk.CycleState, _ *corev1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	s, err := read(state)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	return int64(p.binder.Score(s.Plan, node.Node().Name) * float64(framework.MaxNodeScore)), nil
}

// ScoreExtensions returns nil: the scores span the framework's range.
func (p *Plugin) ScoreExtensions() framework.ScoreExtensions { return nil }
