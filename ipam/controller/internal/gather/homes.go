// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package gather

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
	corev1 "k8s.io/api/core/v1"
)

// homes returns what the caches show at the homes of the addresses of a FixedIP. A write tests what was seen of the
// pool.
func (g *Gatherer) homes(ctx context.Context, record *v1alpha1.FixedIP) ([]reclaim.AddressHome, error) {
	if record == nil || record.DeletionTimestamp != nil {
		return nil, nil
	}
	owner := pool.OwnerKey(record.Namespace, record.Spec.PodName)
	var homes []reclaim.AddressHome
	for _, kept := range plan.Keeps(record) {
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
		return slices.ContainsFunc(g.Ledger.Held(pool.OwnerKey(f.Namespace, f.Spec.PodName)), func(h ledger.Holding) bool { return slices.Contains(h.Addrs, a) })
	}
	for _, other := range records {
		if client.ObjectKeyFromObject(other) != client.ObjectKeyFromObject(record) && reclaim.Precedes(other, record, holds) {
			return client.ObjectKeyFromObject(other).String(), nil
		}
	}
	return "", nil
}

// blockers returns which held addresses must not be released yet (see reclaim.ReleaseBlocker).
//
// An address whose dynamic entry became an owned one may be assigned to another pod by an agent that has not seen
// that, once the first pod is gone. The agent has seen it after some time, and reports within the same time to which
// pods it assigned the address meanwhile; both start again when a node is back. An entry that does not say since when
// it is owned never was dynamic, or a user wrote it: then the agent's report is all that is known.
func (g *Gatherer) blockers(ctx context.Context, owner string, held []ledger.Holding) ([]reclaim.ReleaseBlocker, error) {
	var found []reclaim.ReleaseBlocker
	for _, h := range held {
		n, ok := g.Ledger.Node(h.Node)
		if !ok {
			continue
		}
		for _, a := range h.Addrs {
			if user := n.Used[a]; user != "" && user != owner {
				found = append(found, reclaim.ReleaseBlocker{Addr: a, User: user, Why: fmt.Sprintf("IP %s is still in use by %s on node %s, whose agent assigned it before it knew the owner; release is blocked until that pod is deleted", a, pool.RedactOwner(user, owner), h.Node)})
				continue
			}
			why, err := g.unacknowledged(ctx, h.Node, a)
			if err != nil {
				return nil, err
			}
			if why != "" {
				found = append(found, reclaim.ReleaseBlocker{Addr: a, Why: why})
			}
		}
	}
	return found, nil
}

// unacknowledged returns why the agent of a node may still assign an address that is reserved for a pod; empty: it
// does not.
func (g *Gatherer) unacknowledged(ctx context.Context, name string, a netip.Addr) (why string, err error) {
	since, unacknowledged := g.Ledger.Unheard(name, []netip.Addr{a})
	if !unacknowledged || since.IsZero() {
		return "", nil
	}
	node, err := get[corev1.Node](ctx, g.Cached, types.NamespacedName{Name: name})
	if node == nil || err != nil {
		return "", err
	}
	ready, ok := nodeutil.ReadySince(node)
	if !ok {
		return fmt.Sprintf("node %s is not ready, and its agent may not know the owner of IP %s; release is blocked until the node is ready or deleted", name, a), nil
	}
	if ready.After(since) {
		since = ready
	}
	at := since.Add(2 * g.AgentSilence)
	if !g.Clock.Now().Before(at) {
		return "", nil
	}
	return fmt.Sprintf("waiting for the Cilium agent on node %s to acknowledge the owner of IP %s (at most until %s)", name, a, at.UTC().Format(time.RFC3339)), nil
}
