// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// queue is the queue of one controller. Its workers get an item when the world grants the item.
type queue struct {
	name    string
	of      *controller
	limiter workqueue.TypedRateLimiter[reconcile.Request]
	grants  chan reconcile.Request
	down    chan struct{}

	once sync.Once

	mu    sync.Mutex
	items map[reconcile.Request]*item
	// idle counts the workers that wait for an item.
	idle int
}

// item is a request that waits, is being processed, or both.
type item struct {
	// ready is true if the request may be processed as soon as worked is false; worked is true while it is being processed.
	ready, worked bool
	// later is the time at which the request becomes ready; zero if there is none.
	later time.Time
	// begun is the start of the processing.
	begun time.Time
}

func newQueue(name string, of *controller, limiter workqueue.TypedRateLimiter[reconcile.Request]) *queue {
	return &queue{name: name, of: of, limiter: limiter, items: map[reconcile.Request]*item{}, grants: make(chan reconcile.Request), down: make(chan struct{})}
}

func (q *queue) item(r reconcile.Request) *item {
	i := q.items[r]
	if i == nil {
		i = &item{}
		q.items[r] = i
	}
	return i
}

func (q *queue) addAfter(r reconcile.Request, after time.Duration) {
	if after <= 0 {
		q.Add(r)
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	i := q.item(r)
	if due := time.Now().Add(after); i.later.IsZero() || due.Before(i.later) {
		i.later = due
	}
}

// ready returns the items that may be processed now, and the earliest time at which an item becomes ready later; zero
// if there is none.
func (q *queue) ready(now time.Time) (ready []reconcile.Request, next time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for r, i := range q.items {
		if !i.later.IsZero() && !i.later.After(now) {
			i.ready, i.later = true, time.Time{}
		}
		if i.ready && !i.worked {
			ready = append(ready, r)
		}
		if !i.later.IsZero() && (next.IsZero() || i.later.Before(next)) {
			next = i.later
		}
	}
	slices.SortFunc(ready, func(a, b reconcile.Request) int { return strings.Compare(a.String(), b.String()) })
	return ready, next
}

// grant hands an item to one of the idle workers.
func (q *queue) grant(r reconcile.Request) {
	q.mu.Lock()
	i := q.items[r]
	i.ready, i.worked, i.begun = false, true, time.Now()
	q.idle--
	q.mu.Unlock()
	q.grants <- r
}

func (q *queue) Add(r reconcile.Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.item(r).ready = true
}

func (q *queue) AddAfter(r reconcile.Request, after time.Duration) { q.addAfter(r, after) }
func (q *queue) AddRateLimited(r reconcile.Request)                { q.addAfter(r, q.limiter.When(r)) }
func (q *queue) Forget(r reconcile.Request)                        { q.limiter.Forget(r) }
func (q *queue) NumRequeues(r reconcile.Request) int               { return q.limiter.NumRequeues(r) }

func (q *queue) Get() (reconcile.Request, bool) {
	q.mu.Lock()
	q.idle++
	q.mu.Unlock()
	select {
	case r := <-q.grants:
		return r, false
	case <-q.down:
		return reconcile.Request{}, true
	}
}

func (q *queue) Done(r reconcile.Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := q.items[r]; i != nil {
		i.worked = false
		if !i.ready && i.later.IsZero() {
			delete(q.items, r)
		}
	}
}

func (q *queue) ShutDown()          { q.once.Do(func() { close(q.down) }) }
func (q *queue) ShutDownWithDrain() { q.ShutDown() }

func (q *queue) ShuttingDown() bool {
	select {
	case <-q.down:
		return true
	default:
		return false
	}
}

func (q *queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items)
}

// free reports whether the queue may hand out an item, because a worker is idle. Workers of all controllers run concurrently.
// None of them may hold a lock during a request to the API server: another worker could wait for that lock, and time does not
// pass in the synctest bubble while a goroutine waits for a lock.
func (q *queue) free() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.idle > 0
}

// TestItemWaitsForIdleWorker checks that the queue is not free while no worker is idle. A run once granted the same item
// 40,000 times without an idle worker, while four workers waited for time to pass.
func TestItemWaitsForIdleWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue("adopt", &controller{}, nil)
		q.of.queues = []*queue{q}
		requests := []reconcile.Request{{NamespacedName: types.NamespacedName{Name: "a-0"}}, {NamespacedName: types.NamespacedName{Name: "a-1"}}}
		for _, r := range requests {
			q.Add(r)
		}
		free := func(want bool, when string) {
			t.Helper()
			synctest.Wait()
			if q.free() != want {
				t.Errorf("free() %s: got %t, want %t", when, !want, want)
			}
		}
		free(false, "without a worker")
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				r, down := q.Get()
				if down {
					return
				}
				time.Sleep(time.Second)
				q.Done(r)
			}
		}()
		free(true, "while the worker is idle")
		q.grant(requests[0])
		free(false, "while the worker processes "+requests[0].Name)
		time.Sleep(2 * time.Second)
		free(true, "after the worker has processed "+requests[0].Name)
		q.grant(requests[1])
		free(false, "while the worker processes "+requests[1].Name)
		q.ShutDown()
		<-done
	})
}
