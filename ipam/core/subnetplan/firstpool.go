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

// Announced is an address that the pool of a node announces: it was about to move there.
type Announced struct {
	Node  string
	Addr  netip.Addr
	Entry pool.Entry
}

// Reserve decides which reserved addresses stand in the pool of a node from the moment that it has the subnets. others
// are the pools of all other nodes, read after the former pool of the subnets was gone, so that no pool decides over
// the addresses now.
//
// An address that the pool of another node offers lives there: the mark of its absence is put in its place, whatever
// it is reserved for. So does one whose pod runs on another node, which elsewhere names: the CiliumNode there may have
// been lost too. An address that is announced elsewhere was about to move when its home was lost. It must not
// arrive any more once its home has it again: announced lists the marks to take away first, after which the pools
// have to be read again, since it may have arrived meanwhile. What the node itself has under such an address is at
// home from then on, and left as it is.
func Reserve(heir pool.NodePool, subnets []netip.Prefix, kept []reservation.Address, elsewhere map[netip.Addr]string, others []pool.NodePool) (entries map[netip.Addr]pool.Entry, announced []Announced) {
	inside := address.Union(subnets)
	entries = map[netip.Addr]pool.Entry{}
	for _, k := range kept {
		if inside.Contains(k.Addr) {
			entries[k.Addr] = k.Entry
			if node, ok := elsewhere[k.Addr]; ok {
				entries[k.Addr] = pool.MovedEntry(node, k.Entry.Owner)
			}
		}
	}
	for a, e := range heir.Entries {
		if inside.Contains(a) && e.Allocatable() {
			delete(entries, a)
		}
	}
	for _, o := range others {
		for a, e := range o.Entries {
			if o.Name == heir.Name || !inside.Contains(a) {
				continue
			}
			if e.Kind == pool.MoveTarget {
				announced = append(announced, Announced{Node: o.Name, Addr: a, Entry: e})
			} else if e.Allocatable() {
				entries[a] = pool.MovedEntry(o.Name, e.NamesPod())
			}
		}
	}
	slices.SortFunc(announced, func(x, y Announced) int {
		return cmp.Or(cmp.Compare(x.Node, y.Node), x.Addr.Compare(y.Addr))
	})
	return entries, announced
}

// Running is a pod that runs on a node, or the node itself, with the addresses that it has.
type Running struct {
	// Owner is the pod as pool entries name it, or the name of the node's own address.
	Owner string
	Addrs []netip.Addr
	// Fixed is the entry that gives a fixed address to the pod; nil: it has none.
	Fixed *pool.Entry
	// Reserved are the addresses that a FixedIP reserves for the pod. Another address of the pod is fixed only if Reserved has
	// none of its family: the claim for that family was lost before the FixedIP recorded it.
	Reserved []netip.Addr
	// IPv4Only is true if IPv6 addresses that no FixedIP reserves are not fixed.
	IPv4Only bool
	// Dedicated is the entry that a strict node needs for the addresses otherwise.
	Dedicated pool.Entry
}

// unrecorded reports whether an address that the pod runs with is its fixed address although no FixedIP reserves it.
func (r Running) unrecorded(a netip.Addr) bool {
	sameFamily := func(b netip.Addr) bool { return address.Of(a) == address.Of(b) }
	return r.Fixed != nil && !slices.ContainsFunc(r.Reserved, sameFamily) && (address.Of(a) == address.IPv4 || !r.IPv4Only)
}

// KeepRunning returns the new pool with every address that a pod of the node runs with. n has the
// subnets and the entries of reserved addresses already. An agent that restarts restores an endpoint only if the pool
// lists its address (Cilium facts 7 and 26).
//
// A fixed address becomes the pod's entry, another one a dynamic entry, or on a strict node one for that pod alone. An
// entry that names another pod must not stand on an address in use, since the agent gives it out by its owner alone
// (Cilium fact 2): a mark that offers the address to no pod takes its place, until the address is free. An address at
// home on another node becomes the pod's entry only if the home says that it lives here, or if no node is its home now:
// the node that gets its subnet will find it here.
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
				if r.Fixed == nil || exists || double || !livesOn(others, a, n.Name, r.Owner) && (!slices.Contains(r.Reserved, a) || hasHome(others, a)) {
					continue
				}
				entry = *r.Fixed
			case exists && (e.Owner == r.Owner || !e.Allocatable() || e.Kind == pool.Dynamic):
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

// hasHome reports whether an address is in the subnet of a node.
func hasHome(pools []pool.NodePool, a netip.Addr) bool {
	return slices.ContainsFunc(pools, func(n pool.NodePool) bool { return n.Home(a) })
}

// livesOn reports whether the home of an address says that it lives on a node, for the owner.
func livesOn(pools []pool.NodePool, a netip.Addr, node, owner string) bool {
	return slices.ContainsFunc(pools, func(home pool.NodePool) bool {
		e := home.Entries[a]
		return home.Home(a) && e.Kind == pool.Moved && e.Node == node && e.Pod == owner
	})
}
