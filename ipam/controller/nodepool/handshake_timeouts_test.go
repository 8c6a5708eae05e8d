// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/test/controllertest"
)

// shrinking is a stage whose node has one free entry too many, 10.0.1.2, and a Reconciler that has to remove this entry.
type shrinking struct {
	*stage
	r *Reconciler
}

func newShrinking(t *testing.T) *shrinking {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	s := &shrinking{stage: newStage(t, nil, controllertest.Objects(node))}
	s.fill(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": {}, "10.0.1.3": pool.ForOwner("router")}, map[string]string{"10.0.1.3": "router"})
	s.r = s.reconciler(func(o *Reconciler) {
		o.Watermark, o.Cooldown = nodepool.Watermark{Free: 1, Max: 9}, 0
	})
	return s
}

// reconcile updates the ledger from the API server and reconciles the node. It returns the number of patches and the
// RequeueAfter of the result.
func (s *shrinking) reconcile() (patches int, requeueAfter time.Duration) {
	s.t.Helper()
	s.syncLedger()
	before := s.Patches
	result, err := s.r.Reconcile(s.t.Context(), source.ForName("n"))
	if err != nil {
		s.t.Fatal(err)
	}
	return s.Patches - before, result.RequeueAfter
}

// wantHandshake checks the state of the handshake of 10.0.1.2, and whether the pool has an entry for that address.
func (s *shrinking) wantHandshake(state ipamtypes.IPReleaseStatus, entry bool) {
	s.t.Helper()
	cn := s.node()
	if _, ok := cn.Spec.IPAM.Pool["10.0.1.2"]; cn.Status.IPAM.ReleaseIPs["10.0.1.2"] != state || ok != entry {
		s.t.Errorf("got handshakes %v and an entry of 10.0.1.2: %t; want state %q and %t", cn.Status.IPAM.ReleaseIPs, ok, state, entry)
	}
}

// wantReconcile calls reconcile and checks its results. step describes the situation in failure messages.
func (s *shrinking) wantReconcile(step string, patches int, requeueAfter time.Duration) {
	s.t.Helper()
	if p, a := s.reconcile(); p != patches || a != requeueAfter {
		s.t.Errorf("%s: got %d patches and RequeueAfter %v, want %d and %v", step, p, a, patches, requeueAfter)
	}
}

// answer writes an answer of the agent into the handshake of 10.0.1.2.
func (s *shrinking) answer(state ipamtypes.IPReleaseStatus) {
	s.t.Helper()
	cn := s.node()
	cn.Status.IPAM.ReleaseIPs["10.0.1.2"] = state
	s.update(cn)
}

// TestUnansweredHandshake checks that an unanswered handshake is withdrawn and started again. The controller also
// deletes the key of a removed entry if the agent does not delete it. No watch event is necessary for either. An
// answer of an agent is lost if a label of the CiliumNode is written before the next report (Cilium fact 28).
func TestUnansweredHandshake(t *testing.T) {
	s := newShrinking(t)
	s.wantReconcile("start of the handshake", 1, 0)
	s.wantHandshake("marked-for-release", true)
	s.wantReconcile("the handshake is not answered", 0, replyTimeout)
	s.Clock.Step(replyTimeout - time.Second)
	s.wantReconcile("a second before the timeout", 0, time.Second)
	if s.Event("ReleaseUnanswered") {
		t.Error("the event ReleaseUnanswered was recorded before the timeout")
	}
	s.Clock.Step(time.Second)
	s.reconcile()
	s.wantHandshake("", true)
	if !s.Event("ReleaseUnanswered") {
		t.Error("no event ReleaseUnanswered was recorded after the timeout")
	}
	s.wantReconcile("second start of the handshake", 1, 0)
	s.wantHandshake("marked-for-release", true)
	for range 3 {
		s.wantReconcile("the second handshake is not answered", 0, 2*replyTimeout)
	}
	s.answer("ready-for-release")
	s.wantReconcile("the agent has answered", 2, 0)
	s.wantHandshake("released", false)
	s.wantReconcile("the entry is removed", 0, replyTimeout)
	s.Clock.Step(replyTimeout)
	s.reconcile()
	s.wantHandshake("", false)
	s.Clock.Step(time.Hour)
	s.wantReconcile("the handshake is over", 0, 0)
}

// TestHandshakeOfFormerLeader checks that a controller that finds handshakes of another process sends one barrier request to
// the agent, and none for its own handshakes. Otherwise an answer that is lost is missing forever if the controller is
// killed more often than once per replyTimeout.
func TestHandshakeOfFormerLeader(t *testing.T) {
	s := newShrinking(t)
	for range 3 {
		s.reconcile()
	}
	s.wantHandshake("marked-for-release", true)
	if len(s.asked) > 0 {
		t.Errorf("a handshake of this process: got barrier requests to %v, want none", s.asked)
	}
	s.r = s.reconciler(func(r *Reconciler) {
		r.Watermark, r.Cooldown = s.r.Watermark, s.r.Cooldown
	})
	for range 3 {
		s.wantReconcile("a handshake of a former leader", 0, replyTimeout)
	}
	if len(s.asked) != 1 {
		t.Errorf("a handshake of a former leader: got barrier requests to %v, want one to n", s.asked)
	}
}

// TestUnansweredHandshakeOnNodeNotReady checks that the controller writes nothing for an overdue handshake while the
// node is not ready. After the node has become ready, the controller withdraws the handshake without a watch event.
func TestUnansweredHandshakeOnNodeNotReady(t *testing.T) {
	s := newShrinking(t)
	s.reconcile()
	s.wantReconcile("the handshake is not answered", 0, replyTimeout)
	ready := func(status corev1.ConditionStatus) {
		t.Helper()
		var node corev1.Node
		if err := s.Cached.Get(t.Context(), client.ObjectKey{Name: "n"}, &node); err != nil {
			t.Fatal(err)
		}
		node.Status.Conditions[0].Status = status
		if err := s.Cached.Status().Update(t.Context(), &node); err != nil {
			t.Fatal(err)
		}
	}
	ready(corev1.ConditionUnknown)
	for range 5 {
		s.Clock.Step(replyTimeout)
		s.wantReconcile("the node is not ready", 0, replyTimeout)
	}
	ready(corev1.ConditionTrue)
	if patches, _ := s.reconcile(); patches != 1 {
		t.Errorf("the node is ready again: got %d patches, want one that withdraws the handshake", patches)
	}
	s.wantHandshake("", true)
}

// TestFailedWithdrawal checks that a withdrawal that failed is not written again before the next timeout.
func TestFailedWithdrawal(t *testing.T) {
	s := newShrinking(t)
	s.reconcile()
	s.reconcile()
	s.Clock.Step(replyTimeout)
	s.OnPatch = func() (func(), error) {
		return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "ciliumnodes"}, "n", errors.New("no"))
	}
	before := s.Patches
	if _, err := s.r.Reconcile(t.Context(), source.ForName("n")); err == nil || s.Patches != before+1 {
		t.Fatalf("got %d patches and error %v, want one patch and an error", s.Patches-before, err)
	}
	for range 3 {
		s.wantReconcile("the withdrawal has failed", 0, 2*replyTimeout)
	}
	s.OnPatch = nil
	s.Clock.Step(2 * replyTimeout)
	s.wantReconcile("after the next timeout", 1, 0)
	s.wantHandshake("", true)
}

// TestHandshakeTimeouts checks that a timeout applies to one CiliumNode, one address and one state of the handshake.
// The memory of a handshake is removed with the handshake and with the node.
func TestHandshakeTimeouts(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(controllertest.Begin)
	a := netip.MustParseAddr("10.0.1.2")
	marked := pool.NodePool{Name: "n", UID: "1", Entries: map[netip.Addr]pool.Entry{a: {}}, Handshakes: map[netip.Addr]pool.Handshake{a: pool.MarkedForRelease}}
	with := func(change func(*pool.NodePool)) pool.NodePool {
		n := marked
		change(&n)
		return n
	}
	other := with(func(n *pool.NodePool) { n.UID = "2" })
	ready := with(func(n *pool.NodePool) { n.Handshakes = map[netip.Addr]pool.Handshake{a: pool.ReadyForRelease} })
	removed := with(func(n *pool.NodePool) {
		n.Entries, n.Handshakes = nil, map[netip.Addr]pool.Handshake{a: pool.Released}
	})
	none := with(func(n *pool.NodePool) { n.Handshakes = nil })
	for name, c := range map[string]struct {
		before, now pool.NodePool
		overdue     bool
	}{
		"the same handshake in the same state": {marked, marked, true},
		"another CiliumNode":                   {marked, other, false},
		"another state":                        {marked, removed, false},
		"the entry was removed":                {removed, removed, true},
		"the entry was marked again":           {none, marked, false},
		"the controller has to act":            {ready, ready, false},
		"the agent has to act from now on":     {ready, removed, false},
	} {
		o := &Reconciler{Clock: clock, Ledger: ledger.New()}
		o.observe(marked)
		o.observe(c.before)
		clock.SetTime(clock.Now().Add(replyTimeout))
		if overdue, next := o.observe(c.now); (len(overdue) == 1) != c.overdue || c.overdue != next.IsZero() && c.now.AwaitsAgent(a) {
			t.Errorf("%s: got overdue addresses %v and next timeout %v, want an overdue address: %t", name, overdue, next, c.overdue)
		}
		o.observe(ready)
		if o.observe(none); len(o.nodes["n"].since) > 0 || o.nodes["n"].timeouts > 0 {
			t.Errorf("%s: got memory %+v after the end of the handshake, want no handshake and no timeout", name, *o.nodes["n"])
		}
		o.observe(marked)
		if _, err := o.Reconcile(t.Context(), source.ForName("n")); err != nil || len(o.nodes) > 0 {
			t.Errorf("%s: got the memory of %d nodes after the node is gone, and error %v; want none", name, len(o.nodes), err)
		}
	}
}
