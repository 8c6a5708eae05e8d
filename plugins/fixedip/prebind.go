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

// PreBindPreFlight skips PreBind if there is nothing to do: a pod that returns to its node costs no write.
func (p *Plugin) PreBindPreFlight(_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ string) *fwk.Status {
	s, err := read(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if p.binder.Claimed(s.Plan, pod) {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

// PreBind writes the claim into the node's pool. The framework does not wake a pod by an event after Reserve: a pod
// whose claim was lost comes back by backoff.
func (p *Plugin) PreBind(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	s, err := read(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	err = p.binder.Bind(ctx, s.Plan, pod, node)
	var lost *binder.LostError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &lost):
		return fwk.NewStatus(fwk.Unschedulable, lost.Reason)
	}
	return p.refuse(pod, s.decided, err)
}
