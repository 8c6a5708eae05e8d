// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"net/netip"
	"slices"

	"fixedip.io/fixedip/ipam/core/pool"
)

// Offering is the nodes whose pools offer an address, sorted: more than one is a mistake, since each
// of their agents may give it to a pod.
func (l *Ledger) Offering(a netip.Addr) []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.offering(a)
}

// OfferedTwice are the addresses of a node's pool that another pool offers too, sorted. It costs
// nothing worth mentioning for a node whose subnets are its own and that has no address of another's.
func (l *Ledger) OfferedTwice(name string) []netip.Addr {
	l.mu.RLock()
	defer l.mu.RUnlock()
	n, ok := l.node(name)
	if !ok {
		return nil
	}
	var found []netip.Addr
	twice := func(a netip.Addr) {
		if e, ok := n.pool.Entries[a]; ok && e.Allocatable() && !slices.Contains(found, a) && len(l.offering(a)) > 1 {
			found = append(found, a)
		}
	}
	for a := range l.foreign {
		twice(a)
	}
	if n.overlapsNode != "" {
		for a := range n.pool.Entries {
			twice(a)
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return found
}

// HasForeignAddresses tells whether a pool offers an address in subnets that are not its node's.
func (l *Ledger) HasForeignAddresses(subnets []netip.Prefix) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for a := range l.foreign {
		if slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Contains(a) }) {
			return true
		}
	}
	return false
}

func (l *Ledger) offering(a netip.Addr) []string {
	found := slices.Clone(l.foreign[a])
	for subnet, names := range l.subnets {
		if !subnet.Contains(a) {
			continue
		}
		for _, name := range names {
			if n, ok := l.node(name); ok && !slices.Contains(found, name) {
				if e, ok := n.pool.Entries[a]; ok && e.Allocatable() {
					found = append(found, name)
				}
			}
		}
	}
	slices.Sort(found)
	return found
}

// HasEntryElsewhere tells whether the pool of any node but one has something of an address, a mark as well: an entry, or that its
// agent has given it out.
func (l *Ledger) HasEntryElsewhere(a netip.Addr, but string) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	found := false
	l.nodes.Range(func(name, value any) bool {
		p := value.(*node).pool
		_, entry := p.Entries[a]
		found = name != but && (entry || p.InUse(a))
		return !found
	})
	return found
}

// moveForeign brings the index of foreign addresses up to date.
func (l *Ledger) moveForeign(before, after pool.NodePool) {
	for a, e := range before.Entries {
		if e.Allocatable() && !before.Home(a) {
			names := slices.DeleteFunc(l.foreign[a], func(n string) bool { return n == before.Name })
			if len(names) == 0 {
				delete(l.foreign, a)
			} else {
				l.foreign[a] = names
			}
		}
	}
	for a, e := range after.Entries {
		if e.Allocatable() && !after.Home(a) {
			names := append(l.foreign[a], after.Name)
			slices.Sort(names)
			l.foreign[a] = names
		}
	}
}
