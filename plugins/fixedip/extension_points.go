// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"fixedip.io/fixedip/plugins/fixedip/binder"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

// stateKey is the key of the plugin's state in a cycle.
const stateKey fwk.StateKey = Name

// stateData is the plugin's state in a cycle.
type stateData struct {
	*binder.Plan
	// decided is the moment before Find looked at the cluster.
	decided uint64
}

// Clone shares the state: a Plan may be used by parallel calls.
func (s *stateData) Clone() fwk.StateData { return s }

func read(state fwk.CycleState) (*stateData, error) {
	data, err := state.Read(stateKey)
	if s, ok := data.(*stateData); ok {
		return s, nil
	}
	return nil, fmt.Errorf("no state of plugin %s in the cycle, but %T: %w", Name, data, err)
}

// refuse returns the status for an error of the binder. A pod that it refused waits in the queue. No preemption helps
// it: a pod that is evicted keeps its address.
func (p *Plugin) refuse(pod *corev1.Pod, decided uint64, err error) *fwk.Status {
	var refusal *binder.Refusal
	if errors.As(err, &refusal) {
		p.queue.Add(pod, refusal.WakeOn, decided)
	}
	return statusOf(err)
}

// statusOf returns the status for an error of the binder; nil: success.
func statusOf(err error) *fwk.Status {
	var refusal *binder.Refusal
	var lost *binder.LostError
	switch {
	case errors.As(err, &refusal):
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, refusal.Reason)
	case errors.As(err, &lost):
		return fwk.NewStatus(fwk.Unschedulable, lost.Reason)
	}
	return fwk.AsStatus(err)
}

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

// PreFilter finds the pod's reservation and narrows the cycle to the nodes that can have it. Narrowing saves work and
// decides nothing: a nominated node is tried through Filter alone.
func (p *Plugin) PreFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) (*framework.PreFilterResult, *fwk.Status) {
	decided := p.queue.Now()
	plan, err := p.binder.Find(ctx, pod)
	if err != nil {
		return nil, p.refuse(pod, decided, err)
	}
	state.Write(stateKey, &stateData{Plan: plan, decided: decided})
	if p.binder.Skip(plan) {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	if !plan.Unreserved {
		metrics.Cycle(plan.Nodes != nil)
	}
	if plan.Nodes == nil {
		return nil, nil
	}
	return &framework.PreFilterResult{NodeNames: plan.Nodes}, nil
}

// PreFilterExtensions returns nil: other pods on a node change nothing about its addresses.
func (p *Plugin) PreFilterExtensions() framework.PreFilterExtensions { return nil }

// Filter decides whether a node can take the pod.
func (p *Plugin) Filter(_ context.Context, state fwk.CycleState, _ *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	s, err := read(state)
	if err != nil {
		return fwk.AsStatus(err)
	}
	return statusOf(p.binder.Fits(s.Plan, node.Node()))
}

// PostFilter says why no node could take the pod, and has the pod wait for what helps it. The profile calls it after
// DefaultPreemption, whose success ends the calls: then the pod waits for its victims.
func (p *Plugin) PostFilter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, nodes framework.NodeToStatusReader) (*framework.PostFilterResult, *fwk.Status) {
	s, err := read(state)
	if err != nil {
		// PreFilter has refused the pod, the plugin's own or another plugin's.
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	why, retry := p.binder.Explain(s.Plan, pod, func(node string) []string { return nodes.Get(node).Reasons() })
	switch {
	case why == nil:
		p.queue.PassOn(pod.UID)
		return nil, fwk.NewStatus(fwk.Unschedulable)
	case retry:
		p.queue.Retry(pod)
	default:
		p.queue.Add(pod, why.WakeOn, s.decided)
	}
	if why.Reason == "" {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	return nil, fwk.NewStatus(fwk.Unschedulable, why.Reason)
}

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
	return statusOf(p.binder.Bind(ctx, s.Plan, pod, node))
}

// PostBind drops the decision: the entry in the pool stands for it now.
func (p *Plugin) PostBind(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) {
	p.binder.Forget(pod)
	p.binder.Remove(pod)
	p.queue.Remove(pod.UID)
}
