// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"net/netip"
	"slices"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Watermark contains the bounds for the number of dynamic entries in the pool of a node, for each family.
type Watermark struct {
	// Free is the number of entries that should be free. It is small, because every write of a CiliumNode is sent with its
	// whole pool to every agent (Cilium fact 11).
	Free int
	// Excess is the number of further entries that may be free before entries are released. Half of them then remain, so that
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

// FillDynamic returns the edits that bring the free dynamic entries of a family up to the watermark, from the bottom of the
// subnets upwards. It skips the addresses for which reserved is true: FixedIPs reserve them. Entries in a release
// handshake count as free until they are released: ReleaseExcess withdraws the marks of those that are needed. short is the
// number of entries that the subnets have no room for.
func FillDynamic(n pool.NodePool, f address.Family, w Watermark, reserved func(netip.Addr) bool) (edits []pool.EntryChange, short int) {
	free, dynamic := 0, 0
	for a, e := range n.Entries {
		if address.Of(a) != f || e.Kind != pool.Dynamic {
			continue
		}
		dynamic++
		if !n.InUse(a) && !reserved(a) && n.Handshakes[a] != pool.Released {
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
			if _, exists := n.Entries[a]; exists || n.InUse(a) || n.IsReleasing(a) || reserved(a) {
				continue
			}
			edits = append(edits, n.Set(a, pool.Entry{}))
			missing--
		}
	}
	return edits, max(0, missing)
}

// ReleaseExcess returns the next changes of the release handshakes of a family. It marks (MarkedForRelease) the free
// dynamic entries that exceed the watermark, from the top of the subnets downwards. It withdraws the marks of entries
// that are needed again or in use. It sets the key of a removed entry to released. It stores no state between calls, so
// that a handshake continues after an interruption.
//
// held reports whether a pod has an address even if the agent does not report it. reserved reports whether a FixedIP reserves
// an address: its entry is released even if the pool has too few free entries, so that the pod of the FixedIP can have the
// address.
//
// An agent that has just started answers before it has restored its endpoints: its answer ready-for-release counts only if
// its report contains an address of the node itself.
//
// overdue reports whether the answer of the agent is overdue. The agent may have lost the answer, and evaluates a mark
// again only if something changes (Cilium fact 28). Such a mark is withdrawn, and an entry that still exceeds the
// watermark is marked again later. The overdue key of an entry that was removed already is withdrawn too. The agent
// answered ready-for-release before the removal, so it assigns the address to no pod.
func ReleaseExcess(n pool.NodePool, f address.Family, w Watermark, held, reserved, overdue func(netip.Addr) bool) []pool.HandshakeChange {
	var handshakes []pool.HandshakeChange
	for a, state := range n.Handshakes {
		e, exists := n.Entries[a]
		switch {
		case address.Of(a) != f || state == pool.OtherState:
		case state == pool.DoNotRelease,
			exists && (e.Kind != pool.Dynamic || state == pool.Released || state == pool.ReadyForRelease && n.Unreported || n.InUse(a) || held(a)),
			!exists && state == pool.MarkedForRelease,
			n.AwaitsAgent(a) && overdue(a):
			handshakes = append(handshakes, n.ChangeHandshake(a, pool.NoHandshake))
		case !exists && state == pool.ReadyForRelease:
			handshakes = append(handshakes, n.ChangeHandshake(a, pool.Released))
		}
	}
	slices.SortFunc(handshakes, func(x, y pool.HandshakeChange) int { return x.Addr.Compare(y.Addr) })
	if n.Unreported {
		return handshakes
	}
	ended := handshakes
	for _, m := range balance(n.WithHandshakes(handshakes), f, w, held, reserved) {
		// A call changes each handshake by one step: the next call may mark an entry whose mark is withdrawn now.
		if !slices.ContainsFunc(ended, func(e pool.HandshakeChange) bool { return e.Addr == m.Addr }) {
			handshakes = append(handshakes, m)
		}
	}
	return handshakes
}

// balance returns the marks of reserved entries and of the free entries that exceed the watermark or, if too few are free,
// the withdrawals of marks.
func balance(n pool.NodePool, f address.Family, w Watermark, held, reserved func(netip.Addr) bool) []pool.HandshakeChange {
	var free, leaving []netip.Addr
	var handshakes []pool.HandshakeChange
	busy := 0
	for a, e := range n.Entries {
		switch {
		case address.Of(a) != f || e.Kind != pool.Dynamic:
		case n.InUse(a) || held(a):
			busy++
		case reserved(a):
			if n.Handshakes[a] == pool.NoHandshake {
				handshakes = append(handshakes, n.ChangeHandshake(a, pool.MarkedForRelease))
			}
		case n.Handshakes[a] == pool.NoHandshake:
			free = append(free, a)
		case n.Handshakes[a] == pool.MarkedForRelease || n.Handshakes[a] == pool.ReadyForRelease:
			leaving = append(leaving, a)
		}
	}
	slices.SortFunc(free, netip.Addr.Compare)
	slices.SortFunc(leaving, netip.Addr.Compare)
	slices.SortFunc(handshakes, func(x, y pool.HandshakeChange) int { return x.Addr.Compare(y.Addr) })
	limit := max(0, w.Max-busy)
	switch {
	case len(free) > min(w.Free+w.Excess, limit):
		for _, a := range free[min(w.Free+w.Excess/2, limit):] {
			handshakes = append(handshakes, n.ChangeHandshake(a, pool.MarkedForRelease))
		}
	case len(free) < min(w.Free, limit):
		for _, a := range leaving[:min(len(leaving), min(w.Free, limit)-len(free))] {
			handshakes = append(handshakes, n.ChangeHandshake(a, pool.NoHandshake))
		}
	}
	return handshakes
}

// RemoveReleased returns the edits that remove the entries of a family that the agent is ready to release, except those
// whose marks ReleaseExcess withdraws. The other parameters are those of ReleaseExcess.
func RemoveReleased(n pool.NodePool, f address.Family, w Watermark, held, reserved, overdue func(netip.Addr) bool) []pool.EntryChange {
	withdrawn := map[netip.Addr]bool{}
	for _, m := range ReleaseExcess(n, f, w, held, reserved, overdue) {
		withdrawn[m.Addr] = true
	}
	var edits []pool.EntryChange
	for a, state := range n.Handshakes {
		if state != pool.ReadyForRelease || address.Of(a) != f || withdrawn[a] {
			continue
		}
		edit, exists := n.Drop(a)
		if exists {
			edit.ReadyForRelease = true
			edits = append(edits, edit)
		}
	}
	slices.SortFunc(edits, func(x, y pool.EntryChange) int { return x.Addr.Compare(y.Addr) })
	return edits
}
