// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"maps"
	"net/netip"
	"testing"

	"fixedip.io/fixedip/ipam/core/pool"
)

// TestUndo checks that Undo restores the entries that the edits changed or removed and removes those that they added, and that
// it does not change an entry that another write has changed after the edits (finding C12 in docs/project/findings.md).
func TestUndo(t *testing.T) {
	a, b, c, mine := addr("10.0.1.1"), addr("10.0.1.2"), addr("10.0.1.3"), pool.ForOwner("db/mysql-0")
	n := pool.NodePool{Entries: map[netip.Addr]pool.Entry{a: {}, b: mine}}
	drop, _ := n.Drop(b)
	made := []pool.EntryChange{n.Set(a, mine), drop, n.Set(c, mine)}
	after := n.With(made)
	if undone := after.With(after.Undo(made)); !maps.Equal(undone.Entries, n.Entries) {
		t.Errorf("got entries %v after Undo, want %v", undone.Entries, n.Entries)
	}
	after.Entries[a], after.Entries[b], after.Entries[c] = pool.ForOwner("db/other-0"), pool.Entry{}, pool.Entry{}
	if undo := after.Undo(made); len(undo) != 0 {
		t.Errorf("got edits %v for entries that were changed again, want none", undo)
	}
}
