// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/plugins/fixedip/cache"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

// Claimed reports whether Bind has nothing to do: the pools give the pod its addresses for certain, and it needs no
// MAC address.
func (b *Binder) Claimed(p *Plan, pod *corev1.Pod) bool {
	claim, claimed := b.Cache.Ledger.Claimed(pod.UID)
	switch {
	case p.unreserved && p.optedOut:
		return false
	case !claimed:
		return p.unreserved
	}
	if wanted, err := identity.WantsMAC(pod); wanted || err != nil {
		return false
	}
	if b.Cache.Ledger.IsClaimed(claim) && (p.unreserved || b.certain(claim, p)) {
		metrics.ClaimEnded(metrics.Standing, 0) // Bind, which counts the others, is not called.
		return true
	}
	return false
}

// Bind writes the claim into the node's pool.
func (b *Binder) Bind(ctx context.Context, p *Plan, pod *corev1.Pod, node string) error {
	if p.unreserved {
		if err := b.confirmUnreserved(ctx, p, pod, node); err != nil {
			return err
		}
		return b.bindUnreserved(ctx, pod, node)
	}
	claim, ok := b.Cache.Ledger.Claimed(pod.UID)
	if !ok {
		return fmt.Errorf("pod %s/%s has no address decided for it on node %s", pod.Namespace, pod.Name, node)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, b.claimTimeout, fmt.Errorf("not done within claimTimeout %v", b.claimTimeout))
	defer cancel()
	switch err := b.bind(ctx, p, pod, claim); {
	case errors.Is(err, pool.ErrTaken), errors.Is(err, pool.ErrUnfenced), errors.Is(err, pool.ErrUndecided):
		return &LostError{"the address decided for the pod was lost: " + err.Error() + "; it is tried again"}
	case errors.Is(err, errUnacknowledged):
		return &LostError{err.Error()}
	case err != nil:
		return fmt.Errorf("claim address %s of node %s for pod %s/%s: %w", address.Join(claim.Addrs), node, pod.Namespace, pod.Name, err)
	}
	if err := b.setMAC(ctx, pod, p.id, claim.Addrs); err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Address claimed", "pod", klog.KObj(pod), "node", node, "ips", claim.Addrs)
	return nil
}

func (b *Binder) bind(ctx context.Context, p *Plan, pod *corev1.Pod, claim ledger.Claim) error {
	if claim.From != "" && claim.From != claim.Owner {
		if err := b.formerGone(ctx, claim.From); err != nil {
			return err
		}
	}
	if p.moves(claim.Node) {
		return b.observedMigration(ctx, func() error { return b.migrate(ctx, pod, p, claim) })
	}
	if err := b.observed(ctx, claim, func() error { return b.claim(ctx, p, claim) }); err != nil {
		return err
	}
	// An administrator or another scheduler may have written an entry on another node since the plan. Both entries
	// stand, and the next cycle chooses.
	if h, ok := notKnown(b.Cache.Ledger.Held(claim.Owner), append(slices.Clone(p.reservation.holders), claim.Node)); ok {
		return pool.ErrOnOtherNode(claim.Owner, h.Node, h.Addrs)
	}
	return nil
}

// errUnacknowledged: an agent may not know yet whose an address is.
var errUnacknowledged = errors.New("the agent may be behind")

// certain reports whether a claim that stands needs no look at the API server. It needs one as long as no FixedIP names
// its addresses: the former pod of the name may have got others than were claimed for it, and the watch be behind. And
// it needs one as long as the agent may not know its entries, and may have reported to whom it assigned an address.
func (b *Binder) certain(c ledger.Claim, p *Plan) bool {
	n, _ := b.Cache.Ledger.Node(c.Node)
	return p.reservation.recorded && acknowledged(n, c.Addrs) == nil
}

// claim writes a claim into the pool of its node, unless it stands there for certain.
func (b *Binder) claim(ctx context.Context, p *Plan, c ledger.Claim) error {
	stands, planned := b.Cache.Ledger.IsClaimed(c), b.planned(c.Owner, c.Node)
	if stands && b.certain(c, p) {
		return nil
	}
	return b.Cache.Pools.Write(ctx, cache.WriteRequest{
		Node: c.Node,
		Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
			if stands {
				return nil, cmp.Or(n.CheckBinding(c.Owner, planned), acknowledged(n, c.Addrs))
			}
			if c.From != "" {
				return n.TakeOver(c.Addrs, c.From, p.id.Entry())
			}
			return n.Claim(c.Addrs, p.id.Entry())
		},
		// What the agent lists as used decides whether a slot can be taken over.
		FromAPIServer: c.From != "" || stands,
		// The decision read that no other entry names the pod. A JSON patch cannot test that, so that it tests the version
		// of the spec.
		RequireUnchangedSpec: true,
	})
}

// planned returns the addresses that the cache shows for a pod on a node. The binding invariant (pool.CheckBinding) is checked
// for them: take them before the pool is read, since the cache learns from reads.
func (b *Binder) planned(owner, node string) []netip.Addr {
	for _, h := range b.Cache.Ledger.Held(owner) {
		if h.Node == node {
			return h.Addrs
		}
	}
	return nil
}
