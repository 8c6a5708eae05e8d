// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"net/netip"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Watermark says how many dynamic entries the pool of a node holds in each family.
type Watermark struct {
	// Free is how many should be free. It is kept modest: the size of a pool is the price of every
	// write to it, and every agent receives every write.
	Free int
	// Excess is how many more may be free before some are taken out again. A pool whose pods come
	// and go in numbers of up to half of it is written to no more than they make it grow.
	Excess int
	// Max is how many dynamic entries there may be, free or in use; the rest of the subnet is left
	// to fixed addresses.
	Max int
}

// ForNode is the watermark of one node where Max says nothing: as many as the node takes pods, and
// its own addresses, but no more than half of its addresses, so that there is room for fixed ones.
// pods is Node.status.allocatable, size how many addresses the node's subnets have in the family.
func (w Watermark) ForNode(pods, size int64) Watermark {
	if w.Max == 0 {
		own := int64(len(pool.NodeOwners))
		w.Max = int(min(pods+own, max(own, size/2)))
	}
	return w
}

// FillDynamic returns the edits that bring the free dynamic entries of a family up to the watermark, from the bottom of
// the subnets upwards, except addresses that FixedIPs reserve. Entries that are being released count as free: if they
// are needed, ReleaseExcess keeps them. short is how many the subnets have no room for.
func FillDynamic(n pool.NodePool, f address.Family, w Watermark, kept func(netip.Addr) bool) (edits []pool.EntryChange, short int) {
	free, dynamic := 0, 0
	for a, e := range n.Entries {
		if address.Of(a) != f || e.Kind != pool.Dynamic {
			continue
		}
		dynamic++
		if !n.InUse(a) && !kept(a) && n.Handshakes[a] != pool.Released {
			free++
		}
	}
	missing := min(w.Free-free, w.Max-dynamic)
	for _, s := range n.Subnets {
		if missing <= 0 {
			break
		}
		if address.Of(s.Addr()) != f {
			continue
		}
		for a := range address.Up(s) {
			if missing <= 0 {
				break
			}
			if _, exists := n.Entries[a]; exists || n.InUse(a) || n.IsReleasing(a) || kept(a) {
				continue
			}
			edits = append(edits, n.Set(a, pool.Entry{}))
			missing--
		}
	}
	return edits, max(0, missing)
}
