// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"

	"fixedip.io/fixedip/ipam/core/pool"
)

var (
	atHome = map[string]pool.Entry{"home": movedID.Entry()}
	onA    = map[string]pool.Entry{"home": pool.MovedEntry("a", movedOwner), "a": movedID.Entry()}
)

// TestMoveResumed checks that, if a scheduler dies after any write of a move, the next scheduler can move the pod to the
// same or another node, unless an address is in cooldown on that node.
func TestMoveResumed(t *testing.T) {
	for name, move := range map[string]struct {
		from   map[string]pool.Entry
		to     string
		writes int
	}{
		"from home":       {atHome, "a", 3},
		"to a third node": {onA, "b", 5},
		"to home":         {onA, "home", 3},
	} {
		for dies := 1; dies <= move.writes; dies++ {
			for _, then := range []string{"home", "a", "b"} {
				t.Run(fmt.Sprintf("%s, dies after %d writes, then moved to %s", name, dies, then), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						ctx, cancel := context.WithCancel(t.Context())
						defer cancel()
						pod, clients := movedPod()
						s := newPools(t, 0, move.from)
						victim := s.process(ctx, "victim", clients)
						victim.dies = dies
						if err := victim.goTo(ctx, pod, move.to); err == nil {
							t.Fatal("got no error from a scheduler that died during the move")
						}
						s.actors = nil
						successor := s.process(ctx, "successor", clients)
						cooling := false
						for _, e := range s.nodes[then].Spec.IPAM.Pool {
							cooling = cooling || e.Owner == "fixedip.io/cooldown"
						}
						err := successor.goTo(ctx, pod, then)
						if cooling {
							if !errors.Is(err, pool.ErrTaken) {
								t.Errorf("an address is in cooldown on node %s: the move there returned error %v, want %v", then, err, pool.ErrTaken)
							}
							return
						}
						if err != nil {
							t.Fatalf("the successor could not move the pod to node %s: %v\n%s", then, err, strings.Join(s.log, "\n"))
						}
						s.checkMoved(t, then)
					})
				})
			}
		}
	}
}

// TestMoveUndone checks that a move is undone if another scheduler has bound the pod to its old node in the meantime.
func TestMoveUndone(t *testing.T) {
	for name, from := range map[string]map[string]pool.Entry{"home": atHome, "a": onA} {
		t.Run(name, func(t *testing.T) {
			pod, clients := movedPod()
			bound := pod.DeepCopy()
			bound.Spec.NodeName = name
			if err := clients.(*fake.Clientset).Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), bound, "db"); err != nil {
				t.Fatal(err)
			}
			s := newPools(t, 0, from)
			if err := s.process(t.Context(), "late", clients).goTo(t.Context(), pod, "b"); !errors.Is(err, pool.ErrTaken) {
				t.Errorf("the move returned error %v, want %v", err, pool.ErrTaken)
			}
			s.checkMoved(t, name)
		})
	}
}

// TestConcurrentMoves checks that at no time two pools offer an address, while two schedulers move the same pod, an actor
// removes expired cooldown entries and, for some seeds, another actor releases the addresses and claims them for another
// pod at their home. Requests come in random order, and some watches are late.
func TestConcurrentMoves(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			pod, clients := movedPod()
			from := atHome
			if seed%2 == 1 {
				from = onA
			}
			s := newPools(t, seed, from)
			var running sync.WaitGroup
			begin := func(name string, do func(*actor)) {
				a := s.process(ctx, name, clients)
				a.turn = make(chan struct{})
				running.Go(func() { do(a) })
			}
			for _, name := range []string{"one", "two"} {
				var targets []string
				for range 3 {
					targets = append(targets, []string{"home", "a", "b"}[s.rand.IntN(3)])
				}
				begin(name, func(a *actor) {
					for _, to := range targets {
						// The move may fail, because another actor was faster.
						if err := a.goTo(ctx, pod, to); err != nil {
							s.note(a.name + " could not move the pod to " + to + ": " + err.Error())
						}
					}
				})
			}
			begin("expire", func(a *actor) {
				for range 10 {
					a.expire(ctx)
				}
			})
			if seed%3 > 0 {
				begin("release", func(a *actor) { a.release(ctx) })
			}
			done := make(chan struct{})
			go func() { running.Wait(); close(done) }()
			s.drive(done)
			if t.Failed() || seed%3 > 0 {
				return
			}
			// After all of that, the next scheduler can move the pod to some node.
			s.actors = nil
			s.process(ctx, "expire", clients).expire(ctx)
			last := s.process(ctx, "last", clients)
			var errs []error
			for _, to := range []string{"home", "a", "b"} {
				err := last.goTo(ctx, pod, to)
				if err == nil {
					s.checkMoved(t, to)
					return
				}
				errs = append(errs, err)
			}
			t.Errorf("seed %d: the last scheduler could not move the pod to any node: %v\n%s", seed, errs, strings.Join(s.log, "\n"))
		})
		if t.Failed() {
			t.Fatalf("failed with seed %d", seed)
		}
	}
}
