// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// Reserve decides the pod's address, in memory.
func (p *Plugin) Reserve(_ context.Context, state fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	s, err := read(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if err := p.binder.Assume(s.Plan, pod, node); err != nil {
		return p.refuse(pod, s.decided, err)
	}
	p.queue.Remove(pod.UID)
	return nil
}

// Unreserve drops the decision. What a pod that Reserve refused waits for is kept: the framework calls Unreserve then,
// too.
func (p *Plugin) Unreserve(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) {
	p.binder.Forget(pod)
}

// PostBind drops the decision: the entry in the pool stands for it now.
func (p *Plugin) PostBind(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) {
	p.binder.Forget(pod)
	p.binder.Remove(pod)
	p.queue.Remove(pod.UID)
}
