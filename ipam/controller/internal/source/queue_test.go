// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// TestQueueReleasesWorkers checks that all workers end when the queue is shut down while they are busy.
func TestQueueReleasesWorkers(t *testing.T) {
	for round := range 200 {
		limiter := workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]()
		q := newQueue("test", limiter).(priorityqueue.PriorityQueue[reconcile.Request])
		var busy sync.WaitGroup
		for worker := range 20 {
			busy.Go(func() {
				for i := 0; ; i++ {
					q.Add(ForOwner(fmt.Sprintf("db/node-%d-%d", worker, i))[0])
					r, _, shutdown := q.GetWithPriority()
					if shutdown {
						return
					}
					q.Done(r)
				}
			})
		}
		time.Sleep(time.Millisecond)
		q.ShutDown()
		ended := make(chan struct{})
		go func() {
			busy.Wait()
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatalf("round %d: workers still run a minute after the queue was shut down", round)
		}
	}
}

// TestQueueOrder checks that the queue returns requests by priority, and that it never gives one request to two workers
// at the same time. If a request is added while a worker processes it, the queue returns the request again afterwards.
func TestQueueOrder(t *testing.T) {
	q := newQueue("test", workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]()).(priorityqueue.PriorityQueue[reconcile.Request])
	defer q.ShutDownWithDrain()
	low, high := ForOwner("db/low")[0], ForOwner("db/high")[0]
	priority := 1
	q.Add(low)
	q.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, high)
	want := func(r reconcile.Request, priority int) {
		t.Helper()
		if got, p, shutdown := q.GetWithPriority(); got != r || p != priority || shutdown {
			t.Fatalf("got %v with priority %d (shut down: %v), want %v with %d", got, p, shutdown, r, priority)
		}
	}
	want(high, 1)
	q.Add(high)
	want(low, 0)
	q.Done(high)
	want(high, 0)
	q.ShutDown()
	if _, shutdown := q.Get(); !shutdown {
		t.Fatal("Get did not report the shutdown of the queue")
	}
	q.Done(high)
}
