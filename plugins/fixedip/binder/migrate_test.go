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
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/scheme"
)

var (
	atHome = map[string]pool.Entry{"home": movedID.Entry()}
	onA    = map[string]pool.Entry{"home": pool.MovedEntry("a", movedOwner), "a": movedID.Entry()}
	// onItsWay has the pools after the scheduler has died before the last step of a move.
	onItsWay = map[string]pool.Entry{"home": pool.MovedEntry("a", movedOwner), "a": pool.MoveTargetEntry(movedOwner)}
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

// TestMoveUndoneInSecondTry checks that a move is undone completely if the first try has taken the addresses away and the
// pod is bound during the second one. The second try finds nothing to take, or an address whose cooldown entry is gone.
func TestMoveUndoneInSecondTry(t *testing.T) {
	for name, cooldownGone := range map[string]bool{"nothing to take": false, "the cooldown entries are gone": true} {
		t.Run(name, func(t *testing.T) { moveUndoneInSecondTry(t, cooldownGone) })
	}
}

func moveUndoneInSecondTry(t *testing.T, cooldownGone bool) {
	pod, clients := movedPod()
	bound := pod.DeepCopy()
	bound.Spec.NodeName = "a"
	s := newPools(t, 0, onA)
	reads := 0
	clients.(*fake.Clientset).PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if reads++; reads == 1 {
			// Another write changes the pool of the home node, so that the first try fails after this read.
			home := s.nodes["home"]
			home.Spec.IPAM.Pool["10.0.1.200"] = ipamtypes.AllocationIP{}
			home.Generation++
			home.ResourceVersion = "changed"
			if from := s.nodes["a"]; cooldownGone {
				for _, addr := range movedAddrs {
					delete(from.Spec.IPAM.Pool, addr.String())
				}
				from.Generation++
				from.ResourceVersion = "changed"
			}
			return true, pod, nil
		}
		return true, bound, nil
	})
	if err := s.process(t.Context(), "late", clients).goTo(t.Context(), pod, "b"); !errors.Is(err, pool.ErrTaken) {
		t.Errorf("the move returned error %v, want %v", err, pool.ErrTaken)
	}
	if reads != 2 {
		t.Errorf("got %d reads of the pod, want 2", reads)
	}
	s.checkMoved(t, "a")
}

// TestMoveIsRecordedFirst checks that, after a move of its addresses, a pod with a FixedIP is not bound until the FixedIP
// names the node that has them now. That holds after a move by Bind and after a move that the pools show.
func TestMoveIsRecordedFirst(t *testing.T) {
	const waits = "its addresses 10.0.1.9, fd00:1::9 belong to node %s, which the FixedIP of the pod does not name yet; the pod is placed there when the controller has recorded that node in the FixedIP"
	const again = "its addresses 10.0.1.9, fd00:1::9 have moved to node %s; the pod is tried again there when the controller has recorded that node in the FixedIP of the pod"
	for name, c := range map[string]struct {
		pools map[string]pool.Entry
		// recorded is spec.nodeName of the FixedIP; "none": there is no FixedIP.
		recorded   string
		movableFor types.UID
		// to is the node that Bind moves the addresses to; empty: Bind is not called.
		to string
		// found and bound are the errors of unrecordedMove and of Bind; empty: no error.
		found, bound string
	}{
		"never moved":                            {pools: atHome, recorded: "home"},
		"never moved, inherited by the home":     {pools: atHome, recorded: "gone"},
		"may move":                               {pools: atHome, recorded: "home", movableFor: "pod-1"},
		"moves":                                  {pools: atHome, recorded: "home", movableFor: "pod-1", to: "a", bound: fmt.Sprintf(again, "a")},
		"moved, not recorded":                    {pools: onA, recorded: "home", movableFor: "pod-1", found: fmt.Sprintf(waits, "a")},
		"moved, the cache is behind":             {pools: onA, recorded: "home", found: fmt.Sprintf(waits, "a")},
		"moved, recorded":                        {pools: onA, recorded: "a", movableFor: "pod-1"},
		"moved, no FixedIP":                      {pools: onA, recorded: "none"},
		"moves on":                               {pools: onA, recorded: "a", movableFor: "pod-1", to: "b", bound: fmt.Sprintf(again, "b")},
		"returns":                                {pools: onA, recorded: "a", movableFor: "pod-1", to: "home", bound: fmt.Sprintf(again, "home")},
		"returned, not recorded":                 {pools: atHome, recorded: "a", movableFor: "pod-0", found: fmt.Sprintf(waits, "home")},
		"returned, recorded":                     {pools: atHome, recorded: "home", movableFor: "pod-0"},
		"interrupted move to an unrecorded node": {pools: onItsWay, recorded: "home", movableFor: "pod-1", to: "a", bound: fmt.Sprintf(again, "a")},
		"interrupted move to the recorded node":  {pools: onItsWay, recorded: "a", movableFor: "pod-1", to: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			pod, clients := movedPod()
			s := newPools(t, 0, c.pools)
			b := s.process(t.Context(), "scheduler", clients).binder
			b.claimTimeout = time.Minute
			kinds, err := scheme.New()
			if err != nil {
				t.Fatal(err)
			}
			records := fakeclient.NewClientBuilder().WithScheme(kinds)
			if c.recorded != "none" {
				records.WithObjects(&v1alpha1.FixedIP{
					ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0"},
					Spec:       v1alpha1.FixedIPSpec{IPs: address.Strings(movedAddrs), NodeName: c.recorded, PodName: "mysql-0", Owner: v1alpha1.OwnerReference{APIVersion: "v1", Kind: "StatefulSet", Name: "mysql"}},
					Status:     v1alpha1.FixedIPStatus{MovableFor: c.movableFor},
				})
			}
			b.Cache.FixedIPs = records.Build()
			r, err := b.reservationOf(t.Context(), movedID)
			if err != nil {
				t.Fatal(err)
			}
			p := &Plan{id: movedID, uid: pod.UID, reservation: r}
			found := ""
			if refusal := b.unrecordedMove(p); refusal != nil {
				found = refusal.Reason
			}
			if found != c.found {
				t.Errorf("unrecordedMove returned %q, want %q", found, c.found)
			}
			if c.to == "" {
				return
			}
			if r.node != c.to {
				p.failover = v1alpha1.Migrate
			}
			if _, err := b.Cache.Ledger.Assume(pod.UID, ledger.ClaimRequest{Claim: ledger.Claim{Owner: movedOwner, Node: c.to, Addrs: r.addrs}, Carry: true}); err != nil {
				t.Fatal(err)
			}
			err = b.Bind(t.Context(), p, pod, c.to)
			bound := ""
			if lost := (*LostError)(nil); errors.As(err, &lost) {
				bound = lost.Reason
			} else if err != nil {
				t.Fatal(err)
			}
			if bound != c.bound {
				t.Errorf("Bind returned %q, want %q", bound, c.bound)
			}
			s.checkMoved(t, c.to)
		})
	}
}

// TestConcurrentMoves checks that the pools of two nodes never offer the same address at the same time. Meanwhile two
// schedulers move the same pod, and an actor removes the cooldown entries. For some seeds, another actor releases the addresses
// and claims them for another pod at their home; with at least one of these seeds, that happens during a move. For the remaining
// seeds, the test also checks that the next scheduler can move the pod to some node afterwards. Requests come in random order,
// and some watches are late.
func TestConcurrentMoves(t *testing.T) {
	claimedInMove := 0
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
			claimedInMove += s.claimedInMove
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
	if claimedInMove == 0 {
		t.Error("with none of the seeds, the addresses were claimed for another pod during a move")
	}
}
