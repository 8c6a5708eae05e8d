package pool

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Adopt makes the edits that give a pod the addresses that it runs with, in place of others of the
// same families that were claimed for it: those rest. It refuses with ErrTaken an address that
// somebody else owns or, as the agent says, has. Whoever asks has seen that the pod itself has the
// addresses; that is what makes it safe to write an owner on a dynamic entry.
func (n Node) Adopt(running []netip.Addr, entry Entry, at time.Time) ([]Edit, error) {
	var edits []Edit
	for _, a := range running {
		now, exists := n.Entries[a]
		_, released := now.ReleasedAt()
		user, used := n.Used[a]
		switch {
		case exists && now.Owner == entry.Owner:
			continue
		case !exists && !n.Home(a):
			return nil, fmt.Errorf("%s is neither in the pool nor in a subnet of node %s (%v): %w", a, n.Name, n.PodCIDRs, ErrTaken)
		case exists && !now.Dynamic() && !released:
			return nil, fmt.Errorf("%s on node %s belongs to %s: %w", a, n.Name, Told(now.Owner, entry.Owner), ErrTaken)
		case used && user != entry.Owner:
			return nil, fmt.Errorf("%s on node %s is used by %s: %w", a, n.Name, Told(user, entry.Owner), ErrTaken)
		}
		edits = append(edits, n.Own(a, entry, at))
	}
	for a, e := range n.Entries {
		sameFamily := slices.ContainsFunc(running, func(r netip.Addr) bool { return r.BitLen() == a.BitLen() })
		if e.Owner == entry.Owner && sameFamily && !slices.Contains(running, a) {
			edits = append(edits, n.Set(a, Released(at)))
		}
	}
	slices.SortFunc(edits, func(x, y Edit) int { return x.Addr.Compare(y.Addr) })
	return edits, nil
}

// Undo makes the edits that put entries back to what they were before others, where nobody has
// changed them since.
func (n Node) Undo(made []Edit) []Edit {
	var undo []Edit
	for _, e := range made {
		now, exists := n.Entries[e.Addr]
		switch {
		case e.To == nil && exists, e.To != nil && (!exists || now != *e.To):
			continue
		case e.From != nil:
			undo = append(undo, n.Set(e.Addr, *e.From))
		case exists:
			drop, _ := n.Drop(e.Addr)
			undo = append(undo, drop)
		}
	}
	return undo
}
