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

// shrinking is a stage whose node has one free entry too many, 10.0.1.2, and a Reconciler that has to release it.
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
		o.Watermark, o.CoolDown = nodepool.Watermark{Free: 1, Max: 9}, 0
	})
	return s
}

// looks reconciles the node in the version of the API server. It returns the number of patches, and after how long the
// node is to be reconciled again.
func (s *shrinking) looks() (patches int, again time.Duration) {
	s.t.Helper()
	s.syncLedger()
	before := s.Patches
	result, err := s.r.Reconcile(s.t.Context(), source.ForName("n"))
	if err != nil {
		s.t.Fatal(err)
	}
	return s.Patches - before, result.RequeueAfter
}

// is checks the state of the handshake of 10.0.1.2, and whether the pool has an entry for that address.
func (s *shrinking) is(state ipamtypes.IPReleaseStatus, listed bool) {
	s.t.Helper()
	cn := s.node()
	if _, ok := cn.Spec.IPAM.Pool["10.0.1.2"]; cn.Status.IPAM.ReleaseIPs["10.0.1.2"] != state || ok != listed {
		s.t.Errorf("the handshakes are %v, an entry: %v; want %q, %v", cn.Status.IPAM.ReleaseIPs, ok, state, listed)
	}
}

// wants calls looks and checks its results.
func (s *shrinking) wants(what string, patches int, again time.Duration) {
	s.t.Helper()
	if p, a := s.looks(); p != patches || a != again {
		s.t.Errorf("%s: %d writes, and again in %v; want %d, in %v", what, p, a, patches, again)
	}
}

// answer writes an answer of the agent into the handshake of 10.0.1.2.
func (s *shrinking) answer(state ipamtypes.IPReleaseStatus) {
	s.t.Helper()
	cn := s.node()
	cn.Status.IPAM.ReleaseIPs["10.0.1.2"] = state
	s.update(cn)
}

// TestAgentForgetsItsAnswer checks that an unanswered handshake is withdrawn and started again, and that the key of a
// removed entry is deleted if the agent leaves it, both without an event. An agent loses its answer if a label of its
// CiliumNode is written before it reports (Cilium fact 28).
func TestAgentForgetsItsAnswer(t *testing.T) {
	s := newShrinking(t)
	s.wants("at first", 1, 0)
	s.is("marked-for-release", true)
	s.wants("asked", 0, replyTimeout)
	s.Clock.Step(replyTimeout - time.Second)
	s.wants("soon after", 0, time.Second)
	if s.Event("ReleaseUnanswered") {
		t.Error("it is said too early that there is no answer")
	}
	s.Clock.Step(time.Second)
	s.looks()
	s.is("", true)
	if !s.Event("ReleaseUnanswered") {
		t.Error("no event reports that the agent has not answered")
	}
	s.wants("ended", 1, 0)
	s.is("marked-for-release", true)
	for range 3 {
		s.wants("an agent that answers nothing is asked less often", 0, 2*replyTimeout)
	}
	s.answer("ready-for-release")
	s.wants("answered", 2, 0)
	s.is("released", false)
	s.wants("taken out", 0, replyTimeout)
	s.Clock.Step(replyTimeout)
	s.looks()
	s.is("", false)
	s.Clock.Step(time.Hour)
	s.wants("at rest", 0, 0)
}

// TestNobodyIsThereToAnswer checks that the controller writes nothing about an overdue handshake while the node is not
// ready, and that it withdraws the handshake after the node has become ready, without an event.
func TestNobodyIsThereToAnswer(t *testing.T) {
	s := newShrinking(t)
	s.looks()
	s.wants("asked", 0, replyTimeout)
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
		s.wants("the node is not heard of", 0, replyTimeout)
	}
	ready(corev1.ConditionTrue)
	if patches, _ := s.looks(); patches != 1 {
		t.Errorf("the node is back: %d writes, want the one that ends the handshake", patches)
	}
	s.is("", true)
}

// TestUnansweredIsWrittenOnce checks that a withdrawal that failed is not written again before the next timeout.
func TestUnansweredIsWrittenOnce(t *testing.T) {
	s := newShrinking(t)
	s.looks()
	s.looks()
	s.Clock.Step(replyTimeout)
	s.OnPatch = func() (func(), error) {
		return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "ciliumnodes"}, "n", errors.New("no"))
	}
	before := s.Patches
	if _, err := s.r.Reconcile(t.Context(), source.ForName("n")); err == nil || s.Patches != before+1 {
		t.Fatalf("%v, %d writes; want one that fails", err, s.Patches-before)
	}
	for range 3 {
		s.wants("after it failed", 0, 2*replyTimeout)
	}
	s.OnPatch = nil
	s.Clock.Step(2 * replyTimeout)
	s.wants("after another wait", 1, 0)
	s.is("", true)
}

// TestHandshakeTimeouts checks that the time of a pending answer belongs to one CiliumNode, one address and one state, and
// is forgotten with the handshake and with the node.
func TestHandshakeTimeouts(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(controllertest.Begin)
	a := netip.MustParseAddr("10.0.1.2")
	asked := pool.NodePool{Name: "n", UID: "1", Entries: map[netip.Addr]pool.Entry{a: {}}, Handshakes: map[netip.Addr]pool.Handshake{a: pool.MarkedForRelease}}
	with := func(change func(*pool.NodePool)) pool.NodePool {
		n := asked
		change(&n)
		return n
	}
	other := with(func(n *pool.NodePool) { n.UID = "2" })
	agreed := with(func(n *pool.NodePool) { n.Handshakes = map[netip.Addr]pool.Handshake{a: pool.ReadyForRelease} })
	takenOut := with(func(n *pool.NodePool) {
		n.Entries, n.Handshakes = nil, map[netip.Addr]pool.Handshake{a: pool.Released}
	})
	none := with(func(n *pool.NodePool) { n.Handshakes = nil })
	for name, c := range map[string]struct {
		then, now pool.NodePool
		late      bool
	}{
		"the same":                      {asked, asked, true},
		"another CiliumNode":            {asked, other, false},
		"another state":                 {asked, takenOut, false},
		"taken out":                     {takenOut, takenOut, true},
		"asked once more":               {none, asked, false},
		"the controller's turn":         {agreed, agreed, false},
		"the agent's, but not for long": {agreed, takenOut, false},
	} {
		o := &Reconciler{Clock: clock, Ledger: ledger.New()}
		o.observe(asked)
		o.observe(c.then)
		clock.SetTime(clock.Now().Add(replyTimeout))
		if late, next := o.observe(c.now); (len(late) == 1) != c.late || c.late != next.IsZero() && c.now.AwaitsAgent(a) {
			t.Errorf("%s: late are %v, the next at %v", name, late, next)
		}
		o.observe(agreed)
		if o.observe(none); len(o.nodes["n"].since) > 0 || o.nodes["n"].timeouts > 0 {
			t.Errorf("%s: %v is remembered of nothing", name, o.nodes)
		}
		o.observe(asked)
		if _, err := o.Reconcile(t.Context(), source.ForName("n")); err != nil || len(o.nodes) > 0 {
			t.Errorf("%s: %v is remembered of what is gone", name, o.nodes)
		}
	}
}
