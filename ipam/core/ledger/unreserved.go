// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"net/netip"
	"slices"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

// chooseUnreserved returns an address in each family for a pod without a fixed address: the one that its entries on the
// node give it, one of prefer if that is unused, or else the lowest unused one that is not taken.
func chooseUnreserved(n pool.NodePool, owner string, families []address.Family, prefer []netip.Addr, taken func(netip.Addr) bool) ([]netip.Addr, error) {
	var chosen []netip.Addr
	for _, f := range families {
		a, ok := n.HasEntry(owner, f)
		if !ok {
			i := slices.IndexFunc(prefer, func(a netip.Addr) bool { return address.Of(a) == f && n.Unused(a) })
			if ok = i >= 0; ok {
				a = prefer[i]
			}
		}
		if !ok {
			a, ok = n.Lowest(f, taken)
		}
		if !ok {
			return nil, fmt.Errorf("no free %s address is left in the subnets of node %s (%s), which is strict: each of its pods needs an entry: %w", f, n.Name, pool.JoinSubnets(n.Subnets), pool.ErrTaken)
		}
		chosen = append(chosen, a)
	}
	return chosen, nil
}

// ClaimUnreserved returns the edits that write the claim of a pod without a fixed address into a pool that may be newer
// than the ledger. An address that another pod has taken meanwhile is replaced by one that is neither claimed nor reserved
// for another pod.
func (l *Ledger) ClaimUnreserved(n pool.NodePool, c Claim, entry pool.Entry) ([]pool.EntryChange, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	others := func(a netip.Addr) bool {
		if _, reserved := l.reserved.first(a); reserved {
			return true
		}
		known, ok := l.node(n.Name)
		if !ok {
			return false
		}
		by, assumed := known.assumed[a]
		return assumed && l.claims[by].Owner != c.Owner
	}
	var families []address.Family
	for _, a := range c.Addrs {
		families = append(families, address.Of(a))
	}
	chosen, err := chooseUnreserved(n, c.Owner, families, c.Addrs, others)
	var edits []pool.EntryChange
	for _, a := range chosen {
		if !n.Entries[a].OwnedBy(c.Owner) {
			edits = append(edits, n.Set(a, entry))
		}
	}
	return edits, err
}
