// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// TestResync checks that a resync begins when the caches are filled, queues each identity once per period, and limits the
// length of the queue.
func TestResync(t *testing.T) {
	for name, newQueue := range map[string]func() workqueue.TypedRateLimitingInterface[reconcile.Request]{
		"a queue with priorities": func() workqueue.TypedRateLimitingInterface[reconcile.Request] {
			return priorityqueue.New[reconcile.Request]("resync")
		},
		"a queue without priorities": func() workqueue.TypedRateLimitingInterface[reconcile.Request] {
			return workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				queue := newQueue()
				defer func() {
					cancel()
					queue.ShutDown()
					synctest.Wait()
				}()
				const many = 10*resyncBatch + 3
				var ready atomic.Bool
				// mu guards seen and waiting. seen is the number of times that each identity was queued, and waiting the
				// maximum length of the queue.
				var mu sync.Mutex
				seen, waiting := map[string]int{}, 0
				f := &Requests{}
				s := Resync{Clock: clock.RealClock{}, Period: time.Minute, Ready: ready.Load, All: func() []string {
					var all []string
					for i := range many {
						all = append(all, fmt.Sprintf("db/mysql-%d", i))
					}
					return all
				}}
				go f.Resynced(s).Start(ctx, queue)
				time.Sleep(time.Second)
				if queue.Len() > 0 {
					t.Errorf("got %d queued requests before the caches are filled, want none", queue.Len())
				}
				ready.Store(true)
				time.Sleep(time.Second)
				f.Add(ForOwner("db/new-0")...)
				go func() {
					for {
						r, down := queue.Get()
						if down {
							return
						}
						mu.Lock()
						seen[r.String()]++
						waiting = max(waiting, queue.Len())
						mu.Unlock()
						queue.Done(r)
						time.Sleep(time.Millisecond)
					}
				}()
				count := func(after time.Duration) map[int]int {
					time.Sleep(after)
					mu.Lock()
					defer mu.Unlock()
					counts := map[int]int{}
					for _, n := range seen {
						counts[n]++
					}
					return counts
				}
				// In the first minute the first resync is done. Half a minute later half of the second resync is done.
				if diff := cmp.Diff(map[int]int{1: many + 1}, count(50*time.Second)); diff != "" {
					t.Errorf("number of identities by number of times queued, after the first resync (-want +got): %s", diff)
				}
				half := count(40 * time.Second)
				if half[2] < many/3 || half[2] > 2*many/3 || half[1]+half[2] != many+1 {
					t.Errorf("number of identities by number of times queued: got %v halfway through the second resync, want about half of %d queued twice", half, many)
				}
				if diff := cmp.Diff(map[int]int{1: 1, 2: many}, count(28*time.Second)); diff != "" {
					t.Errorf("number of identities by number of times queued, after the second resync (-want +got): %s", diff)
				}
				if waiting > 2*resyncBatch {
					t.Errorf("got a queue of %d requests, want at most %d", waiting, 2*resyncBatch)
				}
			})
		})
	}
}

// TestIdentities checks that Identities returns each name once: the pod of each owned, moved or move-target entry, the
// FixedIP, and the pod that the FixedIP names. For a slot these are two names: that of the FixedIP and that of the holder.
func TestIdentities(t *testing.T) {
	l := ledger.New()
	at := netip.MustParseAddr
	l.SetNode(pool.NodePool{Name: "n", Entries: map[netip.Addr]pool.Entry{
		at("10.0.1.1"): pool.ForOwner("db/held-0"), at("10.0.1.2"): pool.MovedEntry("m", "db/moved-0"), at("10.0.1.3"): pool.MoveTargetEntry("db/target-0"),
		at("10.0.1.4"): {}, at("10.0.1.5"): pool.ForOwner("router"), at("10.0.1.6"): pool.CooldownEntry("", time.Unix(1, 0)),
	}})
	l.SetReservation(ledger.Reservation{Record: "db/held-0", Owner: "db/held-0"})
	l.SetReservation(ledger.Reservation{Record: "db/web-slot-0a000109", Owner: "db/web-x7k"})
	want := []string{"db/held-0", "db/moved-0", "db/target-0", "db/web-slot-0a000109", "db/web-x7k"}
	if got := Identities(l); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
