// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

// node is one node in the ledger. All but the atomics is guarded by the ledger's lock.
type node struct {
	pool pool.NodePool
	// written is the last version that ObserveWrite took and that the watch has not shown yet; zero: there is none.
	written pool.NodePool
	// assumed are the addresses of claims in flight. Key: the address. Value: the UID of the pod
	// that it was decided for. An address may be here and in the pool at once: the claim has been
	// seen and its pod is not bound yet.
	assumed map[netip.Addr]types.UID
	// kept is the ledger's.
	kept *reservationIndex
	// overlapsNode names another node whose subnets overlap this node's; empty where none does.
	overlapsNode string

	// room4 and room6 are what room answers, size4 and size6 how many addresses the subnets have in
	// all. They follow every change of the fields above.
	room4, room6, size4, size6 atomic.Int64
}

func newNode(k *reservationIndex) *node { return &node{assumed: map[netip.Addr]types.UID{}, kept: k} }

// set replaces the pool. recount says whether what count reads may have changed.
func (n *node) set(p pool.NodePool, recount bool) {
	n.pool = p
	if recount {
		n.count()
	}
}

func (n *node) assume(uid types.UID, addrs []netip.Addr) {
	for _, a := range addrs {
		n.assumed[a] = uid
	}
	n.count()
}

func (n *node) forget(uid types.UID) {
	maps.DeleteFunc(n.assumed, func(_ netip.Addr, by types.UID) bool { return by == uid })
	n.count()
}

func (n *node) room(f address.Family) int64 {
	if f == address.IPv4 {
		return n.room4.Load()
	}
	return n.room6.Load()
}

func (n *node) size(f address.Family) int64 {
	if f == address.IPv4 {
		return n.size4.Load()
	}
	return n.size6.Load()
}

func (n *node) rooms() [2]int64 { return [2]int64{n.room4.Load(), n.room6.Load()} }

func (n *node) grewSince(before [2]int64) bool {
	return n.room4.Load() > before[0] || n.room6.Load() > before[1]
}

// count works out the room in each family: the addresses of the subnets, less those that are not
// to be had.
func (n *node) count() {
	room, size := map[address.Family]int64{}, map[address.Family]int64{}
	for _, s := range n.pool.Subnets {
		f := address.Of(s.Addr())
		if more := address.Size(s); more > math.MaxInt64-size[f] {
			size[f] = math.MaxInt64
		} else {
			size[f] += more
		}
	}
	if n.overlapsNode == "" {
		maps.Copy(room, size)
		taken := func(a netip.Addr) {
			if n.offers(a) {
				room[address.Of(a)]--
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
			_, entry := n.pool.Entries[a]
			if !entry && !n.pool.InUse(a) && !n.pool.IsReleasing(a) {
				taken(a)
			}
		}
		for _, s := range n.pool.Subnets {
			for a := range n.kept.within(s) {
				_, entry := n.pool.Entries[a]
				_, assumed := n.assumed[a]
				if !entry && !assumed && !n.pool.InUse(a) && !n.pool.IsReleasing(a) {
					taken(a)
				}
			}
		}
	}
	n.room4.Store(max(0, room[address.IPv4]))
	n.room6.Store(max(0, room[address.IPv6]))
	n.size4.Store(size[address.IPv4])
	n.size6.Store(size[address.IPv6])
}

// offers tells whether the address is among those that Size counts.
func (n *node) offers(a netip.Addr) bool {
	return slices.ContainsFunc(n.pool.Subnets, func(s netip.Prefix) bool { return address.Usable(s, a) })
}

// free tells whether nobody has the address or may have it.
func (n *node) free(a netip.Addr) bool {
	_, entry := n.pool.Entries[a]
	return !entry && n.idle(a)
}

// idle tells whether nobody uses the address or is about to, no FixedIP keeps it and the agent does
// not keep it back.
func (n *node) idle(a netip.Addr) bool {
	_, assumed := n.assumed[a]
	_, keeps := n.kept.keeper(a)
	return !assumed && !keeps && !n.pool.InUse(a) && !n.pool.IsReleasing(a)
}

// pick returns the highest free address of a family. It chooses outside the pool: a dynamic entry may be in use without the
// agent having reported it.
func (n *node) pick(f address.Family) (netip.Addr, bool) {
	if n.room(f) == 0 {
		return netip.Addr{}, false
	}
	for _, s := range n.pool.Subnets {
		if address.Of(s.Addr()) != f {
			continue
		}
		for a := range address.Down(s) {
			if n.free(a) {
				return a, true
			}
		}
	}
	return netip.Addr{}, false
}
