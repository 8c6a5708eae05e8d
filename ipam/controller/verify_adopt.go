// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// adopt keeps for a pod what it runs with. The pod is looked at again after the write: one that has gone
// meanwhile, or is on its way, may leave its address to another, so that the entries are put back as they were. Where it
// can't be kept the pod is restarted, and gets what was claimed for it; later is when it is its turn.
func (r *verifyReconciler) adopt(ctx context.Context, key types.NamespacedName, o plan.Observed, addrs []netip.Addr) (later time.Duration, err error) {
	node, owner := o.Pod.Spec.NodeName, pool.OwnerKey(key.Namespace, key.Name)
	claimed, ok := r.ledger.Node(o.Held[0].Node)
	if !ok {
		return 0, fmt.Errorf("node %s has no CiliumNode any more: %w", o.Held[0].Node, errSuperseded)
	}
	entry := claimed.Entries[o.Held[0].Addrs[0]]
	if !entry.OwnedBy(owner) {
		return 0, fmt.Errorf("%s is no longer the pod's on node %s: %w", o.Held[0].Addrs[0], o.Held[0].Node, errSuperseded)
	}
	for _, a := range addrs {
		others, err := runningWith(ctx, r.cached, a, key)
		if err != nil {
			return 0, err
		}
		if len(others) > 0 {
			if err := stillHas(ctx, r.live, others[0], []netip.Addr{a}); err != nil {
				return 0, fmt.Errorf("%s may be free by now: %w", a, err)
			}
			return r.unfit(ctx, o, fmt.Errorf("%s is what pod %s runs with", a, pool.RedactOwner(pool.OwnerKey(others[0].Namespace, others[0].Name), owner)))
		}
	}
	var made []pool.Edit
	err = r.writer.Write(ctx, ciliumpool.Request{Node: node, Live: true, Decide: func(n pool.Node) ([]pool.Edit, error) {
		edits, err := n.Adopt(addrs, entry, r.clock.Now())
		if len(edits) > 0 {
			made = edits
		}
		return edits, err
	}})
	switch {
	case errors.Is(err, pool.ErrTaken):
		return r.unfit(ctx, o, err)
	case errors.Is(err, ciliumpool.ErrGone):
		return 0, fmt.Errorf("adopt %v: %w: %w", addrs, errSuperseded, err)
	case err != nil:
		return 0, fmt.Errorf("adopt %v on node %s: %w", addrs, node, err)
	}
	gone := stillHas(ctx, r.live, o.Pod, addrs)
	switch {
	case gone == nil:
		metrics.Mismatch("Adopted")
		r.events.Eventf(o.Pod, nil, corev1.EventTypeNormal, "AddressAdopted", "Verify", "It was started before the agent of node %s had seen its claim; the address that it got instead, %v, is kept for it now", node, addrs)
		klog.FromContext(ctx).Info("Address adopted", "node", node, "addresses", addrs, "entries", len(made))
		return 0, nil
	case !errors.Is(gone, errSuperseded):
		return 0, fmt.Errorf("after %v was adopted on node %s: %w", addrs, node, gone)
	}
	err = r.writer.Write(ctx, ciliumpool.Request{Node: node, Live: true, Decide: func(n pool.Node) ([]pool.Edit, error) {
		return n.Undo(made), nil
	}})
	if err != nil && !errors.Is(err, ciliumpool.ErrGone) {
		return 0, fmt.Errorf("undo the adoption of %v by pod %s, which went meanwhile, on node %s: %w", addrs, key, node, err)
	}
	return 0, gone
}

// unfit restarts a pod that runs with another address than was claimed for it, which can't be kept, if its policy says so,
// once it has been there for as long as every wrong address has to last.
func (r *verifyReconciler) unfit(ctx context.Context, o plan.Observed, why error) (later time.Duration, err error) {
	tell := func(end string, args ...any) {
		r.events.Eventf(o.Pod, nil, corev1.EventTypeWarning, "AddressTaken", "Verify", "It runs with another address than was claimed for it, which can't be kept: %v; "+end, append([]any{why}, args...)...)
	}
	if wait := youth(o.Pod, r.cfg.RestartAfter).Sub(r.clock.Now()); wait > 0 {
		return wait, nil
	}
	here := slices.ContainsFunc(o.Held, func(h ledger.Holding) bool { return h.Node == o.Pod.Spec.NodeName })
	if o.Policy != identity.Restart || !here {
		tell("delete the pod, and it will get its own")
		return 0, nil
	}
	later, err = r.restarter.restart(ctx, client.ObjectKeyFromObject(o.Pod), o.Pod)
	switch {
	case errors.Is(err, errBlocked):
		tell("it can't be restarted now: %v", err)
		return blockedRetry, nil
	case err != nil || later > 0:
		return later, err
	}
	tell("it was evicted to start again with its own")
	return 0, nil
}
