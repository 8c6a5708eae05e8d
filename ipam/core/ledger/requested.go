// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"net/netip"
	"slices"

	"go4.org/netipx"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/request"
)

// CanAllocate tells whether the first claim of a pod for which nothing is kept would succeed on the node
// now, of what is asked for and in each of the families.
func (l *Ledger) CanAllocate(nodeName string, families []address.Family, asked request.Addresses) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	n, err := l.claimable(nodeName)
	if err != nil {
		return false
	}
	return !slices.ContainsFunc(families, func(f address.Family) bool {
		_, ok := n.pickFrom(f, asked)
		return !ok
	})
}

// NodesServing are the nodes whose subnets have addresses that are asked for, in each family in which
// some are; sorted. Whether one is free there is not looked at.
func (l *Ledger) NodesServing(asked request.Addresses) []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	families := asked.Families()
	// Key: a node. Value: the families in which it has addresses that are asked for.
	reached := map[string]map[address.Family]bool{}
	for _, f := range families {
		for _, r := range asked.Ranges(f) {
			for _, subnet := range l.within(r) {
				for _, name := range l.subnets[subnet] {
					if reached[name] == nil {
						reached[name] = map[address.Family]bool{}
					}
					reached[name][f] = true
				}
			}
		}
	}
	var out []string
	for name, has := range reached {
		if n, ok := l.node(name); ok && n.overlapsNode == "" && len(has) == len(families) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// within returns the subnets that have an address of a range: those with its first address, and those that begin in it.
func (l *Ledger) within(r netipx.IPRange) []netip.Prefix {
	found := l.around(r.From())
	l.ordered.AscendGreaterOrEqual(netip.PrefixFrom(r.From(), 0), func(s netip.Prefix) bool {
		if r.To().Less(s.Addr()) || s.Addr().BitLen() != r.From().BitLen() {
			return false
		}
		if s.Addr() != r.From() {
			found = append(found, s)
		}
		return true
	})
	return slices.DeleteFunc(found, func(s netip.Prefix) bool {
		first, last := address.Ends(s)
		return r.To().Less(first) || last.Less(r.From())
	})
}

// pickFrom takes the next address of a family in the order of pick, from among those that are
// asked for. The walk ends at the first free address, so that its length is bounded by how many
// addresses the node has in use, not by how many are asked for.
func (n *node) pickFrom(f address.Family, asked request.Addresses) (netip.Addr, bool) {
	if len(asked.Ranges(f)) == 0 {
		return n.pick(f)
	}
	if n.room(f) == 0 {
		return netip.Addr{}, false
	}
	var parts []netipx.IPRange
	for _, s := range n.pool.Subnets {
		if address.Of(s.Addr()) == f {
			parts = append(parts, asked.Within(s)...)
		}
	}
	slices.SortFunc(parts, func(x, y netipx.IPRange) int { return y.To().Compare(x.To()) })
	for _, r := range parts {
		for a := r.To(); ; a = a.Prev() {
			if n.free(a) {
				return a, true
			}
			if a == r.From() {
				break
			}
		}
	}
	return netip.Addr{}, false
}
