// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/plugins/fixedip/cache"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// strictNodes are the nodes whose pools have entries with an owner only: every pod on them needs a claim.
type strictNodes struct {
	selector labels.Selector

	mu sync.RWMutex
	// names are the strict nodes, as the watch of nodes shows them: the same view that wakes pods, while the snapshot of a
	// cycle may be behind. They also save a look at all nodes for each pod.
	names map[string]bool
}

func (s *strictNodes) matches(node *corev1.Node) bool {
	return s.selector.Matches(labels.Set(node.Labels))
}

// has reports whether a node is strict.
func (s *strictNodes) has(name string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.names[name]
}

// any reports whether there is a strict node.
func (s *strictNodes) any() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.names) > 0
}

// handler keeps names, and makes an event of a node that is not strict any more: pods that waited for room there need
// none.
func (s *strictNodes) handler(notify func(requeue.Event)) toolscache.ResourceEventHandler {
	set := func(name string, strict bool) {
		s.mu.Lock()
		was := s.names[name]
		if strict {
			if s.names == nil {
				s.names = map[string]bool{}
			}
			s.names[name] = true
		} else {
			delete(s.names, name)
		}
		s.mu.Unlock()
		if was && !strict {
			notify(requeue.Event{Node: name, Freed: requeue.AllRoom})
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { set(obj.(*corev1.Node).Name, s.matches(obj.(*corev1.Node))) },
		UpdateFunc: func(_, obj any) { set(obj.(*corev1.Node).Name, s.matches(obj.(*corev1.Node))) },
		DeleteFunc: func(obj any) {
			node, _ := requeue.Deleted[*corev1.Node](obj)
			set(node.Name, false)
		},
	}
}

// AnyStrict reports whether there is a node on which pods without a fixed address need a claim.
func (b *Binder) AnyStrict() bool { return b.strict.any() }

var noStrictRoom = forEachFamily("strict node(s) had no free %s address for the pod in their subnets")

// assumeUnreserved decides the address of a pod without a fixed one if the node is strict.
func (b *Binder) assumeUnreserved(pod *corev1.Pod, name string) error {
	if pod.Spec.HostNetwork || !b.strict.has(name) {
		return nil
	}
	owner := pool.OwnerKey(pod.Namespace, pod.Name)
	claim := ledger.Claim{Owner: owner, Node: name}
	if _, err := b.Cache.Ledger.Assume(pod.UID, ledger.ClaimRequest{Claim: claim, Families: b.families, Unreserved: true}); err != nil {
		return &Refusal{Reason: err.Error(), WakeOn: requeue.WakeOn{Owner: owner, Nodes: []string{name}, Room: &requeue.Room{Strict: true}}}
	}
	return nil
}

// bindUnreserved writes the claim of a pod without a fixed address into the pool of its strict node. If another pod was
// faster, any other address will do.
func (b *Binder) bindUnreserved(ctx context.Context, pod *corev1.Pod, node string) error {
	claim, ok := b.Cache.Ledger.Claimed(pod.UID)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, b.claimTimeout, fmt.Errorf("not done within claimTimeout %v", b.claimTimeout))
	defer cancel()
	err := b.observed(ctx, claim, func() error { return b.claimUnreserved(ctx, claim, pool.UnreservedEntry(pod.Namespace, pod.Name)) })
	switch {
	case errors.Is(err, pool.ErrTaken):
		return &Refusal{Reason: err.Error(), WakeOn: requeue.WakeOn{Owner: claim.Owner, Nodes: []string{node}, Room: &requeue.Room{Strict: true}}}
	case err != nil:
		return fmt.Errorf("claim an address of the strict node %s for pod %s/%s: %w", node, pod.Namespace, pod.Name, err)
	}
	return nil
}

func (b *Binder) claimUnreserved(ctx context.Context, c ledger.Claim, entry pool.Entry) error {
	if b.Cache.Ledger.IsClaimed(c) {
		return nil
	}
	return b.Cache.Pools.Write(ctx, cache.WriteRequest{
		Node: c.Node,
		Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
			return b.Cache.Ledger.ClaimUnreserved(n, c, entry)
		},
		// The controller may have claimed an address for the pod.
		RequireUnchangedSpec: true,
	})
}
