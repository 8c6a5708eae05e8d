// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"net/netip"
	"slices"
	"time"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Watermark contains the bounds for the number of dynamic entries in the pool of a node, for each family.
type Watermark struct {
	// Free is the number of entries that should be free. It is small, because every write of a CiliumNode is sent with its
	// whole pool to every agent (Cilium fact 11).
	Free int
	// Excess is the number of further entries that may be free before entries are withdrawn. Half of them then remain, so that
	// up to Excess/2 pods can start and stop without a write.
	Excess int
	// Max is the maximum number of dynamic entries, free or in use; the other addresses of the subnet are available as fixed
	// addresses. If Max is 0, ForNode chooses it.
	Max int
}

// ForNode returns the watermark of one node. If Max is 0, ForNode sets it to the number of pods that the node takes
// plus the number of addresses that the node itself may need. The limit is half of size, so that fixed addresses have
// room, but never less than the node itself may need. pods is the number of pods in Node.status.allocatable, size the
// number of addresses of the node's subnets in the family.
func (w Watermark) ForNode(pods, size int64) Watermark {
	if w.Max == 0 {
		own := int64(len(pool.NodeOwners))
		w.Max = int(min(pods+own, max(own, size/2)))
	}
	return w
}

// FillDynamic returns the edits that bring the free dynamic entries of a family up to the watermark: it first makes
// withdrawn entries dynamic again, and then adds entries from the bottom of the subnets upwards. It skips the addresses for
// which reserved is true: FixedIPs reserve them. short is the number of entries that the subnets have no room for.
func FillDynamic(n pool.NodePool, f address.Family, w Watermark, reserved func(netip.Addr) bool) (edits []pool.EntryChange, short int) {
	free, dynamic := 0, 0
	var withdrawn []netip.Addr
	for a, e := range n.Entries {
		switch {
		case address.Of(a) != f:
		case e.Kind == pool.Dynamic:
			dynamic++
			if !n.InUse(a) && !reserved(a) {
				free++
			}
		case e.IsWithdrawn() && !reserved(a):
			withdrawn = append(withdrawn, a)
		}
	}
	missing := min(w.Free-free, w.Max-dynamic)
	slices.SortFunc(withdrawn, netip.Addr.Compare)
	for _, a := range withdrawn[:max(0, min(missing, len(withdrawn)))] {
		edits = append(edits, n.Set(a, pool.Entry{}))
		missing--
	}
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
			if _, exists := n.Entries[a]; exists || n.InUse(a) || n.IsReleasing(a) || reserved(a) {
				continue
			}
			edits = append(edits, n.Set(a, pool.Entry{}))
			missing--
		}
	}
	return edits, max(0, missing)
}

// Surplus returns the edits that withdraw free dynamic entries of a family: those that exceed the watermark, from the top of
// the subnets downwards, and those of addresses that a FixedIP reserves (reserved). held reports whether a pod has an
// address even if the agent does not report it. Before the agent has reported, no entry is known to be free, and Surplus
// returns no edits.
//
// The agent may have given a free address to a pod without having reported that yet. So the entry is not removed, but
// replaced by pool.WithdrawnEntry: no pod gets the address any more, and a pod that has it keeps it, even if the agent
// restarts (Cilium fact 27). Once the agent has acknowledged the withdrawal, ExpireCooldowns removes the entry. If a pod has
// the address, ExpireCooldowns makes the entry dynamic again.
func Surplus(n pool.NodePool, f address.Family, w Watermark, now time.Time, held, reserved func(netip.Addr) bool) []pool.EntryChange {
	if n.Unreported {
		return nil
	}
	var free, withdrawn []netip.Addr
	busy := 0
	for a, e := range n.Entries {
		switch {
		case address.Of(a) != f || e.Kind != pool.Dynamic:
		case n.InUse(a) || held(a):
			busy++
		case reserved(a):
			withdrawn = append(withdrawn, a)
		default:
			free = append(free, a)
		}
	}
	slices.SortFunc(free, netip.Addr.Compare)
	if limit := max(0, w.Max-busy); len(free) > min(w.Free+w.Excess, limit) {
		withdrawn = append(withdrawn, free[min(w.Free+w.Excess/2, limit):]...)
	}
	slices.SortFunc(withdrawn, netip.Addr.Compare)
	var edits []pool.EntryChange
	for _, a := range withdrawn {
		edit := n.Set(a, pool.WithdrawnEntry(now))
		edit.RequireUnused = true
		edits = append(edits, edit)
	}
	return edits
}
