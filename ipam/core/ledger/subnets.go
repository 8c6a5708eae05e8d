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

// Home returns the node whose subnet contains the address. ok is false if that subnet overlaps one of another node: two
// pools would decide over the address.
func (l *Ledger) Home(a netip.Addr) (name string, ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	name, ok = l.nodeOf(a)
	if n, known := l.node(name); ok && known && n.overlapsNode == "" {
		return name, true
	}
	return "", false
}

// HomesOf returns all nodes whose subnets contain the address: more than one if their subnets overlap.
func (l *Ledger) HomesOf(a netip.Addr) []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.nodesOf(a)
}

func (l *Ledger) nodesOf(a netip.Addr) []string {
	var found []string
	for _, subnet := range l.subnetsOf(a) {
		found = append(found, l.subnets[subnet]...)
	}
	return found
}

// nodeOf returns the first node whose subnet contains the address, disputed or not.
func (l *Ledger) nodeOf(a netip.Addr) (name string, ok bool) {
	if homes := l.nodesOf(a); len(homes) > 0 {
		return homes[0], true
	}
	return "", false
}

// subnetsOf returns the subnets that contain the address. It tries each length: there are few lengths and many subnets.
func (l *Ledger) subnetsOf(a netip.Addr) []netip.Prefix {
	var found []netip.Prefix
	for bits := range l.lengths {
		// The error says that addresses of the family are shorter than that.
		subnet, err := a.Prefix(bits)
		if _, exists := l.subnets[subnet]; err == nil && exists {
			found = append(found, subnet)
		}
	}
	return found
}

// OverlapsWith returns another node whose subnets overlap those of the given one. No address of a disputed subnet is
// claimed.
func (l *Ledger) OverlapsWith(name string) (other string, disputed bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if n, ok := l.node(name); ok {
		other = n.overlapsNode
	}
	return other, other != ""
}

// moveSubnets updates the index of subnets, and the overlap of every node that the change may concern.
func (l *Ledger) moveSubnets(name string, before, after []netip.Prefix) {
	if slices.Equal(before, after) {
		return
	}
	for _, s := range before {
		if l.subnets.remove(s, name); len(l.subnets[s]) == 0 {
			l.ordered.Delete(s)
		}
	}
	for _, s := range after {
		l.subnets.add(s, name)
		l.ordered.ReplaceOrInsert(s)
		l.lengths[s.Bits()] = true
	}
	concerned := sets.New(name)
	for s, names := range l.subnets {
		if overlaps(s, before) || overlaps(s, after) {
			concerned.Insert(names...)
		}
	}
	for c := range concerned {
		if n, ok := l.node(c); ok {
			n.overlapsNode = l.overlapping(c, n.pool.Subnets)
			n.count()
		}
	}
}

// overlapping returns the first other node, by name, with a subnet that overlaps the given ones; empty: none.
func (l *Ledger) overlapping(name string, subnets []netip.Prefix) string {
	first := ""
	for s, names := range l.subnets {
		if !overlaps(s, subnets) {
			continue
		}
		for _, n := range names {
			if n != name && (first == "" || n < first) {
				first = n
			}
		}
	}
	return first
}

func overlaps(s netip.Prefix, with []netip.Prefix) bool {
	return slices.ContainsFunc(with, s.Overlaps)
}

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
	var serving sets.Set[string]
	for _, f := range asked.Families() {
		ofFamily := sets.New[string]()
		for _, r := range asked.Ranges(f) {
			for _, subnet := range l.within(r) {
				ofFamily.Insert(l.subnets[subnet]...)
			}
		}
		if serving == nil {
			serving = ofFamily
		}
		serving = serving.Intersection(ofFamily)
	}
	return slices.DeleteFunc(sets.List(serving), func(name string) bool {
		n, ok := l.node(name)
		return !ok || n.overlapsNode != ""
	})
}

// within returns the subnets that have an address of a range: those with its first address, and those that begin in it.
func (l *Ledger) within(r netipx.IPRange) []netip.Prefix {
	found := l.subnetsOf(r.From())
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
	for _, name := range l.nodesOf(a) {
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
