// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"net/netip"
	"slices"
	"time"
)

// Adopt returns the edits that give a pod the addresses that it runs with, in place of others of the same families that
// were claimed for it: those cool down. It returns the Blocker of an address that belongs to another pod or that the agent
// reports for another. The caller has seen that the pod itself has the addresses; only that makes it safe to write an
// owner into a dynamic entry.
func (n Node) Adopt(running []netip.Addr, entry Entry, at time.Time) ([]Edit, error) {
	var edits []Edit
	adoptable := func(e Entry) bool { return e.Kind == Dynamic || e.Kind == Cooldown }
	for _, a := range running {
		now, exists := n.Entries[a]
		if exists && now.OwnedBy(entry.Owner) {
			continue
		}
		b := n.entryBlocker(a, entry.Owner, adoptable)
		if !exists && b == nil {
			b = n.Blocker(a, entry.Owner, nil)
		}
		if b != nil {
			return nil, b
		}
		edits = append(edits, n.Own(a, entry, at))
	}
	for a, e := range n.Entries {
		sameFamily := slices.ContainsFunc(running, func(r netip.Addr) bool { return r.BitLen() == a.BitLen() })
		if e.OwnedBy(entry.Owner) && sameFamily && !slices.Contains(running, a) {
			edits = append(edits, n.Set(a, CooldownEntry("", at)))
		}
	}
	slices.SortFunc(edits, func(x, y Edit) int { return x.Addr.Compare(y.Addr) })
	return edits, nil
}

// Undo returns the edits that put entries back to what they were before other edits, except those that were changed
// again since.
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
