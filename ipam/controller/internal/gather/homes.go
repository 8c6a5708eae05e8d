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
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// homes returns what the caches show at the homes of the addresses of a FixedIP. A write tests what was seen of the
// pool.
func (g *Gatherer) homes(ctx context.Context, record *v1alpha1.FixedIP) ([]reclaim.AddressHome, error) {
	if record == nil || record.DeletionTimestamp != nil {
		return nil, nil
	}
	owner := pool.OwnerKey(record.Namespace, record.Spec.PodName)
	var homes []reclaim.AddressHome
	for _, kept := range reservation.Of(record) {
		h := reclaim.AddressHome{Addr: kept.Addr}
		if node, ok := g.Ledger.Home(kept.Addr); ok {
			h.Node = node
			n, _ := g.Ledger.Node(node)
			if e, exists := n.Entries[kept.Addr]; exists {
				h.Entry = &e
			}
			if user, used := n.Used[kept.Addr]; used && user != owner {
				h.User = user
				if user == "" {
					h.User = "(unknown)"
				}
			}
			pods, err := index.PodsWithIP(ctx, g.Cached, kept.Addr)
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
		if h.Rival, err = g.rival(ctx, record, kept.Addr); err != nil {
			return nil, err
		}
		homes = append(homes, h)
	}
	return homes, nil
}

// rival returns another FixedIP that names the address and precedes the given one; empty: there is none.
func (g *Gatherer) rival(ctx context.Context, record *v1alpha1.FixedIP, a netip.Addr) (string, error) {
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

// reports adds what the agents report about the held addresses, and what of that blocks their release.
func (g *Gatherer) reports(owner string, s *reclaim.State) {
	for _, h := range s.Held {
		n, _ := g.Ledger.Node(h.Node)
		for _, a := range h.Addrs {
			user, used := n.Used[a]
			if used {
				s.Reported = append(s.Reported, a)
			}
			if n.Entries[a].Unacknowledged() {
				s.Unacknowledged = append(s.Unacknowledged, a)
			}
			switch {
			case used && user != "" && user != owner:
				s.Blockers = append(s.Blockers, reclaim.ReleaseBlocker{Addr: a, User: user, Why: fmt.Sprintf("IP %s is still in use by %s on node %s, whose agent assigned it before it knew the owner; release is blocked until that pod is deleted", a, pool.RedactOwner(user, owner), h.Node)})
			case n.Entries[a].Unacknowledged():
				s.Blockers = append(s.Blockers, reclaim.ReleaseBlocker{Addr: a, Why: fmt.Sprintf("the Cilium agent on node %s has not confirmed yet that no other pod has IP %s; release is blocked until it does, or the node is deleted", h.Node, a)})
			}
		}
	}
}
