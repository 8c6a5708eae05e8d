// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

// AssumeUnreserved decides an address in each family for a pod that keeps none, on a strict node: as
// Assume does, but from the bottom of the subnets upwards, since the top is for those that stay.
func (l *Ledger) AssumeUnreserved(uid types.UID, owner, nodeName string, families []address.Family) (Claim, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c, ok := l.claims[uid]; ok && c.Node == nodeName && c.Owner == owner {
		return c, nil
	}
	l.forget(uid)
	n, err := l.claimable(nodeName)
	if err != nil {
		return Claim{}, err
	}
	held := l.owners.on(owner, nodeName)
	c := Claim{Owner: owner, Node: nodeName}
	for _, f := range families {
		if i := slices.IndexFunc(held, func(a netip.Addr) bool { return address.Of(a) == f }); i >= 0 {
			c.Addrs = append(c.Addrs, held[i])
			continue
		}
		a, ok := n.pool.Lowest(f, func(a netip.Addr) bool { return !n.idle(a) })
		if !ok {
			return Claim{}, fmt.Errorf("no free %s address is left in the subnets of node %s (%s), which is strict: its pods get addresses of their own only", f, nodeName, pool.JoinSubnets(n.pool.Subnets))
		}
		c.Addrs = append(c.Addrs, a)
	}
	l.take(n, uid, c)
	return c, nil
}

// RechooseUnreserved chooses the addresses of a claim anew where others have taken them, from a pool that is
// newer than what the ledger has seen. What is decided or kept for other pods is left to them. It
// makes the edits and the claim that they fulfil.
func (l *Ledger) RechooseUnreserved(n pool.NodePool, c Claim, entry pool.Entry) ([]pool.EntryChange, Claim, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	others := func(a netip.Addr) bool {
		if _, kept := l.kept.keeper(a); kept {
			return true
		}
		known, ok := l.node(n.Name)
		if !ok {
			return false
		}
		by, assumed := known.assumed[a]
		return assumed && l.claims[by].Owner != c.Owner
	}
	var edits []pool.EntryChange
	chosen := Claim{Owner: c.Owner, Node: c.Node}
	for _, a := range c.Addrs {
		f := address.Of(a)
		if held, ok := n.HasEntry(c.Owner, f); ok {
			chosen.Addrs = append(chosen.Addrs, held)
			continue
		}
		if !n.Unused(a) {
			var ok bool
			if a, ok = n.Lowest(f, others); !ok {
				return nil, c, fmt.Errorf("no free %s address is left in the subnets of node %s (%s): %w", f, n.Name, pool.JoinSubnets(n.Subnets), pool.ErrTaken)
			}
		}
		chosen.Addrs = append(chosen.Addrs, a)
		edits = append(edits, n.Set(a, entry))
	}
	return edits, chosen, nil
}
