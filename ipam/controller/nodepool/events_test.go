// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// TestNodeEvents checks which events of a Node enqueue the node.
func TestNodeEvents(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	ready, labeled := node.DeepCopy(), node.DeepCopy()
	ready.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	labeled.Labels = map[string]string{"a": "b"}
	update := func(after *corev1.Node) func(h handler.Funcs, q source.Queue) {
		return func(h handler.Funcs, q source.Queue) {
			h.Update(t.Context(), event.UpdateEvent{ObjectOld: node, ObjectNew: after}, q)
		}
	}
	for name, c := range map[string]struct {
		send func(h handler.Funcs, q source.Queue)
		want int
	}{
		"the Node is created": {func(h handler.Funcs, q source.Queue) { h.Create(t.Context(), event.CreateEvent{Object: node}, q) }, 1},
		"the Node is ready":   {update(ready), 1},
		"the labels change":   {update(labeled), 1},
		"nothing changes":     {update(node), 0},
		// After the deletion, cooldowns end without the acknowledgement of an agent.
		"the Node is deleted": {func(h handler.Funcs, q source.Queue) { h.Delete(t.Context(), event.DeleteEvent{Object: node}, q) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
			defer q.ShutDown()
			if c.send(nodeEvents(), q); q.Len() != c.want {
				t.Errorf("got %d requests, want %d", q.Len(), c.want)
			}
		})
	}
}

// TestPodEventsEnqueueOtherNodes checks that the events of a pod enqueue another node whose pool still has an entry for the
// pod. A scheduler may have claimed an entry on a strict node and then failed to bind the pod there: no other event enqueues
// that node.
func TestPodEventsEnqueueOtherNodes(t *testing.T) {
	pending := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "job", UID: "1"}}
	bound := pending.DeepCopy()
	bound.Spec.NodeName = "other"
	for name, send := range map[string]func(h handler.Funcs, q source.Queue){
		"the pod is bound to another node": func(h handler.Funcs, q source.Queue) {
			h.Update(t.Context(), event.UpdateEvent{ObjectOld: pending, ObjectNew: bound}, q)
		},
		"the pod is deleted before it is bound": func(h handler.Funcs, q source.Queue) {
			h.Delete(t.Context(), event.DeleteEvent{Object: pending}, q)
		},
		"the pod is deleted on another node": func(h handler.Funcs, q source.Queue) {
			h.Delete(t.Context(), event.DeleteEvent{Object: bound}, q)
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := ledger.New()
			l.SetNode(pool.NodePool{Name: "strict", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, HasPool: true,
				Entries: map[netip.Addr]pool.Entry{netip.MustParseAddr("10.0.0.9"): pool.UnreservedEntry("db", "job")}})
			r := &Reconciler{Ledger: l, StrictNodes: labels.Nothing(), Cached: fake.NewFakeClient()}
			q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
			defer q.ShutDown()
			send(r.podEvents(), q)
			enqueued := map[reconcile.Request]bool{}
			for q.Len() > 0 {
				req, _ := q.Get()
				enqueued[req] = true
			}
			if !enqueued[source.ForName("strict")] {
				t.Errorf("got enqueued nodes %v, want node strict among them", enqueued)
			}
		})
	}
}
