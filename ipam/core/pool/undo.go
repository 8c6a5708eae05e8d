// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool

// Undo returns the edits that put entries back to what they were before other edits, except those that were changed
// again since.
func (n NodePool) Undo(made []EntryChange) []EntryChange {
	var undo []EntryChange
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
