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
	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// OrphanedSubnets contains the subnets of one node that is gone. This package calls a value of the type an orphan for short.
// No pool decides about the addresses in the subnets. One node inherits all subnets that are needed (Needed), since a pod
// has its addresses of both families on one node.
type OrphanedSubnets struct {
	// Node is the node that is gone; empty if the subnets never had a node. If Subnets is empty, Node is the node that the
	// FixedIP of the reserved address names, which may exist.
	Node string
	// Subnets are the NodeSubnets of Node, sorted by CIDR; empty for a reserved address that no NodeSubnet contains.
	Subnets []Subnet
	// Reserved are the addresses in the subnets that FixedIPs reserve; if Subnets is empty, the one reserved address.
	Reserved []reservation.Address
	// Since is the time at which the controller first observed that the node is gone; zero if it is not recorded yet.
	Since time.Time
	// Candidate is a node that has inherited some of the subnets and has to inherit the others, because the controller
	// stopped in between; empty if there is none.
	Candidate string
	// Successor is the node that the administrator named to inherit the subnets; empty if there is none.
	Successor string
	// Constraints are those of the first of Subnets that has some; nil if none has. A node that inherits the subnets
	// has to suit them, unless it was chosen or a waiting pod is nominated to it.
	Constraints *v1alpha1.NodeConstraints
	// Waiting are the pods with reserved addresses for which a scheduler found no node.
	Waiting []*corev1.Pod
	// Volumes are the volumes of Waiting that limit the choice of the node: see LimitingVolumes.
	Volumes []Volume
}

// nominated returns the number of waiting pods that are nominated to a node: the scheduler found that they can run there.
func (o OrphanedSubnets) nominated(node string) (count int) {
	for _, pod := range o.Waiting {
		if pod.Status.NominatedNodeName == node {
			count++
		}
	}
	return count
}

// Needed returns the subnets that node h inherits: those in which FixedIPs reserve addresses. If h has no subnet, it also
// inherits one of each other family, in place of a new one. The other subnets are released after the grace period. If nodes
// inherited them too, these subnets would pass from node to node, and each replacement of a node would use up one more
// subnet of the cluster pool.
func (o OrphanedSubnets) Needed(h CandidateNode) []Subnet {
	var needed, empty []Subnet
	for _, s := range o.Subnets {
		if len(ReservedIn([]netip.Prefix{s.CIDR}, o.Reserved)) > 0 {
			needed = append(needed, s)
		} else {
			empty = append(empty, s)
		}
	}
	for _, s := range empty {
		if h.Subnets == 0 && !slices.ContainsFunc(needed, func(n Subnet) bool { return n.Family() == s.Family() }) {
			needed = append(needed, s)
		}
	}
	return needed
}

// waited reports whether at least gracePeriod has passed since the node was first observed to be gone.
func (o OrphanedSubnets) waited(gracePeriod time.Duration, now time.Time) bool {
	return !o.Since.IsZero() && !now.Before(o.Since.Add(gracePeriod))
}

// Orphans returns the subnets whose nodes are gone, grouped by node, with the reserved addresses in them. The result
// includes the subnets that never had a node, grouped by the pod of their reserved addresses (the first pod by name, if there
// are several); a subnet without reserved addresses forms a group of its own. So does a reserved address that no NodeSubnet
// contains. The result is sorted by node, and then by address. gone reports whether a node is gone.
func Orphans(subnets []Subnet, reserved []reservation.Address, gone func(node string) bool) []OrphanedSubnets {
	// inside contains the reserved addresses of each subnet. Key: the CIDR; the zero Prefix for addresses in no subnet.
	inside := map[netip.Prefix][]reservation.Address{}
	if len(reserved) > 0 {
		subnetOf := containing(subnets)
		for _, k := range reserved {
			in := subnetOf(k.Addr)
			inside[in] = append(inside[in], k)
		}
	}
	// concerned contains the subnets that are orphaned or were inherited, in most clusters few of all.
	var concerned []Subnet
	for _, s := range subnets {
		if s.Previous != "" || s.Node == "" || gone(s.Node) {
			concerned = append(concerned, s)
		}
	}
	slices.SortFunc(concerned, func(x, y Subnet) int { return x.CIDR.Compare(y.CIDR) })
	// owner groups subnets that never had a node. It is a pod, so that both families of the pod stay together, or the CIDR of a
	// subnet without reserved addresses.
	type key struct{ node, owner string }
	groups := map[key]*OrphanedSubnets{}
	group := func(k key) *OrphanedSubnets {
		if groups[k] == nil {
			groups[k] = &OrphanedSubnets{Node: k.node}
		}
		return groups[k]
	}
	for _, s := range concerned {
		if s.Node != "" && !gone(s.Node) {
			continue
		}
		there := inside[s.CIDR]
		slices.SortFunc(there, func(x, y reservation.Address) int { return x.Addr.Compare(y.Addr) })
		k := key{node: s.Node}
		if s.Node == "" && len(there) > 0 {
			k.owner = slices.MinFunc(there, func(x, y reservation.Address) int { return cmp.Compare(x.Entry.Owner(), y.Entry.Owner()) }).Entry.Owner()
		} else if s.Node == "" {
			k.owner = s.CIDR.String()
		}
		o := group(k)
		o.Subnets, o.Reserved = append(o.Subnets, s), append(o.Reserved, there...)
		if !s.OrphanedSince.IsZero() && (o.Since.IsZero() || s.OrphanedSince.Before(o.Since)) {
			o.Since = s.OrphanedSince
		}
		o.Successor = cmp.Or(o.Successor, s.Successor)
		o.Constraints = cmp.Or(o.Constraints, s.Constraints)
	}
	for _, s := range concerned {
		if o := groups[key{node: s.Previous}]; s.Previous != "" && o != nil && !s.OrphanedSince.IsZero() && !gone(s.Node) {
			o.Candidate = s.Node
		}
	}
	var orphans []OrphanedSubnets
	for _, o := range groups {
		orphans = append(orphans, *o)
	}
	for _, k := range inside[netip.Prefix{}] {
		orphans = append(orphans, OrphanedSubnets{Node: k.Node, Reserved: []reservation.Address{k}})
	}
	slices.SortFunc(orphans, func(x, y OrphanedSubnets) int {
		return cmp.Or(cmp.Compare(x.Node, y.Node), x.first().Compare(y.first()))
	})
	return orphans
}

// first returns the lowest address of an orphan. Orphans with the same Node are sorted by it.
func (o OrphanedSubnets) first() netip.Addr {
	if len(o.Subnets) > 0 {
		return o.Subnets[0].CIDR.Addr()
	}
	return o.Reserved[0].Addr
}

// containing returns a function that returns the smallest subnet that contains an address; the zero Prefix if there is none.
// It looks up the prefix of the address at each length that a subnet has, because there may be very many subnets and
// addresses.
func containing(subnets []Subnet) func(netip.Addr) netip.Prefix {
	known, lengths := map[netip.Prefix]bool{}, map[int]bool{}
	for _, s := range subnets {
		known[s.CIDR], lengths[s.CIDR.Bits()] = true, true
	}
	longestFirst := slices.SortedFunc(maps.Keys(lengths), func(x, y int) int { return y - x })
	return func(a netip.Addr) netip.Prefix {
		for _, bits := range longestFirst {
			// Prefix returns an error for an IPv4 address if bits is greater than 32, as for most IPv6 subnets.
			if p, err := a.Prefix(bits); err == nil && known[p] {
				return p
			}
		}
		return netip.Prefix{}
	}
}

// Missing returns the subnets, within the cluster pools, that reserved addresses need and that no NodeSubnet or node has: a
// backup was restored, or a user reserved an address in a subnet that is not in use. taken contains the subnets of
// NodeSubnets and nodes. The missing subnets have to be claimed, for the node that the FixedIPs name, before any new subnet.
// has reports whether a node has subnets: such a node did not lose the missing ones.
func Missing(pools []address.ClusterPool, taken *netipx.IPSet, reserved []reservation.Address, has func(node string) bool) []Subnet {
	inside := map[netip.Prefix][]reservation.Address{}
	for _, k := range reserved {
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

// Outside reports whether a subnet is in no cluster pool.
func Outside(pools []address.ClusterPool, cidr netip.Prefix) bool {
	return !slices.ContainsFunc(pools, func(p address.ClusterPool) bool {
		return p.CIDR.Bits() <= cidr.Bits() && p.CIDR.Contains(cidr.Addr())
	})
}

// lostNode returns the node without subnets that most FixedIPs name; empty if they name no such node. The FixedIP of an
// address that has moved names the node to which the address moved, which usually has subnets.
func lostNode(reserved []reservation.Address, has func(string) bool) string {
	named := map[string]int{}
	for _, k := range reserved {
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

// ReservedIn returns the reserved addresses that are in one of the subnets.
func ReservedIn(subnets []netip.Prefix, reserved []reservation.Address) []reservation.Address {
	set := address.Union(subnets)
	return slices.DeleteFunc(slices.Clone(reserved), func(k reservation.Address) bool { return !set.Contains(k.Addr) })
}
