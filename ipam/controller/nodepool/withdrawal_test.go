// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"slices"
	"testing"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/test/controllertest"
)

// TestSurplusIsWithdrawn checks in which cases the surplus entry 10.0.1.2 of a node leaves its pool, and in which steps. Each
// step changes the stage and reconciles the node once.
func TestSurplusIsWithdrawn(t *testing.T) {
	const surplus = "10.0.1.2"
	withdrawn := ciliumpool.EncodeEntry(pool.WithdrawnEntry(controllertest.Begin))
	ready := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	ready.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	notReady := ready.DeepCopy()
	notReady.Status.Conditions[0].Status = corev1.ConditionUnknown
	running := controllertest.Pod(0)
	running.Status.PodIPs = []corev1.PodIP{{IP: surplus}}
	type step struct {
		name   string
		change func(s *stage)
		// want is the entry after the step; nil: there is none. patches is the number of patches of the step.
		want    *ipamtypes.AllocationIP
		patches int
	}
	dynamic := &ipamtypes.AllocationIP{}
	use := func(s *stage) {
		cn := s.node()
		cn.Status.IPAM.Used[surplus] = ipamtypes.AllocationIP{Owner: "default/job"}
		s.update(cn)
	}
	free := func(s *stage) {
		cn := s.node()
		delete(cn.Status.IPAM.Used, surplus)
		s.update(cn)
	}
	for name, c := range map[string]struct {
		// node is the Node; nil: there is none. live are the other objects that only the API server shows.
		node  *corev1.Node
		live  []client.Object
		steps []step
	}{
		"the agent acknowledges": {node: ready, steps: []step{
			{"the entry is surplus", nil, &withdrawn, 1},
			{"the agent has not answered", nil, &withdrawn, 0},
			{"the agent has acknowledged", (*stage).acknowledge, nil, 1},
			{"the entry is removed", nil, nil, 0},
		}},
		"a pod has got the address before the agent saw the withdrawal": {node: ready, steps: []step{
			{"the entry is surplus", nil, &withdrawn, 1},
			{"the agent reports the address", use, dynamic, 1},
			{"the pod runs", nil, dynamic, 0},
			{"the pod has ended", free, &withdrawn, 1},
			{"the agent has acknowledged", (*stage).acknowledge, nil, 1},
		}},
		"only the API server shows the pod that has the address": {node: ready, live: controllertest.Objects(running), steps: []step{
			{"the entry would be surplus", nil, dynamic, 0},
		}},
		"the node is not ready": {node: notReady, steps: []step{{"no agent would acknowledge", nil, dynamic, 0}}},
		"there is no Node":      {steps: []step{{"no agent would acknowledge", nil, dynamic, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			var cached []client.Object
			live := slices.Clone(c.live)
			if c.node != nil {
				cached, live = controllertest.Objects(c.node.DeepCopy()), append(live, c.node.DeepCopy())
			}
			s := newStage(t, live, cached)
			s.fill(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.3": pool.ForOwner("router")}, map[string]string{"10.0.1.3": "router"})
			r := s.reconciler(func(o *Reconciler) { o.Watermark = nodepool.Watermark{Free: 1, Max: 9} })
			for _, step := range c.steps {
				s.syncLedger()
				if step.change != nil {
					step.change(s)
				}
				s.syncLedger()
				before := s.Patches
				if _, err := r.Reconcile(t.Context(), source.ForName("n")); err != nil {
					t.Fatal(err)
				}
				var got *ipamtypes.AllocationIP
				if e, ok := s.node().Spec.IPAM.Pool[surplus]; ok {
					got = &e
				}
				if diff := cmp.Diff(step.want, got); diff != "" || s.Patches-before != step.patches {
					t.Errorf("%s: %d patches, want %d; entry (-want +got):\n%s", step.name, s.Patches-before, step.patches, diff)
				}
			}
		})
	}
}

// TestWithdrawnTwice checks that a later withdrawal of an address makes a new barrier request, even if both withdrawals
// happened in the same second: an answer of the agent about the earlier one proves nothing, because a pod may have had the
// address in between.
func TestWithdrawnTwice(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	s := newStage(t, controllertest.Objects(node), controllertest.Objects(node.DeepCopy()))
	r := s.reconciler(func(o *Reconciler) { o.Watermark = nodepool.Watermark{Free: 1, Max: 9} })
	for range 2 {
		s.fill(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.3": pool.ForOwner("router")}, map[string]string{"10.0.1.3": "router"})
		for range 2 {
			s.syncLedger()
			if _, err := r.Reconcile(t.Context(), source.ForName("n")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if keys := slices.Compact(slices.Sorted(slices.Values(s.keys))); len(keys) != 2 {
		t.Errorf("two withdrawals: got requests to the agent %q, want two different ones", s.keys)
	}
}

// TestHandshakesAreWithdrawn checks that the controller withdraws the release handshakes that another program has started,
// with one write, except those whose state it does not know.
func TestHandshakesAreWithdrawn(t *testing.T) {
	s := newStage(t, nil, nil)
	s.fill(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.3": pool.ForOwner("router")}, map[string]string{"10.0.1.3": "router"})
	cn := s.node()
	cn.Status.IPAM.ReleaseIPs = map[string]ipamtypes.IPReleaseStatus{"10.0.1.1": "marked-for-release", "10.0.1.3": "do-not-release", "10.0.1.9": "released", "10.0.1.2": "later"}
	s.update(cn)
	r := s.reconciler(func(o *Reconciler) { o.Watermark = nodepool.Watermark{Free: 2, Max: 9} })
	for pass, patches := range []int{1, 0} {
		s.syncLedger()
		before := s.Patches
		if _, err := r.Reconcile(t.Context(), source.ForName("n")); err != nil || s.Patches-before != patches {
			t.Errorf("pass %d: got error %v and %d patches, want %d patches", pass, err, s.Patches-before, patches)
		}
		if diff := cmp.Diff(map[string]ipamtypes.IPReleaseStatus{"10.0.1.2": "later"}, s.node().Status.IPAM.ReleaseIPs); diff != "" {
			t.Errorf("pass %d: release-ips (-want +got):\n%s", pass, diff)
		}
	}
}

// TestNodeMemoryEnds checks that the controller forgets a node whose CiliumNode no longer exists.
func TestNodeMemoryEnds(t *testing.T) {
	s := newStage(t, nil, nil)
	s.fill(nil, nil)
	s.syncLedger()
	r := s.reconciler(nil)
	if _, err := r.Reconcile(t.Context(), source.ForName("n")); err != nil || len(r.nodes) != 1 {
		t.Fatalf("got error %v and the memory of %d nodes, want that of one", err, len(r.nodes))
	}
	s.Clock.Step(time.Second)
	s.Ledger.RemoveNode("n")
	if _, err := r.Reconcile(t.Context(), source.ForName("n")); err != nil || len(r.nodes) > 0 {
		t.Errorf("after the deletion of the CiliumNode: got error %v and the memory of %d nodes, want none", err, len(r.nodes))
	}
}
