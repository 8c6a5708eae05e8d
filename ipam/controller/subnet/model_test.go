// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/test/gen"
)

var errStopped = errors.New("the controller was stopped")

// frozen returns a reader of a copy of the current objects. Later writes do not change the copy.
func frozen(s *scene) client.Reader {
	s.t.Helper()
	copied := newScene(s.t)
	for _, list := range everything() {
		if err := s.api.List(s.t.Context(), list); err != nil {
			s.t.Fatal(err)
		}
		for _, o := range items(list) {
			o.SetResourceVersion("")
			if err := copied.api.Create(s.t.Context(), o); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	return copied.api
}

// leader is one of several controllers that each act as the leader. Its requests wait until the model completes them.
type leader struct {
	*testController
	// waiting is the request that waits for its result; nil: there is none.
	waiting *request
	// busy is true while a reconcile is under way.
	busy bool
}

type request struct {
	// name is the verb and the type of the object.
	name string
	// result receives nil, or the error with which the request fails.
	result chan error
}

// TestModelOfTwoLeaders runs two controllers that both act as the leader and have different mask sizes. Their caches
// are from any time between the start and now. Their requests complete in any order, some of them with an error. The
// test checks that two nodes never have overlapping subnets, and that no other node gets the subnet of a node whose
// Node exists.
func TestModelOfTwoLeaders(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var failure string
		// rapid ends a run with a panic, which must not leave a synctest bubble: draw all choices before the bubble begins.
		choices := rapid.SliceOfN(rapid.Uint16(), 150, 150).Draw(rt, "choices")
		synctest.Test(t, func(t *testing.T) { failure = playTwoLeaders(t, choices) })
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

func playTwoLeaders(t *testing.T, choices []uint16) (failure string) {
	s := newScene(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer func() {
		cancel()
		synctest.Wait()
	}()
	var history []string
	names := []string{"node-0", "node-1", "node-2", "node-3"}
	start := func(maskSize int) *leader {
		l := &leader{}
		api := s.counting(func(verb string, o any) error {
			r := &request{fmt.Sprintf("%s %T", verb, o), make(chan error)}
			l.waiting = r
			select {
			case err := <-r.result:
				return err
			case <-ctx.Done():
				return errStopped
			}
		})
		l.testController = s.controller(api, frozen(s), rules(subnetplan.Inherit, maskSize))
		l.watch(s)
		l.listed.synced = func() bool { return true }
		var events v1alpha1.NodeSubnetList
		if err := s.api.List(t.Context(), &events); err != nil {
			t.Fatal(err)
		}
		for i := range events.Items {
			l.listed.apply(nil, &events.Items[i])
		}
		return l
	}
	// before contains the node that got each subnet before the step, as long as its Node exists. Key: the CIDR.
	before := map[string]string{}
	leaders := []*leader{start(28), start(27)}
	for i, choice := range choices {
		which, how := int(choice/16%64), int(choice%16)
		l := leaders[which%2]
		name := names[which/2%len(names)]
		switch {
		case how < 8 && l.waiting != nil:
			r := l.waiting
			l.waiting = nil
			history = append(history, fmt.Sprintf("%d: leader %d completes %s", i, which%2, r.name))
			var err error
			if which/8 == 7 {
				err = errStopped
			}
			r.result <- err
		case how < 8 && !l.busy:
			l.busy = true
			history = append(history, fmt.Sprintf("%d: leader %d reconciles %s", i, which%2, name))
			go func() {
				defer func() { l.busy = false }()
				if which%5 == 0 {
					_, _ = l.reconcileOrphans(ctx, All)
				} else {
					_, _ = l.reconcileNode(ctx, source.ForName(name))
				}
			}()
		case how == 8 && !l.busy:
			history = append(history, fmt.Sprintf("%d: the caches of leader %d catch up", i, which%2))
			leaders[which%2] = start([]int{28, 27}[which%2])
			leaders[which%2].started.Store(l.started.Load())
		case how == 9 || how == 10:
			history = append(history, fmt.Sprintf("%d: node %s joins", i, name))
			_ = s.api.Create(t.Context(), stamped(s, node(name)))
			_ = s.api.Create(t.Context(), stamped(s, gen.CiliumNode(name)))
		case how == 11:
			history = append(history, fmt.Sprintf("%d: the CiliumNode of %s is deleted", i, name))
			_ = s.api.Delete(t.Context(), gen.CiliumNode(name))
		case how == 12:
			history = append(history, fmt.Sprintf("%d: node %s is deleted", i, name))
			_ = s.api.Delete(t.Context(), node(name))
			_ = s.api.Delete(t.Context(), gen.CiliumNode(name))
		default:
			s.clock.SetTime(s.clock.Now().Add(passInterval * 20))
		}
		synctest.Wait()
		if problem := s.violated(before); problem != "" {
			return problem + "\n" + strings.Join(history, "\n")
		}
	}
	return ""
}

// violated returns a description of a violation of the invariants by the subnets of nodes; empty: there is none. It removes
// the subnets of deleted nodes from before, and adds the current subnets to before.
func (s *scene) violated(before map[string]string) string {
	exists := map[string]bool{}
	for _, name := range s.nodeNames() {
		exists[name] = true
	}
	for cidr, name := range before {
		if !exists[name] {
			delete(before, cidr)
		}
	}
	pools := s.pools()
	for name, n := range pools {
		for _, sub := range n.Subnets {
			for other, o := range pools {
				for _, theirs := range o.Subnets {
					if other != name && sub.Overlaps(theirs) {
						return fmt.Sprintf("subnet %s of node %s overlaps subnet %s of node %s", sub, name, theirs, other)
					}
				}
			}
			for cidr, owner := range before {
				if owner != name && prefix(cidr).Overlaps(sub) {
					return fmt.Sprintf("node %s got subnet %s, which overlaps subnet %s of node %s, although that node exists", name, sub, cidr, owner)
				}
			}
			before[sub.String()] = name
		}
	}
	return ""
}
