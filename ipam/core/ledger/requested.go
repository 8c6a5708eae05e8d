// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"net/netip"
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/util/sets"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/request"
)

// CanAllocate reports whether the first claim of a pod without a reservation would succeed on the node now: in each of
// the families, with the addresses that are asked for.
func (l *Ledger) CanAllocate(nodeName string, families []address.Family, asked request.Addresses) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	n, err := l.claimable(nodeName, false)
	if err != nil {
		return false
	}
	return !slices.ContainsFunc(families, func(f address.Family) bool {
		_, ok := n.pick(f, asked)
		return !ok
	})
}

// NodesServing returns the nodes whose subnets contain addresses that are asked for, in each family in which some are;
// sorted. The addresses need not be free.
func (l *Ledger) NodesServing(asked request.Addresses) []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	families := asked.Families()
	// reached are the families in which a node has addresses that are asked for. Key: the node.
	reached := map[string]sets.Set[address.Family]{}
	for _, f := range families {
		for _, r := range asked.Ranges(f) {
			for _, subnet := range l.within(r) {
				for _, name := range l.subnets[subnet] {
					if reached[name] == nil {
						reached[name] = sets.New[address.Family]()
					}
					reached[name].Insert(f)
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
