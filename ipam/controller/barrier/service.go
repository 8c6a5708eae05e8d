// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package barrier

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/agentview"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

const (
	// overdue is the default of Service.AnswerTimeout.
	overdue = 2 * time.Minute
	// remembered is the minimum time for which an answer is stored, so that a caller that judges the evidence again after pods
	// have changed needs no other barrier. A reconcile of the node after that time drops the answer.
	remembered = 10 * time.Minute
)

// Pools reads and writes CiliumNodes. Get reads from the API server; its error matches ciliumpool.ErrGone if the
// CiliumNode does not exist. WriteProbe writes a probe into the status and returns the node as it is after that write.
type Pools interface {
	Get(ctx context.Context, node string) (pool.NodePool, error)
	WriteProbe(ctx context.Context, n pool.NodePool, probe netip.Addr) (pool.NodePool, error)
	// Delay returns the time for which the rate limit delays the next write of the CiliumNode.
	Delay(node string) time.Duration
}

// Service runs agent barriers, at most one at a time for each node.
type Service struct {
	// AnswerTimeout is the time without an answer after which an agent counts as overdue and an event reports it. An agent
	// answers within one report interval, 15 s by default, and within two if its report conflicts with another write of the
	// CiliumNode. Set it before the first request.
	AnswerTimeout time.Duration

	pools    Pools
	clock    clock.PassiveClock
	events   events.EventRecorder
	requests source.Requests

	mu sync.Mutex
	// nodes are the nodes with requests or answers. Key: the name of the node.
	nodes map[string]*node
}

// node contains the barrier requests for one node and their answers. The mutex of the Service guards it.
type node struct {
	// waiting contains the requests that no probe serves yet, and asked the requests that the current barrier serves. Key: the
	// key of the request. Value: the function to call when the agent has answered. answers contains the answers to all other
	// requests, by the same key. Each request is in exactly one of the three maps.
	waiting, asked map[string]func()
	answers        map[string]answer
	// barrier is the current barrier; nil: there is none.
	barrier *agentview.Barrier
	// began is the time of the oldest open request, or of the last answer of the agent if that is later. reported is true if
	// the agent has been reported as overdue since then.
	began    time.Time
	reported bool
	// last is the latest state of the current barrier, for waitReason.
	last agentview.Answer
}

// New returns a Service without barrier requests.
func New(pools Pools, recorder events.EventRecorder, c clock.PassiveClock) *Service {
	return &Service{AnswerTimeout: overdue, pools: pools, events: recorder, clock: c, nodes: map[string]*node{}}
}

// Setup adds the controller that writes probes and reads answers to a manager.
func (s *Service) Setup(mgr ctrl.Manager, o controller.Options) error {
	start := s.requests.Source(nil, func() (all []ctrl.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for name := range s.nodes {
			all = append(all, source.ForName(name))
		}
		return all
	})
	if err := ctrl.NewControllerManagedBy(mgr).Named("agent-barrier").WatchesRawSource(start).WithOptions(o).Complete(s); err != nil {
		return fmt.Errorf("set up the controller of agent barriers: %w", err)
	}
	return nil
}

// answer is the evidence from an agent, and the time at which the Service read it.
type answer struct {
	evidence agentview.Evidence
	at       time.Time
}

// Ask makes a barrier request. It returns the evidence from the node's agent and the time at which the Service read it. If
// there is no answer yet, Ask records the request and returns the zero time; it does not wait. When the agent has answered,
// or the CiliumNode does not exist, the Service calls notify, which has to make the caller call Ask again and must not block.
// An answer is stored for ten minutes or longer: Ask returns it until a reconcile of the node drops it.
//
// key identifies the request. It has to contain everything that the answer depends on, for example the UID of the
// CiliumNode, the address, the pool entry that the agent has to have seen, and the UID of the deleted pod. An answer
// about an earlier entry proves nothing about a later one.
func (s *Service) Ask(nodeName, key string, notify func()) (evidence agentview.Evidence, answered time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[nodeName]
	if n == nil {
		n = &node{waiting: map[string]func(){}, asked: map[string]func(){}, answers: map[string]answer{}}
		s.nodes[nodeName] = n
	}
	if a, ok := n.answers[key]; ok {
		return a.evidence, a.at
	}
	if _, asked := n.asked[key]; asked {
		n.asked[key] = notify
		return agentview.Evidence{}, time.Time{}
	}
	if n.open() == 0 {
		n.began = s.clock.Now()
	}
	n.waiting[key] = notify
	s.requests.Add(source.ForName(nodeName))
	return agentview.Evidence{}, time.Time{}
}

// Forget drops the answer to a barrier request, so that the next Ask with this key makes a new request.
func (s *Service) Forget(nodeName, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[nodeName]; n != nil {
		delete(n.answers, key)
		s.drop(nodeName)
	}
}

// Changed enqueues the node if it has open requests. Call Changed when the watch shows another version of a CiliumNode, or
// its deletion.
func (s *Service) Changed(nodeName string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[nodeName]; n != nil && n.open() > 0 {
		s.requests.Add(source.ForName(nodeName))
	}
}

// open returns the number of requests without an answer.
func (n *node) open() int { return len(n.waiting) + len(n.asked) }

// waitReason returns the reason why the open requests have no answer, for the event.
func (n *node) waitReason(name string) string {
	since := n.began.UTC().Format(time.RFC3339)
	switch {
	case n.barrier == nil:
		// Without a barrier, await is called only because the CiliumNode has no pool (see ask).
		return fmt.Sprintf("waiting since %s for a pool in the CiliumNode of node %s, without which the Cilium agent cannot be asked", since, name)
	case n.last == agentview.Incomplete:
		return fmt.Sprintf("waiting since %s for the Cilium agent on node %s to restore its endpoints and report an address of the node itself (with --local-router-ipv4 it reports one only if its health checks are enabled)", since, name)
	case n.last == agentview.NoPool:
		return fmt.Sprintf("waiting since %s for a pool in the CiliumNode of node %s, without which the Cilium agent does not answer", since, name)
	}
	return fmt.Sprintf("waiting since %s for the Cilium agent on node %s to answer", since, name)
}

// drop removes the node if it has neither requests nor answers. It requires mu.
func (s *Service) drop(nodeName string) {
	if n := s.nodes[nodeName]; n != nil && n.open() == 0 && len(n.answers) == 0 {
		delete(s.nodes, nodeName)
	}
}

// Reconcile reads the answer of the agent of one node, and begins a barrier if requests wait for one.
func (s *Service) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	s.mu.Lock()
	n := s.nodes[req.Name]
	if n == nil {
		s.mu.Unlock()
		return ctrl.Result{}, nil
	}
	maps.DeleteFunc(n.answers, func(_ string, a answer) bool { return s.clock.Since(a.at) >= remembered })
	s.drop(req.Name)
	barrier, open := n.barrier, n.open()
	// A probe that this reconcile writes or joins may serve only these requests: a later request may depend on state that is
	// newer than the read below.
	known := slices.AppendSeq(slices.Collect(maps.Keys(n.waiting)), maps.Keys(n.asked))
	s.mu.Unlock()
	if open == 0 {
		return ctrl.Result{}, nil
	}

	// A CiliumNode from the cache proves nothing: see package agentview.
	now, err := s.pools.Get(ctx, req.Name)
	if errors.Is(err, ciliumpool.ErrGone) {
		s.forget(req.Name)
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	if barrier != nil && !s.read(ctx, *barrier, now) {
		return s.await(now), nil
	}
	return s.ask(ctx, now, known)
}

// read evaluates the barrier b in the CiliumNode now and, if the agent has answered, stores the answer and notifies the
// callers. It reports whether the barrier is over: the agent has answered, or the CiliumNode was recreated and the requests
// wait for another barrier.
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
		klog.FromContext(ctx).V(2).Info("The agent has answered the barrier", "node", now.Name, "requests", len(done), "after", at.Sub(n.began))
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

// ask begins a barrier for those of the known requests that wait. It writes a probe, or joins a probe that the CiliumNode
// already has: that of another controller, or one whose writer was killed or got no response from the API server.
func (s *Service) ask(ctx context.Context, now pool.NodePool, known []string) (ctrl.Result, error) {
	s.mu.Lock()
	n := s.nodes[now.Name]
	served := slices.DeleteFunc(known, func(key string) bool { return n.waiting[key] == nil })
	s.mu.Unlock()
	if len(served) == 0 {
		return ctrl.Result{RequeueAfter: remembered}, nil
	}
	if !now.HasPool {
		// Without a pool the agent does not answer a probe (Cilium fact 24).
		return s.await(now), nil
	}
	barrier, joined := agentview.Join(now)
	if !joined {
		if delay := s.pools.Delay(now.Name); delay > 0 {
			return ctrl.Result{RequeueAfter: delay}, nil
		}
		probe := agentview.NewProbe(now)
		asked, err := s.pools.WriteProbe(ctx, now, probe)
		if err != nil {
			return ctrl.Result{}, fmt.Errorf("write a probe into the CiliumNode of node %s: %w", now.Name, err)
		}
		barrier = agentview.Barrier{ProbedNode: asked, Probe: probe}
	}
	s.mu.Lock()
	n.barrier, n.last = &barrier, agentview.Pending
	for _, key := range served {
		n.asked[key] = n.waiting[key]
		delete(n.waiting, key)
	}
	s.mu.Unlock()
	return s.await(now), nil
}

// await reports an overdue agent in an event, once until the agent answers. It returns the time until the next reconcile if
// the watch shows no change.
func (s *Service) await(now pool.NodePool) ctrl.Result {
	s.mu.Lock()
	n := s.nodes[now.Name]
	left := n.began.Add(s.AnswerTimeout).Sub(s.clock.Now())
	report := left <= 0 && !n.reported
	n.reported = n.reported || report
	why := n.waitReason(now.Name)
	s.mu.Unlock()
	if report {
		s.events.Eventf(ciliumpool.Reference(now), nil, corev1.EventTypeWarning, "AgentNotAnswering", "AskAgent",
			"The Cilium agent has not answered the controller for %s: %s. Until the agent answers or the node is deleted, cooldowns on the node do not end, no pod takes over an IP there, and IPs move away only if the node has the taint node.kubernetes.io/out-of-service; check the cilium pod of the node, and the events of its Node and CiliumNode", s.AnswerTimeout, why)
	}
	if left <= 0 {
		left = s.AnswerTimeout
	}
	return ctrl.Result{RequeueAfter: left}
}

// forget drops all requests and answers of a node whose CiliumNode does not exist, and notifies the callers that wait.
func (s *Service) forget(nodeName string) {
	s.mu.Lock()
	n := s.nodes[nodeName]
	delete(s.nodes, nodeName)
	s.mu.Unlock()
	maps.Copy(n.asked, n.waiting)
	for _, notify := range n.asked {
		notify()
	}
}

// Overdue returns the number of nodes with open requests, and the number of those whose agents have not answered for
// AnswerTimeout or longer.
func (s *Service) Overdue() (pending, late int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.nodes {
		if n.open() == 0 {
			continue
		}
		pending++
		if s.clock.Since(n.began) >= s.AnswerTimeout {
			late++
		}
	}
	return pending, late
}
