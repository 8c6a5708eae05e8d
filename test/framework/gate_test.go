// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"fixedip.io/fixedip/plugins/fixedip"
)

// point is an extension point.
type point string

const (
	preFilter point = "PreFilter"
	// filter is a stop before the first Filter of a cycle. Its answer is always Success. All calls of Filter run after the
	// stop, in parallel, and the row does not see their answers.
	filter     point = "Filter"
	postFilter point = "PostFilter"
	reserve    point = "Reserve"
	unreserve  point = "Unreserve"
	preFlight  point = "PreBindPreFlight"
	preBind    point = "PreBind"
	postBind   point = "PostBind"
	// The following points are those of the saboteur, which runs after the plugin.
	permit       point = "Permit"
	laterPreBind point = "later PreBind"
	bind         point = "Bind"
)

// call is a stopped call of an extension point. It continues when the row has sent how, and the cycle continues when the row
// has compared the stored objects and closed looked.
type call struct {
	point  point
	pod    *corev1.Pod
	how    chan sabotage
	status chan *fwk.Status
	looked chan struct{}
}

// sabotage describes how the saboteur fails at a point. With the zero value the saboteur does not fail.
type sabotage struct {
	// fails is the message of the failure. If it is empty, the saboteur causes no failure.
	fails string
	// done is true if the bind is executed and then reported as failed.
	done bool
}

// gate stops every cycle of a scheduler at every extension point until the row lets it pass.
type gate struct {
	calls chan *call
	// opened is canceled when the row is over. From then on all calls pass.
	opened context.Context
}

func (g *gate) pass(p point, pod *corev1.Pod, do func(sabotage) *fwk.Status) *fwk.Status {
	c := &call{point: p, pod: pod, how: make(chan sabotage, 1), status: make(chan *fwk.Status, 1), looked: make(chan struct{})}
	var how sabotage
	select {
	case g.calls <- c:
	case <-g.opened.Done():
		return do(how)
	}
	select {
	case how = <-c.how:
	case <-g.opened.Done():
	}
	status := do(how)
	c.status <- status
	select {
	case <-c.looked:
	case <-g.opened.Done():
	}
	return status
}

// watched is the plugin with the gate at its extension points.
type watched struct {
	*fixedip.Plugin
	gate *gate
}

var (
	_ framework.PreFilterPlugin   = &watched{}
	_ framework.FilterPlugin      = &watched{}
	_ framework.PostFilterPlugin  = &watched{}
	_ framework.ReservePlugin     = &watched{}
	_ framework.PreBindPlugin     = &watched{}
	_ framework.PostBindPlugin    = &watched{}
	_ framework.EnqueueExtensions = &watched{}
)

// watchedFactory returns a factory that makes the plugin as the scheduler program does, adds the gate, and passes the plugin
// to made.
func watchedFactory(g *gate, made func(*fixedip.Plugin)) frameworkruntime.PluginFactory {
	factory := fixedip.Factory()
	return func(ctx context.Context, args runtime.Object, h framework.Handle) (framework.Plugin, error) {
		p, err := factory(ctx, args, h)
		if err != nil {
			return nil, err
		}
		made(p.(*fixedip.Plugin))
		return &watched{Plugin: p.(*fixedip.Plugin), gate: g}, nil
	}
}

// firstFilter lets the first call of Filter in a scheduling cycle pass through the gate, and no other. It is stored in the
// CycleState, whose clones share it.
type firstFilter struct{ sync.Once }

func (f *firstFilter) Clone() fwk.StateData { return f }

const firstFilterKey fwk.StateKey = "test/firstFilter"

func (w *watched) PreFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (result *framework.PreFilterResult, status *fwk.Status) {
	state.Write(firstFilterKey, &firstFilter{})
	w.gate.pass(preFilter, pod, func(sabotage) *fwk.Status {
		result, status = w.Plugin.PreFilter(ctx, state, pod, nodes)
		return status
	})
	return result, status
}

func (w *watched) Filter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	first, err := state.Read(firstFilterKey)
	if err != nil {
		return fwk.AsStatus(err)
	}
	first.(*firstFilter).Do(func() {
		w.gate.pass(filter, pod, func(sabotage) *fwk.Status { return nil })
	})
	return w.Plugin.Filter(ctx, state, pod, node)
}

func (w *watched) PostFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes framework.NodeToStatusReader) (result *framework.PostFilterResult, status *fwk.Status) {
	if first, err := state.Read(firstFilterKey); err == nil {
		// Calls of Filter that PostFilter makes are not steps.
		first.(*firstFilter).Do(func() {})
	}
	w.gate.pass(postFilter, pod, func(sabotage) *fwk.Status {
		result, status = w.Plugin.PostFilter(ctx, state, pod, nodes)
		return status
	})
	return result, status
}

func (w *watched) Reserve(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	return w.gate.pass(reserve, pod, func(sabotage) *fwk.Status { return w.Plugin.Reserve(ctx, state, pod, node) })
}

func (w *watched) Unreserve(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) {
	w.gate.pass(unreserve, pod, func(sabotage) *fwk.Status { w.Plugin.Unreserve(ctx, state, pod, node); return nil })
}

func (w *watched) PreBindPreFlight(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	return w.gate.pass(preFlight, pod, func(sabotage) *fwk.Status { return w.Plugin.PreBindPreFlight(ctx, state, pod, node) })
}

func (w *watched) PreBind(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	return w.gate.pass(preBind, pod, func(sabotage) *fwk.Status { return w.Plugin.PreBind(ctx, state, pod, node) })
}

func (w *watched) PostBind(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) {
	w.gate.pass(postBind, pod, func(sabotage) *fwk.Status { w.Plugin.PostBind(ctx, state, pod, node); return nil })
}

const saboteurName = "Saboteur"

// saboteur comes after the plugin in the profile, and binds in place of the default binder. It fails as sabotage describes.
type saboteur struct {
	gate   *gate
	handle framework.Handle
}

var (
	_ framework.PermitPlugin  = &saboteur{}
	_ framework.PreBindPlugin = &saboteur{}
	_ framework.BindPlugin    = &saboteur{}
)

func (s *saboteur) Name() string { return saboteurName }

func (s *saboteur) Permit(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) (*fwk.Status, time.Duration) {
	return s.gate.pass(permit, pod, func(how sabotage) *fwk.Status {
		if how.fails != "" {
			return fwk.NewStatus(fwk.Unschedulable, how.fails)
		}
		return nil
	}), 0
}

func (s *saboteur) PreBindPreFlight(context.Context, fwk.CycleState, *corev1.Pod, string) *fwk.Status {
	return nil
}

func (s *saboteur) PreBind(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) *fwk.Status {
	return s.gate.pass(laterPreBind, pod, func(how sabotage) *fwk.Status {
		if how.fails != "" {
			return fwk.AsStatus(errors.New(how.fails))
		}
		return nil
	})
}

func (s *saboteur) Bind(ctx context.Context, _ fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	return s.gate.pass(bind, pod, func(how sabotage) *fwk.Status {
		if how.fails == "" || how.done {
			err := s.handle.ClientSet().CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
				ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID)},
				Target:     corev1.ObjectReference{Kind: "Node", Name: node},
			}, metav1.CreateOptions{})
			if err != nil {
				return fwk.AsStatus(fmt.Errorf("bind pod %s/%s to node %s: %w", pod.Namespace, pod.Name, node, err))
			}
		}
		if how.fails != "" {
			return fwk.AsStatus(errors.New(how.fails))
		}
		return nil
	})
}
