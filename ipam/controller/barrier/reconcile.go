// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package barrier

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/agentview"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// Reconcile reads the answer of one agent, and asks it if questions wait.
func (s *Service) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	s.mu.Lock()
	n := s.nodes[req.Name]
	if n == nil {
		s.mu.Unlock()
		return reconcile.Result{}, nil
	}
	maps.DeleteFunc(n.answers, func(_ string, a answer) bool { return s.clock.Since(a.at) >= remembered })
	s.drop(req.Name)
	barrier, open := n.barrier, n.open()
	s.mu.Unlock()
	if open == 0 {
		return reconcile.Result{}, nil
	}

	// A cached version would not do, see package agentview.
	now, err := s.pools.Get(ctx, req.Name)
	if errors.Is(err, ciliumpool.ErrGone) {
		s.forget(req.Name)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if barrier != nil && !s.read(ctx, *barrier, now) {
		return s.await(now), nil
	}
	return s.ask(ctx, now)
}

// read reads the answer to the barrier under way, if there is one. It reports whether the barrier is over.
func (s *Service) read(ctx context.Context, b agentview.Barrier, now pool.NodePool) bool {
	evidence, got := b.Answer(now)
	s.mu.Lock()
	n := s.nodes[now.Name]
	n.last = got
	var done []func()
	switch got {
	case agentview.Complete:
		at := s.clock.Now()
		for key, notify := range n.asked {
			n.answers[key] = answer{evidence, at}
			done = append(done, notify)
		}
		metrics.BarrierAnswered(at.Sub(n.began))
		klog.FromContext(ctx).V(2).Info("The agent has answered", "node", now.Name, "questions", len(done), "after", at.Sub(n.began))
		n.began, n.reported = at, false
	case agentview.Void:
		maps.Copy(n.waiting, n.asked)
	default:
		s.mu.Unlock()
		return false
	}
	n.barrier = nil
	clear(n.asked)
	s.mu.Unlock()
	for _, notify := range done {
		notify()
	}
	return true
}

// ask writes a probe for the questions that wait, if there are any.
func (s *Service) ask(ctx context.Context, now pool.NodePool) (reconcile.Result, error) {
	s.mu.Lock()
	n := s.nodes[now.Name]
	// Questions that come while the probe is written wait for the next one.
	served := maps.Clone(n.waiting)
	s.mu.Unlock()
	if len(served) == 0 {
		return reconcile.Result{RequeueAfter: remembered}, nil
	}
	if !now.HasPool {
		// The agent would pass over the probe.
		return s.await(now), nil
	}
	if delay := s.pools.Delay(now.Name); delay > 0 {
		return reconcile.Result{RequeueAfter: delay}, nil
	}
	probe := agentview.NewProbe(now)
	asked, err := s.pools.Ask(ctx, now, probe)
	if err != nil {
		// A probe that was written although the answer was lost is removed by the agent, or with the next probe.
		return reconcile.Result{}, fmt.Errorf("ask the agent of node %s: %w", now.Name, err)
	}
	s.mu.Lock()
	n.barrier, n.last = &agentview.Barrier{Asked: asked, Probe: probe}, agentview.Pending
	for key := range served {
		n.asked[key] = n.waiting[key]
		delete(n.waiting, key)
	}
	s.mu.Unlock()
	return s.await(now), nil
}

// await reports an agent that is overdue, and returns when to look again if the watch shows nothing.
func (s *Service) await(now pool.NodePool) reconcile.Result {
	s.mu.Lock()
	n := s.nodes[now.Name]
	left := n.began.Add(overdue).Sub(s.clock.Now())
	report := left <= 0 && !n.reported
	n.reported = n.reported || report
	why := n.why(now.Name)
	s.mu.Unlock()
	if report {
		s.events.Eventf(ciliumpool.Reference(now), nil, corev1.EventTypeWarning, "AgentNotAnswering", "AskAgent",
			"The Cilium agent has not answered for %s: %s. Addresses of the node are not given to other pods until it answers or the node is deleted; check the cilium pod of the node", overdue, why)
	}
	if left <= 0 {
		left = overdue
	}
	return reconcile.Result{RequeueAfter: left}
}

// forget drops all that is asked about a node that is gone. The callers look again.
func (s *Service) forget(nodeName string) {
	s.mu.Lock()
	n := s.nodes[nodeName]
	delete(s.nodes, nodeName)
	s.mu.Unlock()
	for _, questions := range []map[string]func(){n.asked, n.waiting} {
		for _, notify := range questions {
			notify()
		}
	}
}

// Overdue returns the number of nodes whose agents have not answered for longer than they should take, and Pending the
// number of nodes with questions that have no answer yet.
func (s *Service) Overdue() (pending, late int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.nodes {
		if n.open() == 0 {
			continue
		}
		pending++
		if s.clock.Since(n.began) >= overdue {
			late++
		}
	}
	return pending, late
}
