// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/test/controllertest"
)

// TestDeletedFirst checks that the queue returns the request for a deleted pod first, even if an earlier event has already queued
// the same request with priority 0.
func TestDeletedFirst(t *testing.T) {
	of := func(_ context.Context, o client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(o)}}
	}
	h := deletedFirst{handler.EnqueueRequestsFromMapFunc(of), of}
	q := priorityqueue.New[reconcile.Request]("test")
	defer q.ShutDown()
	for i := range 3 {
		h.Create(t.Context(), event.CreateEvent{Object: controllertest.Pod(i)}, q)
	}
	h.Delete(t.Context(), event.DeleteEvent{Object: controllertest.Pod(2)}, q)
	for _, want := range []struct {
		pod      *corev1.Pod
		priority int
	}{{controllertest.Pod(2), deletePriority}, {controllertest.Pod(0), 0}, {controllertest.Pod(1), 0}} {
		got, priority, _ := q.GetWithPriority()
		if got.Name != want.pod.Name || priority != want.priority {
			t.Errorf("got next request %s with priority %d, want %s with %d", got.Name, priority, want.pod.Name, want.priority)
		}
		q.Done(got)
	}
}
