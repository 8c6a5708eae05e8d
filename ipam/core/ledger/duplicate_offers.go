// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"net/netip"
	"slices"
)

// Offering returns the nodes whose pools offer an address, sorted. More than one is a mistake, because each of their
// agents may give it to a pod.
func (l *Ledger) Offering(a netip.Addr) []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.offering(a)
}

// OfferedTwice returns the addresses of a node's pool that another pool offers too, sorted. It is cheap for a node whose
// subnets overlap no others.
func (l *Ledger) OfferedTwice(name string) []netip.Addr {
	l.mu.RLock()
	defer l.mu.RUnlock()
	n, ok := l.node(name)
	if !ok {
		return nil
	}
	var found []netip.Addr
	twice := func(a netip.Addr) {
		if n.allocates(a) && !slices.Contains(found, a) && len(l.offering(a)) > 1 {
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

// HasForeignAddresses reports whether a pool offers an address of the subnets that is in no subnet of its node.
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
	for _, name := range l.homes(a) {
		if n, _ := l.node(name); !slices.Contains(found, name) && n.allocates(a) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found
}

// allocates reports whether the agent of the node may give the address to a pod, or may have done so.
func (n *node) allocates(a netip.Addr) bool {
	e, ok := n.pool.Entries[a]
	return ok && e.Allocatable()
}

// HasEntryElsewhere reports whether the pool of any node except one has an entry for an address, markers included, or
// its agent reports the address as in use.
func (l *Ledger) HasEntryElsewhere(a netip.Addr, except string) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	found := false
	l.nodes.Range(func(name, value any) bool {
		p := value.(*node).pool
		_, entry := p.Entries[a]
		found = name != except && (entry || p.InUse(a))
		return !found
	})
	return found
}
