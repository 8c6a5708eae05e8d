// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"fixedip.io/fixedip/plugins/fixedip/binder"
)

// Filter decides whether a node can take the pod.
func (p *Plugin) Filter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	s, err := read(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	err = p.binder.Fits(s.Plan, pod, node.Node())
	if err == nil {
		return nil
	}
	var refusal *binder.Refusal
	if errors.As(err, &refusal) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, refusal.Reason)
	}
	return fwk.AsStatus(err)
}
