package controller

import (
	"context"
	"fmt"
	"sync"

	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// feed hands what the ledger learns to the queue of a controller. It is the controller's source
// for CiliumNodes: the ledger has each change before the controller is told.
type feed struct {
	mu sync.Mutex
	// queue is nil until the controller starts, which is when this replica leads.
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
}

// add asks for what is requested, if there is a queue yet.
func (f *feed) add(requests ...reconcile.Request) (ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.queue == nil {
		return false
	}
	for _, r := range requests {
		f.queue.Add(r)
	}
	return true
}

// source starts the feed with all that the ledger knows by then, once it is ready; nil: it is.
func (f *feed) source(ready toolscache.InformerSynced, all func() []reconcile.Request) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		if ready != nil && !toolscache.WaitForCacheSync(ctx.Done(), ready) {
			return fmt.Errorf("stopped before all that stood had been seen: %w", context.Cause(ctx))
		}
		f.mu.Lock()
		f.queue = queue
		f.mu.Unlock()
		f.add(all()...)
		return nil
	})
}
