package controller

import (
	"context"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/controller/internal/source"
)

// endPriority is that of an identity whose pod has just ended: its address may be free from then on.
// Others wait at 0, among them up to a thousand records to see off of a workload that was deleted.
const endPriority = 100

// endsFirst is a handler whose requests for what is gone come before all others.
type endsFirst struct {
	handler.EventHandler
	of handler.MapFunc
}

func newEndsFirst(of handler.MapFunc) endsFirst {
	return endsFirst{handler.EnqueueRequestsFromMapFunc(of), of}
}

// Delete asks for the identity of a pod that is gone.
func (h endsFirst) Delete(ctx context.Context, e event.DeleteEvent, q source.Queue) {
	requests := h.of(ctx, e.Object)
	if first, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		first.AddWithOpts(priorityqueue.AddOpts{Priority: ptr.To(endPriority)}, requests...)
		return
	}
	for _, r := range requests {
		q.Add(r)
	}
}
