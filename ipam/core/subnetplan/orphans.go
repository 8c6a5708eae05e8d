// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnetplan

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/plan"
)

// Orphan is what a node had that is gone. No pool decides over the addresses there. All of it goes to one heir, since
// pods have addresses of both families on one node.
type Orphan struct {
	// Node is the node that is gone; empty: the subnets never had a node.
	Node string
	// Subnets are its NodeSubnets, by CIDR. There are none for addresses that are in no cluster pool.
	Subnets []Subnet
	// Kept are the addresses that FixedIPs reserve there.
	Kept []plan.ReservedAddress
	// Since is when the node was first observed to be gone; zero: that is not recorded yet.
	Since time.Time
	// Heir is a node that was given some of the node's subnets and has to be given the rest: the controller stopped
	// in between.
	Heir string
	// Successor is the heir that a person chose.
	Successor string
	// Constraints are what the node required of its pods; nil: not recorded.
	Constraints *v1alpha1.NodeConstraints
}

// waited reports whether an orphan has been without a node for so long.
func (o Orphan) waited(hold time.Duration, now time.Time) bool {
	return !o.Since.IsZero() && !now.Before(o.Since.Add(hold))
}

// Orphans groups the subnets whose nodes are gone, and the reserved addresses that no NodeSubnet contains. kept are
// the reserved addresses that are in no node's pool. The result is sorted by node.
func Orphans(subnets []Subnet, kept []plan.ReservedAddress, gone func(node string) bool) []Orphan {
	// inside are the addresses kept in each subnet. Key: its CIDR; the zero Prefix for addresses in none.
	inside := map[netip.Prefix][]plan.ReservedAddress{}
	subnets = slices.SortedFunc(slices.Values(subnets), func(x, y Subnet) int { return x.CIDR.Compare(y.CIDR) })
	subnetOf := containing(subnets)
	for _, k := range kept {
		in := subnetOf(k.Addr)
		inside[in] = append(inside[in], k)
	}
	// owner keeps the families of one pod together in subnets that never had a node.
	type key struct{ node, owner string }
	groups := map[key]*Orphan{}
	group := func(k key) *Orphan {
		if groups[k] == nil {
			groups[k] = &Orphan{Node: k.node}
		}
		return groups[k]
	}
	for _, s := range subnets {
		if s.Node != "" && !gone(s.Node) {
			continue
		}
		there := inside[s.CIDR]
		slices.SortFunc(there, func(x, y plan.ReservedAddress) int { return x.Addr.Compare(y.Addr) })
		k := key{node: s.Node}
		if s.Node == "" && len(there) > 0 {
			k.owner = slices.MinFunc(there, func(x, y plan.ReservedAddress) int { return cmp.Compare(x.Entry.Owner, y.Entry.Owner) }).Entry.Owner
		} else if s.Node == "" {
			k.owner = s.CIDR.String()
		}
		o := group(k)
		o.Subnets, o.Kept = append(o.Subnets, s), append(o.Kept, there...)
		if !s.OrphanedSince.IsZero() && (o.Since.IsZero() || s.OrphanedSince.Before(o.Since)) {
			o.Since = s.OrphanedSince
		}
		o.Successor = cmp.Or(o.Successor, s.Successor)
		o.Constraints = cmp.Or(o.Constraints, s.Constraints)
	}
	for _, s := range subnets {
		if o := groups[key{node: s.Previous}]; s.Previous != "" && o != nil && !s.OrphanedSince.IsZero() && !gone(s.Node) {
			o.Heir = s.Node
		}
	}
	var orphans []Orphan
	for _, o := range groups {
		orphans = append(orphans, *o)
	}
	for _, k := range inside[netip.Prefix{}] {
		orphans = append(orphans, Orphan{Node: k.Node, Kept: []plan.ReservedAddress{k}})
	}
	slices.SortFunc(orphans, func(x, y Orphan) int { return cmp.Or(cmp.Compare(x.Node, y.Node), x.first().Compare(y.first())) })
	return orphans
}

// first is the lowest address of an orphan, to sort by.
func (o Orphan) first() netip.Addr {
	if len(o.Subnets) > 0 {
		return o.Subnets[0].CIDR.Addr()
	}
	return o.Kept[0].Addr
}

// containing returns a function that returns the smallest subnet that contains an address; the zero Prefix: none. It
// looks up the address at each length that a subnet has, because subnets and addresses may both be very many.
func containing(subnets []Subnet) func(netip.Addr) netip.Prefix {
	known, lengths := map[netip.Prefix]bool{}, map[int]bool{}
	for _, s := range subnets {
		known[s.CIDR], lengths[s.CIDR.Bits()] = true, true
	}
	longestFirst := slices.SortedFunc(maps.Keys(lengths), func(x, y int) int { return y - x })
	return func(a netip.Addr) netip.Prefix {
		for _, bits := range longestFirst {
			// An address of the other family may be too short, and has no Prefix then.
			if p, err := a.Prefix(bits); err == nil && known[p] {
				return p
			}
		}
		return netip.Prefix{}
	}
}

// Missing returns the subnets of reserved addresses that are in a cluster pool and that neither a NodeSubnet nor a
// node has: a backup was restored, or a person reserved an address in a subnet that is not in use. They have to be
// claimed, for the node that the FixedIPs name, before a new subnet is. has reports whether a node has subnets: then
// it is not the node that lost these.
func Missing(pools []address.ClusterPool, taken *netipx.IPSet, kept []plan.ReservedAddress, has func(node string) bool) []Subnet {
	inside := map[netip.Prefix][]plan.ReservedAddress{}
	for _, k := range kept {
		if cidr, ok := address.SubnetOf(pools, k.Addr, taken); ok {
			inside[cidr] = append(inside[cidr], k)
		}
	}
	var missing []Subnet
	for _, cidr := range slices.SortedFunc(maps.Keys(inside), netip.Prefix.Compare) {
		missing = append(missing, Subnet{CIDR: cidr, Node: lostNode(inside[cidr], has)})
	}
	return missing
}

// lostNode returns the node without subnets that most FixedIPs name. The FixedIP of an address that lives on another
// node than its home names that node, which has subnets as a rule.
func lostNode(kept []plan.ReservedAddress, has func(string) bool) string {
	named := map[string]int{}
	for _, k := range kept {
		if k.Node != "" && !has(k.Node) {
			named[k.Node]++
		}
	}
	most := ""
	for _, node := range slices.Sorted(maps.Keys(named)) {
		if named[node] > named[most] {
			most = node
		}
	}
	return most
}
