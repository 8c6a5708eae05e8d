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

// node is one node in the ledger. Ledger.mu guards all fields except the atomics.
type node struct {
	pool pool.NodePool
	// written is the version of the last ObserveWrite, until the watch has shown it; zero: none.
	written pool.NodePool
	// assumed contains the addresses of claims in flight. Key: the address. Value: the UID of the pod with the claim. The
	// pool may already have an entry for such an address: the claim uses an existing entry (a restart in place, or the
	// takeover of a slot), or the claim was written and the pod is not bound yet.
	assumed map[netip.Addr]types.UID
	// reserved is Ledger.reserved.
	reserved *reservationIndex
	// overlapsNode is another node whose subnets overlap those of this node; empty: none.
	overlapsNode string

	// available is the number of addresses from which a claim can choose once the agent has reported, and size the number
	// of addresses that pods may have in the subnets. Index: see familyIndex. unreported is pool.Unreported. count updates
	// all three after every change of the fields above.
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

// choosable returns the number of addresses from which a claim can choose now, by familyIndex: 0 before the agent has
// reported.
func (n *node) choosable() [2]int64 {
	if n.unreported.Load() {
		return [2]int64{}
	}
	return [2]int64{n.available[0].Load(), n.available[1].Load()}
}

// freedSince returns the increase of the result of choosable since before, in the family with the larger increase; 0 if
// there is no increase.
func (n *node) freedSince(before [2]int64) int {
	now := n.choosable()
	return int(max(0, now[0]-before[0], now[1]-before[1]))
}

// count updates available, size and unreported. available is size without the addresses that have an entry, are reported as
// used, are withheld for a release handshake, are in a claim in flight, or are reserved. It is 0 if the subnets overlap
// those of another node.
func (n *node) count() {
	var available, size [2]int64
	for _, s := range n.pool.Subnets {
		i := familyIndex(address.Of(s.Addr()))
		size[i] += min(address.Size(s), math.MaxInt64-size[i])
	}
	if n.overlapsNode == "" {
		available = size
		// Each address is subtracted once: each loop skips the addresses that an earlier loop has subtracted.
		taken := func(a netip.Addr) {
			if n.pool.Usable(a) {
				available[familyIndex(address.Of(a))]--
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
	for i := range available {
		n.available[i].Store(max(0, available[i]))
		n.size[i].Store(size[i])
	}
}

// claimed reports whether the address is in a claim in flight or reserved by a FixedIP.
func (n *node) claimed(a netip.Addr) bool {
	_, assumed := n.assumed[a]
	_, reserved := n.reserved.first(a)
	return assumed || reserved
}

// pick returns the free address of a family for the next claim: the highest of the requested ones, or, if none are requested
// in the family, the highest of the first subnet that has a free one. The result is false if there is none, or if the agent
// has not reported. pick chooses only addresses without an entry, because an address with a dynamic entry may be in use
// although the agent has not reported the use yet. The search ends at the first free address, so its length depends on the
// number of addresses that are taken, and not on the number of requested ones.
func (n *node) pick(f address.Family, requested request.Addresses) (netip.Addr, bool) {
	if n.choosable()[familyIndex(f)] == 0 {
		return netip.Addr{}, false
	}
	var parts []netipx.IPRange
	for _, s := range n.pool.Subnets {
		switch {
		case address.Of(s.Addr()) != f:
		case len(requested.Ranges(f)) == 0:
			parts = append(parts, netipx.IPRangeFrom(address.Ends(s)))
		default:
			parts = append(parts, requested.Within(s)...)
		}
	}
	if len(requested.Ranges(f)) > 0 {
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
