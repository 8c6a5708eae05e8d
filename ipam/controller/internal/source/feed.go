// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/fixedips"
)

// Feed passes requests from the event handlers that fill the ledger to the queue of one controller. The ledger has
// each change before the controller hears of it. The zero Feed is ready to use.
type Feed struct {
	mu sync.Mutex
	// queue is nil until the controller starts, which is when this replica leads.
	queue Queue
}

// Add queues the requests. It returns false, and drops them, if the controller has not started.
func (f *Feed) Add(requests ...reconcile.Request) bool {
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

// Source opens the feed when the controller starts, once ready reports true (nil: at once), and then queues initial.
func (f *Feed) Source(ready toolscache.InformerSynced, initial func() []reconcile.Request) source.Source {
	return source.Func(func(ctx context.Context, queue Queue) error {
		if ready != nil && !toolscache.WaitForCacheSync(ctx.Done(), ready) {
			return fmt.Errorf("stopped before the caches were filled: %w", context.Cause(ctx))
		}
		f.open(queue)
		f.Add(initial()...)
		return nil
	})
}

func (f *Feed) open(queue Queue) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue = queue
}

// Request returns the request for the pod that owns an entry; nil if the owner is not a pod.
func Request(owner string) []reconcile.Request {
	namespace, name, ok := pool.SplitOwnerKey(owner)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}}
}

// Named returns the request with a name and no namespace, such as for a node.
func Named(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

// Identities returns every identity that has a FixedIP, an entry or a marker, each once, for Resync.All.
func Identities(l *ledger.Ledger) []string {
	all := l.OwnersAndMoving()
	for _, k := range l.Reservations() {
		all = append(all, k.Record, k.Owner)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// BesideLedger leaves out events of FixedIPs that change what they reserve. The ledger reports these, once it has
// them, and a Resync looks at the FixedIPs that existed at the start.
var BesideLedger = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	DeleteFunc: func(event.DeleteEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		return !fixedips.Reserves(e.ObjectOld.(*v1alpha1.FixedIP), e.ObjectNew.(*v1alpha1.FixedIP))
	},
}

// AfterStart leaves out objects that existed at the start. A Resync looks at these.
var AfterStart = predicate.Funcs{CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList }}
