package controller

import (
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// workers are the options of a controller that reconciles n requests at once.
func workers(n int) controller.Options {
	return controller.Options{MaxConcurrentReconciles: n, NewQueue: newQueue}
}

// requestQueue is a priority queue that lets its workers go when it is shut down. That of controller-runtime, up to v0.24, may
// hand an item to a worker that has left by then: it waits for good, with locks held that the other workers need, and
// the process ends after 30 seconds with an error, and keeps its lease until then (controller-runtime#3538).
type requestQueue struct {
	priorityqueue.PriorityQueue[reconcile.Request]
	shutDown sync.Once
	// down is closed when the queue is shut down.
	down chan struct{}
}

func newQueue(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	inner := priorityqueue.New(name, func(o *priorityqueue.Opts[reconcile.Request]) {
		o.Log = ctrllog.Log.WithValues("controller", name)
		o.RateLimiter = limiter
	})
	return &requestQueue{PriorityQueue: inner, down: make(chan struct{})}
}

func (q *requestQueue) GetWithPriority() (r reconcile.Request, priority int, shutdown bool) {
	type handed struct {
		request  reconcile.Request
		priority int
		shutdown bool
	}
	got := make(chan handed, 1)
	go func() {
		var h handed
		h.request, h.priority, h.shutdown = q.PriorityQueue.GetWithPriority()
		got <- h
	}()
	select {
	case h := <-got:
		return h.request, h.priority, h.shutdown
	case <-q.down:
		return reconcile.Request{}, 0, true
	}
}

func (q *requestQueue) Get() (r reconcile.Request, shutdown bool) {
	r, _, shutdown = q.GetWithPriority()
	return r, shutdown
}

func (q *requestQueue) Done(r reconcile.Request) {
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

func (q *requestQueue) ShutDown() {
	q.shutDown.Do(func() {
		close(q.down)
		q.PriorityQueue.ShutDown()
	})
}

// ShutDownWithDrain drains nothing, as that of the priority queue does not either.
func (q *requestQueue) ShutDownWithDrain() { q.ShutDown() }
