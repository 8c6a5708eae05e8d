// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package source adds requests to the queues of controllers: for changes of the ledger (Requests), and in a periodic resync
// of every identity (Resync). It also has predicates for watches, which leave out the events that Requests and Resync cover,
// and it creates the queues.
//
// It must not read an object or decide the action of a controller for a request.
package source

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/fixedips"
)

// Requests passes requests from the event handlers that fill the ledger to the queue of one controller, so that the ledger
// has each change before the controller reconciles it. The zero value is ready to use.
type Requests struct {
	mu sync.Mutex
	// queue is nil until the source of the controller sets it (opened). Controllers start when this replica becomes the leader.
	queue Queue
}

// Add queues the requests, or drops them if the source of the controller has not set the queue yet: the initial requests or the
// first resync of the controller cover them.
func (f *Requests) Add(requests ...ctrl.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.queue == nil {
		return
	}
	for _, r := range requests {
		f.queue.Add(r)
	}
}

// Source returns a source for the controller. When the controller starts, the source waits until ready reports true (nil: it
// does not wait), sets the queue, and queues the requests that initial returns.
func (f *Requests) Source(ready func() bool, initial func() []ctrl.Request) source.Source {
	return f.opened(ready, func(context.Context, Queue) { f.Add(initial()...) })
}

// Resynced returns a source like Source, with a resync instead of initial requests. The resync begins after the queue is set,
// so that no identity is missed in between.
func (f *Requests) Resynced(r Resync) source.Source {
	return f.opened(r.Ready, func(ctx context.Context, queue Queue) { go r.run(ctx, queue) })
}

// opened returns a source that sets the queue once ready reports true, and then calls start.
func (f *Requests) opened(ready func() bool, start func(context.Context, Queue)) source.Source {
	return source.Func(func(ctx context.Context, queue Queue) error {
		if ready != nil && !toolscache.WaitForCacheSync(ctx.Done(), ready) {
			return fmt.Errorf("wait for the caches to be filled: %w", context.Cause(ctx))
		}
		f.mu.Lock()
		f.queue = queue
		f.mu.Unlock()
		start(ctx, queue)
		return nil
	})
}

// ForOwner returns a request for each owner of pool entries that is a pod.
func ForOwner(owners ...string) []ctrl.Request {
	var requests []ctrl.Request
	for _, owner := range owners {
		if namespace, name, ok := pool.SplitOwnerKey(owner); ok {
			requests = append(requests, ctrl.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}})
		}
	}
	return requests
}

// ForName returns the request for an object without a namespace, such as a node.
func ForName(name string) ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Name: name}}
}

// Identities returns every identity that has a FixedIP or an owned, moved or move-target entry, sorted and without duplicates,
// for Resync.All.
func Identities(l *ledger.Ledger) []string {
	all := l.OwnersAndMoving()
	for _, k := range l.Reservations() {
		all = append(all, k.Record, k.Owner)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// NotReservations leaves out the events of FixedIPs that change a reservation: creations, deletions and some updates. A handler
// of the ledger queues these changes when the ledger has them, and a Resync queues the FixedIPs that existed at the start.
var NotReservations = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	DeleteFunc: func(event.DeleteEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		return !fixedips.Reserves(e.ObjectOld.(*v1alpha1.FixedIP), e.ObjectNew.(*v1alpha1.FixedIP))
	},
}

// AfterStart leaves out the create events of objects that existed at the start: the initial requests or the first resync of the
// controller cover these objects.
var AfterStart = predicate.Funcs{CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList }}

// ResyncPeriod is the default interval at which a controller reconciles each object without an event.
const ResyncPeriod = 5 * time.Minute

// AfterConflict is the time until the next reconcile of an object whose state has changed since the decision.
const AfterConflict = time.Second

const (
	// resyncBatch is the number of identities that a resync queues at once, and the length of the queue at which the
	// resync pauses for resyncPause. A queue never frees its memory, so it should not contain all identities of a
	// large cluster.
	resyncBatch = 256
	resyncPause = 10 * time.Millisecond
)

// Resync queues every identity that All returns: all of them when the controller starts, as fast as the controller processes
// them, and then each once per period, evenly spread. It covers changes whose events were missed and, at the start, the
// existing objects, whose events the predicates leave out.
type Resync struct {
	Clock  clock.Clock
	Period time.Duration
	// All returns the identities, as "namespace/name", without duplicates.
	All func() []string
	// Ready reports whether all objects that existed at the start are known. The first resync waits until Ready reports true;
	// nil: it does not wait.
	Ready func() bool
}

func (r Resync) run(ctx context.Context, queue Queue) {
	for first := true; ctx.Err() == nil; first = false {
		end := r.Clock.Now().Add(r.Period)
		batches := slices.Collect(slices.Chunk(r.All(), resyncBatch))
		for i, batch := range batches {
			for queue.Len() >= resyncBatch && ctx.Err() == nil {
				r.wait(ctx, resyncPause)
			}
			// Requests of events have a higher priority.
			AddWithPriority(queue, handler.LowPriority, ForOwner(batch...)...)
			if !first {
				r.wait(ctx, end.Sub(r.Clock.Now())/time.Duration(len(batches)-i))
			}
		}
		r.wait(ctx, end.Sub(r.Clock.Now()))
	}
}

func (r Resync) wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := r.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
	}
}
