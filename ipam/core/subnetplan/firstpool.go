// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnetplan

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// MoveTarget is a move-target entry in the pool of a node: the address was about to move there.
type MoveTarget struct {
	Node  string
	Addr  netip.Addr
	Entry pool.Entry
}

// Reserve returns the entries that the pool n of a node must contain as soon as the node has the subnets: those for reserved
// addresses, and those for addresses that another pool carries. Key: the address. reserved are the addresses that FixedIPs
// reserve. others are the pools of all nodes, read after the former pool of the subnets was deleted, so that no pool decides
// about the addresses now; the pool of the node itself is ignored.
//
// If another pool has an allocatable entry for an address, the address gets a moved entry that names that node, whichever pod
// the address is reserved for, if any. A reserved address with which a pod runs on another node gets a moved entry too: the
// CiliumNode of that node may have been lost. runningOn contains these nodes. Key: the address.
//
// A move-target entry in another pool means that the address was about to move there when its home was lost. The address must
// not arrive there after its home has an entry for it again. announced contains these entries. The caller must remove them
// first and then read the pools again, since an address may have arrived in the meantime.
//
// If n is the only pool with an allocatable entry for an address in the subnets, entries does not contain the address:
// the entry in n remains, and the address is at home from then on.
func Reserve(n pool.NodePool, subnets []netip.Prefix, reserved []reservation.Address, runningOn map[netip.Addr]string, others []pool.NodePool) (entries map[netip.Addr]pool.Entry, announced []MoveTarget) {
	inside := address.Union(subnets)
	entries = map[netip.Addr]pool.Entry{}
	for _, k := range reserved {
		if inside.Contains(k.Addr) {
			entries[k.Addr] = k.Entry
			if node, ok := runningOn[k.Addr]; ok {
				entries[k.Addr] = pool.MovedEntry(node, k.Entry.Owner())
			}
		}
	}
	for a, e := range n.Entries {
		if inside.Contains(a) && e.Allocatable() {
			delete(entries, a)
		}
	}
	for _, o := range others {
		for a, e := range o.Entries {
			if o.Name == n.Name || !inside.Contains(a) {
				continue
			}
			if e.Kind == pool.MoveTarget {
				announced = append(announced, MoveTarget{Node: o.Name, Addr: a, Entry: e})
			} else if e.Allocatable() {
				entries[a] = pool.MovedEntry(o.Name, e.NamesPod())
			}
		}
	}
	slices.SortFunc(announced, func(x, y MoveTarget) int {
		return cmp.Or(cmp.Compare(x.Node, y.Node), x.Addr.Compare(y.Addr))
	})
	return entries, announced
}

// Running is a pod that runs on a node, or the node itself, with its addresses.
type Running struct {
	// Owner is the owner text of its pool entries: the pod, or the name under which the agent takes an address for the node.
	Owner string
	Addrs []netip.Addr
	// Fixed is the entry that gives a fixed address to the pod; nil if the pod has no fixed address.
	Fixed *pool.Entry
	// Reserved are the addresses that a FixedIP reserves for the pod. Another address of the pod is fixed only if Reserved has
	// none of its family: the claim for that family was lost before the FixedIP recorded it.
	Reserved []netip.Addr
	// IPv4Only is true if an IPv6 address of the pod is fixed only when a FixedIP reserves it.
	IPv4Only bool
	// Dedicated is the entry for addresses that are not fixed, if the node is strict.
	Dedicated pool.Entry
}

// unrecorded reports whether an address that the pod runs with is fixed although no FixedIP reserves it.
func (r Running) unrecorded(a netip.Addr) bool {
	sameFamily := func(b netip.Addr) bool { return address.Of(a) == address.Of(b) }
	return r.Fixed != nil && !slices.ContainsFunc(r.Reserved, sameFamily) && (address.Of(a) == address.IPv4 || !r.IPv4Only)
}

// HasAddressesElsewhere reports whether a pod with a fixed address runs with an address that is in no subnet of the node.
// KeepRunning then needs the pools of the other nodes.
func HasAddressesElsewhere(n pool.NodePool, running []Running) bool {
	return slices.ContainsFunc(running, func(r Running) bool {
		return r.Fixed != nil && slices.ContainsFunc(r.Addrs, func(a netip.Addr) bool { return !n.Home(a) })
	})
}

// KeepRunning returns the pool n with entries for the addresses that the pods of the node run with. n has the subnets and
// the entries of reserved addresses already. An agent that restarts restores an endpoint only if the pool has an entry for
// its address (Cilium facts 7 and 26). at is the time of new cooldowns.
//
// A fixed address gets the entry of its pod. Any other address gets a dynamic entry. On a strict node it gets the entry
// Running.Dedicated instead, or a Cooldown entry if the pod has another entry of the family. A Cooldown entry also
// replaces an Owned or NodeOwned entry of an owner other than the pod that runs with the address. The agent assigns an address
// by the owner of its entry alone (Cilium fact 2), and would give the address to that other owner too. Entries of all other
// kinds stay.
//
// A fixed address that is in no subnet of the node gets the entry of its pod in two cases only: the pool of its home node
// has a moved entry that names this node and the pod; or a FixedIP reserves the address for the pod, and the address has no
// home node now. In the second case the node that inherits the subnet will find the address in the pool of this node.
func KeepRunning(n pool.NodePool, running []Running, strict bool, others []pool.NodePool, at time.Time) pool.NodePool {
	running = slices.Clone(running)
	slices.SortStableFunc(running, func(x, y Running) int { return strings.Compare(x.Owner, y.Owner) })
	for _, r := range running {
		for _, a := range r.Addrs {
			e, exists := n.Entries[a]
			_, double := n.HasEntry(r.Owner, address.Of(a))
			entry := pool.Entry{}
			switch {
			case !n.Home(a):
				if r.Fixed == nil || exists || double || !isMovedTo(others, a, n.Name, r.Owner) && (!slices.Contains(r.Reserved, a) || hasHome(others, a)) {
					continue
				}
				entry = *r.Fixed
			case exists && (e.Owner() == r.Owner || e.Kind != pool.Owned && e.Kind != pool.NodeOwned):
				continue
			case exists, strict && double:
				entry = pool.CooldownEntry("", at)
			case r.unrecorded(a) && !double:
				entry = *r.Fixed
			case strict:
				entry = r.Dedicated
			}
			n = n.With([]pool.EntryChange{n.Set(a, entry)})
		}
	}
	return n
}

// hasHome reports whether an address is in a subnet of one of the pools.
func hasHome(pools []pool.NodePool, a netip.Addr) bool {
	return slices.ContainsFunc(pools, func(n pool.NodePool) bool { return n.Home(a) })
}

// isMovedTo reports whether the home of an address has a moved entry that names the node and the owner.
func isMovedTo(pools []pool.NodePool, a netip.Addr, node, owner string) bool {
	return slices.ContainsFunc(pools, func(home pool.NodePool) bool {
		e := home.Entries[a]
		return home.Home(a) && e.Kind == pool.Moved && e.Node() == node && e.Pod() == owner
	})
}
