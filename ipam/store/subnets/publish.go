// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnets

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"

	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// reserveTries bounds how often the pools are read for one publication: each time after marks of
// moves under way were taken away. Without a home nobody announces a new one, so two are enough.
const reserveTries = 4

// publish writes the subnets into the CiliumNode, with all that is reserved in them. had tells that one of them
// had a node while we looked.
func (a *Allocator) publish(ctx context.Context, n pool.Node, given plan.Assignment, had bool, first func(pool.Node) []pool.Edit) error {
	entries, err := a.reserve(ctx, n, given, had)
	if err != nil {
		return err
	}
	var edits []pool.Edit
	for addr, e := range entries {
		edits = append(edits, n.Set(addr, e))
	}
	slices.SortFunc(edits, func(x, y pool.Edit) int { return x.Addr.Compare(y.Addr) })
	if first != nil {
		fresh := n.With(edits)
		fresh.Subnets = slices.Concat(n.Subnets, given.Subnets)
		edits = append(edits, first(fresh)...)
	}
	_, err = a.Pools.Publish(ctx, n, given.Subnets, edits)
	return err
}

// reserve makes the entries of all that is kept in the subnets. Addresses may live in the pools of
// other nodes, or be about to move there, so all pools are read at the API server: after the node was
// seen gone that decided over them, and with the ticket in hand, so that nobody decides but us.
//
// An address may live elsewhere that no FixedIP keeps: its pod has not run yet. A pool that offers it tells
// of it, or is behind where the subnet had a node while we looked. Reading all pools for each node of a cluster that comes up
// would be quadratic.
func (a *Allocator) reserve(ctx context.Context, n pool.Node, given plan.Assignment, had bool) (map[netip.Addr]pool.Entry, error) {
	if len(given.Kept) == 0 && !had && !a.Ledger.StraysIn(given.Subnets) {
		return nil, nil
	}
	for range reserveTries {
		var list ciliumv2.CiliumNodeList
		if err := a.API.List(ctx, &list); err != nil {
			return nil, fmt.Errorf("list CiliumNodes: %w", err)
		}
		var others []pool.Node
		for i := range list.Items {
			others = append(others, ciliumpool.FromCiliumNode(&list.Items[i]))
		}
		entries, announced := plan.Reserve(n, given.Subnets, given.Kept, others)
		if len(announced) == 0 {
			return entries, nil
		}
		for _, m := range announced {
			if err := a.callOff(ctx, m); err != nil {
				return nil, err
			}
		}
	}
	return nil, fmt.Errorf("addresses in %v go on being announced elsewhere: %w", given.Subnets, ciliumpool.ErrChanged)
}

// callOff takes away the mark of an address that was about to move. Where the mark is gone the
// address may have arrived, which the next list will show.
func (a *Allocator) callOff(ctx context.Context, m plan.Announced) error {
	at := a.Clock.Now()
	err := a.Writer.Write(ctx, ciliumpool.Request{Node: m.Node, Live: true, Decide: func(n pool.Node) ([]pool.Edit, error) {
		if n.Entries[m.Addr] != m.Entry {
			return nil, nil
		}
		return []pool.Edit{n.Set(m.Addr, pool.CooldownEntry("", at))}, nil
	}})
	if err != nil && !errors.Is(err, ciliumpool.ErrGone) {
		return fmt.Errorf("call off the move of %s to node %s: %w", m.Addr, m.Node, err)
	}
	return nil
}
