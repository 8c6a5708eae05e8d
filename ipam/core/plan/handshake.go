package plan

import (
	"net/netip"
	"slices"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Ask makes the next marks of the release handshake in a family: it asks for free dynamic entries
// that a pool has too many of, from the top of the subnets downwards, takes the question back where
// they are needed or somebody has the address by now, and ends what was answered. Every mark
// follows from the pool alone, so that a handshake goes on wherever it was left.
//
// held tells whether a pod has an address, as far as is known beside the agent's word: an agent
// that has just started answers before it has restored its pods. kept tells of addresses that
// FixedIPs keep: whatever else the pool lacks, it is to lose those, so that their pods can have them.
//
// unanswered tells of handshakes in which it has been the agent's turn for so long that it can't be waited
// for: it may have forgotten its answer, and looks again only when something changes. They are ended, and
// what is still too much is asked for anew. Of what is taken out already nothing more is to be learned: since
// the agent has agreed, it offers the address to nobody until it sees that the entry is gone.
func Ask(n pool.Node, f address.Family, w Watermark, held, kept, unanswered func(netip.Addr) bool) []pool.Mark {
	var marks []pool.Mark
	for a, state := range n.Handshakes {
		e, exists := n.Entries[a]
		switch {
		case address.Of(a) != f || state == pool.OtherState:
		case state == pool.Refused,
			exists && (e.Kind != pool.Dynamic || state == pool.TakenOut || n.InUse(a) || held(a)),
			!exists && state == pool.Asked,
			n.AgentsTurn(a) && unanswered(a):
			marks = append(marks, n.Mark(a, pool.NotAsked))
		case !exists && state == pool.Agreed:
			marks = append(marks, n.Mark(a, pool.TakenOut))
		}
	}
	slices.SortFunc(marks, func(x, y pool.Mark) int { return x.Addr.Compare(y.Addr) })
	// An agent that has never said what is in use has not looked at the pool yet.
	if len(n.Used) == 0 {
		return marks
	}
	ended := marks
	for _, m := range balance(n.WithMarks(marks), f, w, held, kept) {
		// One step at a time: what is ended now may be asked for again by the next look.
		if !slices.ContainsFunc(ended, func(e pool.Mark) bool { return e.Addr == m.Addr }) {
			marks = append(marks, m)
		}
	}
	return marks
}

// balance asks for what is too much, or takes back what is needed.
func balance(n pool.Node, f address.Family, w Watermark, held, kept func(netip.Addr) bool) []pool.Mark {
	var free, leaving []netip.Addr
	var marks []pool.Mark
	busy := 0
	for a, e := range n.Entries {
		switch {
		case address.Of(a) != f || e.Kind != pool.Dynamic:
		case n.InUse(a) || held(a):
			busy++
		case kept(a):
			if n.Handshakes[a] == pool.NotAsked {
				marks = append(marks, n.Mark(a, pool.Asked))
			}
		case n.Handshakes[a] == pool.NotAsked:
			free = append(free, a)
		case n.Handshakes[a] == pool.Asked || n.Handshakes[a] == pool.Agreed:
			leaving = append(leaving, a)
		}
	}
	slices.SortFunc(free, netip.Addr.Compare)
	slices.SortFunc(leaving, netip.Addr.Compare)
	slices.SortFunc(marks, func(x, y pool.Mark) int { return x.Addr.Compare(y.Addr) })
	room := max(0, w.Max-busy)
	switch {
	case len(free) > min(w.Free+w.Excess, room):
		for _, a := range free[min(w.Free+w.Excess/2, room):] {
			marks = append(marks, n.Mark(a, pool.Asked))
		}
	case len(free) < min(w.Free, room):
		for _, a := range leaving[:min(len(leaving), min(w.Free, room)-len(free))] {
			marks = append(marks, n.Mark(a, pool.NotAsked))
		}
	}
	return marks
}

// TakeOut makes the edits that remove the entries of a family that the agent agrees to lose, but
// for those that Ask takes back. held, kept and unanswered are as there.
func TakeOut(n pool.Node, f address.Family, w Watermark, held, kept, unanswered func(netip.Addr) bool) []pool.Edit {
	back := map[netip.Addr]bool{}
	for _, m := range Ask(n, f, w, held, kept, unanswered) {
		back[m.Addr] = true
	}
	var edits []pool.Edit
	for a, state := range n.Handshakes {
		if state != pool.Agreed || address.Of(a) != f || back[a] {
			continue
		}
		edit, exists := n.Drop(a)
		if exists {
			edit.Agreed = true
			edits = append(edits, edit)
		}
	}
	slices.SortFunc(edits, func(x, y pool.Edit) int { return x.Addr.Compare(y.Addr) })
	return edits
}
