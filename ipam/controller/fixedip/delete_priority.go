// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/controller/internal/source"
)

// deletePriority is the priority of an identity whose pod was just deleted: its address may be released from then on.
// Others wait at 0, among them up to a thousand finalizers of a workload that was deleted.
const deletePriority = 100

// deletedFirst is a handler whose requests for deleted objects come before all others.
type deletedFirst struct {
	handler.EventHandler
	of handler.MapFunc
}

func newDeletedFirst(of handler.MapFunc) deletedFirst {
	return deletedFirst{handler.EnqueueRequestsFromMapFunc(of), of}
}

// Delete queues the identity of a deleted pod.
func (h deletedFirst) Delete(ctx context.Context, e event.DeleteEvent, q source.Queue) {
	requests := h.of(ctx, e.Object)
	if first, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		first.AddWithOpts(priorityqueue.AddOpts{Priority: ptr.To(deletePriority)}, requests...)
		return
	}
	for _, r := range requests {
		q.Add(r)
	}
}
