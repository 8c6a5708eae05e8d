// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"math"
	"net/netip"
	"slices"
	"sync/atomic"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/request"
)

// node is one node in the ledger. The ledger's lock guards all but the atomics.
type node struct {
	pool pool.NodePool
	// written is the newest version from ObserveWrite that the watch has not shown yet; zero: there is none.
	written pool.NodePool
	// assumed are the addresses of claims in flight. Value: the UID of the pod that has the claim. An address may be here
	// and in the pool: the watch shows the claim, and the pod is not bound yet.
	assumed map[netip.Addr]types.UID
	// reserved is the ledger's.
	reserved *reservationIndex
	// overlapsNode is another node whose subnets overlap this node's; empty: there is none.
	overlapsNode string

	// available is how many addresses a claim can choose from once the agent has reported, size how many the subnets have:
	// see familyIndex. unreported is pool.Unreported. They follow every change of the fields above.
	available, size [2]atomic.Int64
	unreported      atomic.Bool
}

// familyIndex returns the index of a family in the arrays of a node.
func familyIndex(f address.Family) int { return slices.Index(address.Families[:], f) }

func (n *node) assume(uid types.UID, addrs []netip.Addr) {
	for _, a := range addrs {
		n.assumed[a] = uid
	}
	n.count()
}

// choosable returns how many addresses a claim can choose from now, by family: none before the agent has reported.
func (n *node) choosable() [2]int64 {
	if n.unreported.Load() {
		return [2]int64{}
	}
	return [2]int64{n.available[0].Load(), n.available[1].Load()}
}

// freedSince returns how many addresses became free, in the family in which more did.
func (n *node) freedSince(before [2]int64) int {
	now := n.choosable()
	return int(max(0, now[0]-before[0], now[1]-before[1]))
}

// count updates room and size. The room is the addresses of the subnets without those that no claim can choose.
func (n *node) count() {
	var room, size [2]int64
	for _, s := range n.pool.Subnets {
		i := familyIndex(address.Of(s.Addr()))
		size[i] += min(address.Size(s), math.MaxInt64-size[i])
	}
	if n.overlapsNode == "" {
		room = size
		// Each address is counted by the first loop that finds it.
		taken := func(a netip.Addr) {
			if n.offers(a) {
				room[familyIndex(address.Of(a))]--
			}
		}
		for a := range n.pool.Entries {
			taken(a)
		}
		for a := range n.pool.Used {
			if _, entry := n.pool.Entries[a]; !entry {
				taken(a)
			}
		}
		for a := range n.pool.Handshakes {
			if _, entry := n.pool.Entries[a]; !entry && !n.pool.InUse(a) && n.pool.IsReleasing(a) {
				taken(a)
			}
		}
		for a := range n.assumed {
			if n.pool.Unused(a) {
				taken(a)
			}
		}
		for _, s := range n.pool.Subnets {
			var last netip.Addr
			for a := range n.reserved.in(s) {
				if _, assumed := n.assumed[a]; !assumed && a != last && n.pool.Unused(a) {
					taken(a)
				}
				last = a
			}
		}
	}
	n.unreported.Store(n.pool.Unreported)
	for i := range room {
		n.available[i].Store(max(0, room[i]))
		n.size[i].Store(size[i])
	}
}

// offers reports whether the address is among those that address.Size counts.
func (n *node) offers(a netip.Addr) bool {
	return slices.ContainsFunc(n.pool.Subnets, func(s netip.Prefix) bool { return address.Usable(s, a) })
}

// claimed reports whether a claim in flight or a FixedIP has the address.
func (n *node) claimed(a netip.Addr) bool {
	_, assumed := n.assumed[a]
	_, reserved := n.reserved.first(a)
	return assumed || reserved
}

// pick returns the next free address of a family, from among those that are asked for if there are any: the highest. It
// chooses outside the pool: a dynamic entry may be in use without the agent having reported it. The walk ends at the first
// free address, so that it is as long as the node has addresses in use, and not as many as are asked for.
func (n *node) pick(f address.Family, asked request.Addresses) (netip.Addr, bool) {
	if n.choosable()[familyIndex(f)] == 0 {
		return netip.Addr{}, false
	}
	var parts []netipx.IPRange
	for _, s := range n.pool.Subnets {
		switch {
		case address.Of(s.Addr()) != f:
		case len(asked.Ranges(f)) == 0:
			parts = append(parts, netipx.IPRangeFrom(address.Ends(s)))
		default:
			parts = append(parts, asked.Within(s)...)
		}
	}
	if len(asked.Ranges(f)) > 0 {
		slices.SortFunc(parts, func(x, y netipx.IPRange) int { return y.To().Compare(x.To()) })
	}
	for _, r := range parts {
		for a := r.To(); ; a = a.Prev() {
			if n.pool.Unused(a) && !n.claimed(a) {
				return a, true
			}
			if a == r.From() {
				break
			}
		}
	}
	return netip.Addr{}, false
}
