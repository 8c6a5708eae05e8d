// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"errors"
	"net/netip"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/subnets"
)

// releaseInterval is the least time between two releases of orphans. Each lists all FixedIPs and all CiliumNodes, so
// that those that are due within it are released together.
const releaseInterval = 30 * time.Second

// release deletes the NodeSubnets of orphans that nothing needs any more: no FixedIP reserves an address in them, and
// no pool has one. The CIDRs are free again. at is when to look again; zero: not before something changes.
func (r *orphanReconciler) release(ctx context.Context, s *snapshot) (at time.Time, err error) {
	var due []subnetplan.Orphan
	for _, o := range s.orphans {
		ok, when := r.Rules.Releasable(o, s.now)
		if ok && !r.Ledger.HasForeignAddresses(subnetplan.CIDRs(o.Subnets)) {
			due = append(due, o)
		} else if !when.IsZero() && (at.IsZero() || when.Before(at)) {
			at = when
		}
	}
	if len(due) == 0 {
		return at, nil
	}
	if next := r.released.Add(releaseInterval); s.now.Before(next) {
		return next, nil
	}
	r.released = s.now
	var candidates []netip.Prefix
	for _, o := range due {
		candidates = append(candidates, subnetplan.CIDRs(o.Subnets)...)
	}
	needed, err := r.needed(ctx, candidates)
	if err != nil {
		return at, err
	}
	for _, o := range due {
		if err := r.releaseOrphan(ctx, o, needed, s); err != nil {
			return at, err
		}
	}
	return at, nil
}

// needed returns the addresses in the subnets that a FixedIP reserves or that a pool has an entry for, and their
// overlaps with the subnets of CiliumNodes, as the API server has them.
func (r *orphanReconciler) needed(ctx context.Context, in []netip.Prefix) ([]netip.Prefix, error) {
	kept, err := r.keptLive(ctx, in)
	if err != nil {
		return nil, err
	}
	var needed []netip.Prefix
	for _, k := range kept {
		needed = append(needed, netip.PrefixFrom(k.Addr, k.Addr.BitLen()))
	}
	inside := address.Union(in)
	err = r.each(ctx, func() client.ObjectList { return &ciliumv2.CiliumNodeList{} }, func(obj runtime.Object) {
		n := ciliumpool.FromCiliumNode(obj.(*ciliumv2.CiliumNode))
		needed = append(needed, n.Subnets...)
		for a := range n.Entries {
			if inside.Contains(a) {
				needed = append(needed, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	})
	return needed, err
}

func (r *orphanReconciler) releaseOrphan(ctx context.Context, o subnetplan.Orphan, needed []netip.Prefix, s *snapshot) error {
	set := address.Union(needed)
	for _, sub := range o.Subnets {
		if set.OverlapsPrefix(sub.CIDR) {
			return nil
		}
	}
	if o.Node != "" {
		if present, err := r.exists(ctx, o.Node); err != nil || present {
			return err
		}
	}
	for _, sub := range o.Subnets {
		// The version is the one that was read before: a node that has come back since has written another.
		err := r.Store.Delete(ctx, named(s.list, sub.CIDR))
		if errors.Is(err, subnets.ErrChanged) {
			continue
		}
		if err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Subnet released", "node", o.Node, "subnet", sub.CIDR)
	}
	return nil
}
