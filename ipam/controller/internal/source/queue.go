// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"sync"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// Queue is the queue of a controller.
type Queue = workqueue.TypedRateLimitingInterface[ctrl.Request]

// AddWithPriority adds requests to a queue. Requests of events have priority 0, except those for the objects of an initial
// list, which have handler.LowPriority. A queue without priorities ignores the priority.
func AddWithPriority(queue Queue, priority int, requests ...ctrl.Request) {
	if q, ok := queue.(priorityqueue.PriorityQueue[ctrl.Request]); ok {
		q.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, requests...)
		return
	}
	for _, r := range requests {
		queue.Add(r)
	}
}

// Workers returns the options of a controller that reconciles up to n requests at once.
func Workers(n int) controller.Options {
	return controller.Options{MaxConcurrentReconciles: n, NewQueue: newQueue}
}

// requestQueue is a priority queue that releases its workers when it is shut down. The queue of controller-runtime, up to
// v0.24, may hand an item to a worker that has ended. That queue then blocks forever with locks held, and the other workers
// block on these locks. The process ends after 30 seconds with an error, and holds its lease until then
// (controller-runtime#3538).
type requestQueue struct {
	priorityqueue.PriorityQueue[ctrl.Request]
	shutDown sync.Once
	// down is closed when the queue is shut down.
	down chan struct{}
}

func newQueue(name string, limiter workqueue.TypedRateLimiter[ctrl.Request]) Queue {
	inner := priorityqueue.New(name, func(o *priorityqueue.Opts[ctrl.Request]) {
		o.Log = ctrllog.Log.WithValues("controller", name)
		o.RateLimiter = limiter
	})
	return &requestQueue{PriorityQueue: inner, down: make(chan struct{})}
}

// GetWithPriority returns the next request. It returns at once when the queue is shut down.
func (q *requestQueue) GetWithPriority() (r ctrl.Request, priority int, shutdown bool) {
	type item struct {
		request  ctrl.Request
		priority int
		shutdown bool
	}
	got := make(chan item, 1)
	go func() {
		var i item
		i.request, i.priority, i.shutdown = q.PriorityQueue.GetWithPriority()
		got <- i
	}()
	select {
	case i := <-got:
		return i.request, i.priority, i.shutdown
	case <-q.down:
		return ctrl.Request{}, 0, true
	}
}

// Get returns the next request. It returns at once when the queue is shut down.
func (q *requestQueue) Get() (r ctrl.Request, shutdown bool) {
	r, _, shutdown = q.GetWithPriority()
	return r, shutdown
}

// Done marks a request as processed. It returns at once when the queue is shut down.
func (q *requestQueue) Done(r ctrl.Request) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		q.PriorityQueue.Done(r)
	}()
	select {
	case <-done:
	case <-q.down:
	}
}

// ShutDown shuts the queue down, drops the waiting requests and releases all workers.
func (q *requestQueue) ShutDown() {
	q.shutDown.Do(func() {
		close(q.down)
		q.PriorityQueue.ShutDown()
	})
}

// ShutDownWithDrain calls ShutDown: the priority queue does not drain either.
func (q *requestQueue) ShutDownWithDrain() { q.ShutDown() }
