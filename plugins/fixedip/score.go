// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// PreScore leaves out pods for which the free addresses of a node say nothing: those without a
// fixed one, and those that have theirs.
func (p *Plugin) PreScore(_ context.Context, state fwk.CycleState, _ *corev1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	c, err := read(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if c.bystander || c.reservation.node != "" && c.failover != v1alpha1.Reassign {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

// Score prefers nodes with more free addresses, as a share of their subnets, so that these fill
// evenly. A node is as full as it is in its fuller family.
// Where an earlier try to give the pod other addresses has claimed some already, that node comes first.
func (p *Plugin) Score(_ context.Context, state fwk.CycleState, _ *corev1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	c, err := read(state)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	if slices.Contains(c.reservation.holders, node.Node().Name) {
		return framework.MaxNodeScore, nil
	}
	score := float64(framework.MaxNodeScore)
	for _, f := range p.families {
		score = min(score, p.world.ledger.FreeShare(node.Node().Name, f)*float64(framework.MaxNodeScore))
	}
	return int64(score), nil
}

// ScoreExtensions is nil: the scores span the framework's range as they are.
func (p *Plugin) ScoreExtensions() framework.ScoreExtensions { return nil }
