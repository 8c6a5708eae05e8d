// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"net/netip"
	"slices"

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

// ReleaseExcess returns the next marks of the release handshake in a family: it marks free dynamic entries that the pool has too
// many of, from the top of the subnets downwards, withdraws marks of entries that are needed or in use by now, and
// removes those that the agent has answered. Every mark follows from the pool alone, so that a handshake continues after
// an interruption.
//
// An agent that has just started answers before it has restored its endpoints: what it is ready to release counts only with
// a report of the node's own addresses. held reports whether a pod has an address as far as is known beside the agent's
// report. kept reports whether a FixedIP reserves it: such entries are released
// whatever the pool lacks, so that their pods can have them.
//
// unanswered reports handshakes whose answer is overdue: the agent may have forgotten it, and looks again only when
// something changes. They are withdrawn, and what is still too much is marked again. Of an entry that is removed already
// nothing more is to be learned: since the agent has agreed, it assigns the address to no pod.
func ReleaseExcess(n pool.NodePool, f address.Family, w Watermark, held, kept, unanswered func(netip.Addr) bool) []pool.HandshakeChange {
	var marks []pool.HandshakeChange
	for a, state := range n.Handshakes {
		e, exists := n.Entries[a]
		switch {
		case address.Of(a) != f || state == pool.OtherState:
		case state == pool.DoNotRelease,
			exists && (e.Kind != pool.Dynamic || state == pool.Released || state == pool.ReadyForRelease && n.Unreported || n.InUse(a) || held(a)),
			!exists && state == pool.MarkedForRelease,
			n.AwaitsAgent(a) && unanswered(a):
			marks = append(marks, n.ChangeHandshake(a, pool.NoHandshake))
		case !exists && state == pool.ReadyForRelease:
			marks = append(marks, n.ChangeHandshake(a, pool.Released))
		}
	}
	slices.SortFunc(marks, func(x, y pool.HandshakeChange) int { return x.Addr.Compare(y.Addr) })
	if n.Unreported {
		return marks
	}
	ended := marks
	for _, m := range balance(n.WithHandshakes(marks), f, w, held, kept) {
		// One step at a time: the next look may mark again what is withdrawn now.
		if !slices.ContainsFunc(ended, func(e pool.HandshakeChange) bool { return e.Addr == m.Addr }) {
			marks = append(marks, m)
		}
	}
	return marks
}

// balance marks entries that are too many, or withdraws the marks of entries that are needed.
func balance(n pool.NodePool, f address.Family, w Watermark, held, kept func(netip.Addr) bool) []pool.HandshakeChange {
	var free, leaving []netip.Addr
	var marks []pool.HandshakeChange
	busy := 0
	for a, e := range n.Entries {
		switch {
		case address.Of(a) != f || e.Kind != pool.Dynamic:
		case n.InUse(a) || held(a):
			busy++
		case kept(a):
			if n.Handshakes[a] == pool.NoHandshake {
				marks = append(marks, n.ChangeHandshake(a, pool.MarkedForRelease))
			}
		case n.Handshakes[a] == pool.NoHandshake:
			free = append(free, a)
		case n.Handshakes[a] == pool.MarkedForRelease || n.Handshakes[a] == pool.ReadyForRelease:
			leaving = append(leaving, a)
		}
	}
	slices.SortFunc(free, netip.Addr.Compare)
	slices.SortFunc(leaving, netip.Addr.Compare)
	slices.SortFunc(marks, func(x, y pool.HandshakeChange) int { return x.Addr.Compare(y.Addr) })
	room := max(0, w.Max-busy)
	switch {
	case len(free) > min(w.Free+w.Excess, room):
		for _, a := range free[min(w.Free+w.Excess/2, room):] {
			marks = append(marks, n.ChangeHandshake(a, pool.MarkedForRelease))
		}
	case len(free) < min(w.Free, room):
		for _, a := range leaving[:min(len(leaving), min(w.Free, room)-len(free))] {
			marks = append(marks, n.ChangeHandshake(a, pool.NoHandshake))
		}
	}
	return marks
}

// RemoveReleased returns the edits that remove the entries of a family that the agent is ready to release, except those
// that ReleaseExcess withdraws. held, kept and unanswered are as there.
func RemoveReleased(n pool.NodePool, f address.Family, w Watermark, held, kept, unanswered func(netip.Addr) bool) []pool.EntryChange {
	back := map[netip.Addr]bool{}
	for _, m := range ReleaseExcess(n, f, w, held, kept, unanswered) {
		back[m.Addr] = true
	}
	var edits []pool.EntryChange
	for a, state := range n.Handshakes {
		if state != pool.ReadyForRelease || address.Of(a) != f || back[a] {
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
