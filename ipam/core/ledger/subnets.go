// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"iter"
	"net/netip"
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/util/sets"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/request"
)

// Home returns the home node of the address: the node whose subnet contains it. ok is false if there is none, or if the
// subnets of that node overlap those of another node, because two pools might decide about the address then.
func (l *Ledger) Home(a netip.Addr) (name string, ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	name, ok = l.nodeOf(a)
	if n, known := l.node(name); ok && known && n.overlapsNode == "" {
		return name, true
	}
	return "", false
}

// Subnets returns the subnets of all nodes, sorted by address and then by prefix length. A subnet of several nodes is in the list
// once.
func (l *Ledger) Subnets() []netip.Prefix {
	l.mu.RLock()
	defer l.mu.RUnlock()
	all := make([]netip.Prefix, 0, l.ordered.Len())
	l.ordered.Ascend(func(s netip.Prefix) bool {
		all = append(all, s)
		return true
	})
	return all
}

// HomesOf returns all nodes whose subnets contain the address. There is more than one only if subnets overlap.
func (l *Ledger) HomesOf(a netip.Addr) []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.nodesOf(a)
}

func (l *Ledger) nodesOf(a netip.Addr) []string {
	var found []string
	for subnet := range l.subnetsOf(a) {
		found = append(found, l.subnets[subnet]...)
	}
	return found
}

// nodeOf returns a node whose subnet contains the address, whether or not subnets overlap. ok is false if there is none.
func (l *Ledger) nodeOf(a netip.Addr) (name string, ok bool) {
	for subnet := range l.subnetsOf(a) {
		return l.subnets[subnet][0], true
	}
	return "", false
}

// subnetsOf returns the subnets of nodes that contain the address. It looks up one prefix for each length, because there are
// few lengths and many subnets.
func (l *Ledger) subnetsOf(a netip.Addr) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for bits := range l.lengths {
			// Prefix fails if the length is too large for the family of the address.
			subnet, err := a.Prefix(bits)
			if _, exists := l.subnets[subnet]; err == nil && exists && !yield(subnet) {
				return
			}
		}
	}
}

// OverlapsWith returns another node whose subnets overlap those of the given node. found is false if there is none. On a node
// whose subnets overlap those of another node, a claim can contain only addresses that have another home (ClaimRequest.Carry).
func (l *Ledger) OverlapsWith(name string) (other string, found bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if n, ok := l.node(name); ok {
		other = n.overlapsNode
	}
	return other, other != ""
}

// replaceSubnets replaces the subnets of a node in the indexes, and updates overlapsNode of every node that the change may
// affect.
func (l *Ledger) replaceSubnets(name string, before, after []netip.Prefix) {
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
	for _, s := range slices.Concat(before, after) {
		for _, other := range l.subnetsOverlapping(s) {
			concerned.Insert(l.subnets[other]...)
		}
	}
	for c := range concerned {
		if n, ok := l.node(c); ok {
			n.overlapsNode = l.overlapping(c, n.pool.Subnets)
			n.count()
		}
	}
}

// overlapping returns the node other than name that has a subnet overlapping one of subnets; the first by name if there are
// several, empty if there is none.
func (l *Ledger) overlapping(name string, subnets []netip.Prefix) string {
	first := ""
	for _, s := range subnets {
		for _, other := range l.subnetsOverlapping(s) {
			for _, n := range l.subnets[other] {
				if n != name && (first == "" || n < first) {
					first = n
				}
			}
		}
	}
	return first
}

// subnetsOverlapping returns the subnets of nodes that contain a subnet or are part of it.
func (l *Ledger) subnetsOverlapping(subnet netip.Prefix) []netip.Prefix {
	found := slices.DeleteFunc(slices.Collect(l.subnetsOf(subnet.Addr())), func(s netip.Prefix) bool { return s.Bits() > subnet.Bits() })
	l.ordered.AscendGreaterOrEqual(subnet, func(s netip.Prefix) bool {
		if s.Bits() > subnet.Bits() && subnet.Contains(s.Addr()) {
			found = append(found, s)
		}
		return subnet.Contains(s.Addr())
	})
	return found
}

// CanAllocate reports whether the first claim of a pod without a reservation would succeed on the node now, in each of the
// families and with the requested addresses.
func (l *Ledger) CanAllocate(nodeName string, families []address.Family, requested request.Addresses) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	n, err := l.claimable(nodeName, false)
	if err != nil {
		return false
	}
	return !slices.ContainsFunc(families, func(f address.Family) bool {
		_, ok := n.pick(f, requested)
		return !ok
	})
}

// NodesServing returns the nodes whose subnets contain requested addresses of every family of the request, sorted. The
// addresses need not be free. Nodes whose subnets overlap those of another node are left out.
func (l *Ledger) NodesServing(requested request.Addresses) []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var serving sets.Set[string]
	for _, f := range requested.Families() {
		ofFamily := sets.New[string]()
		for _, r := range requested.Ranges(f) {
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

// within returns the subnets in which pods may have an address of the range. Such a subnet contains the first address of the
// range, or begins within the range.
func (l *Ledger) within(r netipx.IPRange) []netip.Prefix {
	found := slices.Collect(l.subnetsOf(r.From()))
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

// Offering returns the nodes whose pools have an allocatable entry for the address, sorted. More than one is a conflict,
// because each of their agents may give the address to a pod.
func (l *Ledger) Offering(a netip.Addr) []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.offering(a)
}

// OfferedTwice returns the addresses for which the pool of the node and another pool have allocatable entries, sorted. It is
// cheap unless the subnets of the node overlap those of another node.
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
	for a := range l.carried {
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

// HasCarriedAddresses reports whether a pool has an allocatable entry for an address that is in one of subnets and in no
// subnet of that pool's own node.
func (l *Ledger) HasCarriedAddresses(subnets []netip.Prefix) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for a := range l.carried {
		if slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Contains(a) }) {
			return true
		}
	}
	return false
}

func (l *Ledger) offering(a netip.Addr) []string {
	found := slices.Clone(l.carried[a])
	for _, name := range l.nodesOf(a) {
		if n, _ := l.node(name); !slices.Contains(found, name) && n.allocates(a) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found
}

// allocates reports whether the pool of the node has an allocatable entry for the address (pool.Entry.Allocatable).
func (n *node) allocates(a netip.Addr) bool {
	e, ok := n.pool.Entries[a]
	return ok && e.Allocatable()
}

// HasEntryOnOtherNode reports whether the pool of any node other than except has an entry of any kind for the address, or
// the agent of such a node reports the address as used.
func (l *Ledger) HasEntryOnOtherNode(a netip.Addr, except string) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for name, n := range l.nodes.all() {
		if _, entry := n.pool.Entries[a]; name != except && (entry || n.pool.InUse(a)) {
			return true
		}
	}
	return false
}
