package plan

import (
	"maps"
	"net/netip"
	"slices"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Kept is an address that a record keeps for an identity.
type Kept struct {
	Addr netip.Addr
	// Node is where the record says that the address is.
	Node string
	// Entry is the pool entry that gives it to the identity.
	Entry pool.Entry
}

// Keeps lists the addresses that a record keeps. Text that is no address keeps nothing.
func Keeps(r *v1alpha1.FixedIP) []Kept {
	var kept []Kept
	for _, ip := range r.Spec.IPs {
		if a, err := address.Parse(ip); err == nil {
			kept = append(kept, Kept{
				Addr:  a,
				Node:  r.Spec.NodeName,
				Entry: pool.Owned(r.Namespace, r.Spec.PodName, r.Spec.Owner.Kind, r.Spec.Owner.Name),
			})
		}
	}
	return kept
}

// Orphans are the subnets of the cluster pools that no node has and that hold kept addresses: their
// node is gone. Nothing decides over the addresses in them, so nothing else may be put there; a
// node that comes back under its name gets its subnet back.
//
// Key: the subnet, of the size that the pool cuts. Value: what is kept in it.
func Orphans(pools []address.ClusterPool, taken []netip.Prefix, kept []Kept) map[netip.Prefix][]Kept {
	orphans := map[netip.Prefix][]Kept{}
	for _, k := range kept {
		if slices.ContainsFunc(taken, func(t netip.Prefix) bool { return t.Contains(k.Addr) }) {
			continue
		}
		for _, p := range pools {
			if !p.CIDR.Contains(k.Addr) {
				continue
			}
			// The pool cuts subnets at multiples of their size, so this is the one it was.
			if subnet, err := k.Addr.Prefix(p.MaskSize); err == nil {
				orphans[subnet] = append(orphans[subnet], k)
			}
		}
	}
	return orphans
}

// Assignment is what a node without subnets is given.
type Assignment struct {
	Subnets []netip.Prefix
	// Entries are what is reserved in them from the first moment.
	Entries map[netip.Addr]pool.Entry
	// Exhausted are families that the cluster pools have no subnet left in.
	Exhausted []address.Family
}

// Assign chooses a subnet in each family that the cluster has pools for: the one that the node had
// before and in which addresses are kept for it, or else a new one that is neither taken nor an
// orphan of another node.
func Assign(node string, pools []address.ClusterPool, taken []netip.Prefix, kept []Kept) Assignment {
	orphans := Orphans(pools, taken, kept)
	given := Assignment{Entries: map[netip.Addr]pool.Entry{}}
	for _, f := range address.Families {
		if !slices.ContainsFunc(pools, func(p address.ClusterPool) bool { return p.Family() == f }) {
			continue
		}
		if own, ok := ownOrphan(node, f, orphans); ok {
			given.Subnets = append(given.Subnets, own)
			for _, k := range orphans[own] {
				given.Entries[k.Addr] = k.Entry
			}
			continue
		}
		subnet, ok := address.Carve(pools, f, slices.Concat(taken, slices.Collect(maps.Keys(orphans))))
		if !ok {
			given.Exhausted = append(given.Exhausted, f)
			continue
		}
		given.Subnets = append(given.Subnets, subnet)
	}
	return given
}

// ownOrphan is the lowest orphaned subnet of the family in which all that is kept was this node's.
func ownOrphan(node string, f address.Family, orphans map[netip.Prefix][]Kept) (netip.Prefix, bool) {
	subnets := slices.SortedFunc(maps.Keys(orphans), netip.Prefix.Compare)
	for _, s := range subnets {
		others := slices.ContainsFunc(orphans[s], func(k Kept) bool { return k.Node != node })
		if address.Of(s.Addr()) == f && !others {
			return s, true
		}
	}
	return netip.Prefix{}, false
}
