// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package gather

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// addressHomes returns the state of each address of a FixedIP at its home, from the ledger and the caches; nil if there is no
// FixedIP or the FixedIP is being deleted. A later write has the entries in the result as a precondition.
func (g *Gatherer) addressHomes(ctx context.Context, record *v1alpha1.FixedIP) ([]reclaim.AddressHome, error) {
	if record == nil || record.DeletionTimestamp != nil {
		return nil, nil
	}
	owner := pool.OwnerKey(record.Namespace, record.Spec.PodName)
	var homes []reclaim.AddressHome
	for _, reserved := range reservation.Of(record) {
		h := reclaim.AddressHome{Addr: reserved.Addr}
		if node, ok := g.Ledger.Home(reserved.Addr); ok {
			h.Node = node
			n, _ := g.Ledger.Node(node)
			if e, exists := n.Entries[reserved.Addr]; exists {
				h.Entry = &e
			} else {
				h.Blocker = n.ClaimBlocker(reserved.Addr, owner, nil)
			}
			user, used := n.Used[reserved.Addr]
			h.Reported = used && user == owner
			if used && user != owner {
				h.User = user
				if user == "" {
					h.User = pool.UnknownUser
				}
			}
			pods, err := index.PodsWithIP(ctx, g.Cached, reserved.Addr)
			if err != nil {
				return nil, err
			}
			for _, p := range pods {
				if key := pool.OwnerKey(p.Namespace, p.Name); key != owner && p.Spec.NodeName == node {
					h.User = key
					break
				}
			}
		}
		var err error
		if h.ConflictingFixedIP, err = g.conflictingFixedIP(ctx, record, reserved.Addr); err != nil {
			return nil, err
		}
		homes = append(homes, h)
	}
	return homes, nil
}

// homeMissing returns the value of reclaim.State.HomeMissing for a FixedIP: a node that exists and to which a NodeSubnet
// assigns the subnet of one of the addresses, although no CiliumNode has a subnet with that address. It returns an empty
// string if there is no such node, if the FixedIP is not being deleted, or if no pod was allowed to move the addresses.
func (g *Gatherer) homeMissing(ctx context.Context, record *v1alpha1.FixedIP) (string, error) {
	if record == nil || record.DeletionTimestamp == nil || record.Status.MovableFor == "" {
		return "", nil
	}
	for _, a := range address.ParseAll(record.Spec.IPs) {
		if len(g.Ledger.HomesOf(a)) > 0 {
			continue
		}
		var list v1alpha1.NodeSubnetList
		if err := g.Cached.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
			return "", fmt.Errorf("list NodeSubnets from the cache: %w", err)
		}
		for _, s := range list.Items {
			if cidr, err := address.ParseSubnet(s.Spec.CIDR); err != nil || !cidr.Contains(a) {
				continue
			}
			if node, err := index.Node(ctx, g.Cached, s.Spec.NodeName); err != nil || node != nil {
				return s.Spec.NodeName, err
			}
		}
	}
	return "", nil
}

// conflictingFixedIP returns another FixedIP, as "namespace/name", that names the address and precedes record (see
// reclaim.Precedes), or an empty string if there is none.
func (g *Gatherer) conflictingFixedIP(ctx context.Context, record *v1alpha1.FixedIP, a netip.Addr) (string, error) {
	records, err := index.FixedIPsWithIP(ctx, g.Cached, a)
	if err != nil {
		return "", err
	}
	holds := func(f *v1alpha1.FixedIP) bool {
		return slices.ContainsFunc(g.Ledger.Held(pool.OwnerKey(f.Namespace, f.Spec.PodName)), func(h ledger.NodeAddresses) bool { return slices.Contains(h.Addrs, a) })
	}
	for _, other := range records {
		if client.ObjectKeyFromObject(other) != client.ObjectKeyFromObject(record) && reclaim.Precedes(other, record, holds) {
			return client.ObjectKeyFromObject(other).String(), nil
		}
	}
	return "", nil
}

// otherFixedIP returns the value of reclaim.State.OtherFixedIP for the pod owner, "namespace/name". It reads FixedIPs from the
// cache.
func (g *Gatherer) otherFixedIP(ctx context.Context, owner string, s *reclaim.State) (string, error) {
	if s.Record != nil {
		return "", nil
	}
	for _, h := range s.Held {
		for _, a := range h.Addrs {
			records, err := index.FixedIPsWithIP(ctx, g.Cached, a)
			if err != nil {
				return "", err
			}
			for _, r := range records {
				if r.DeletionTimestamp == nil && pool.OwnerKey(r.Namespace, r.Spec.PodName) != owner {
					return client.ObjectKeyFromObject(r).String(), nil
				}
			}
		}
	}
	return "", nil
}
