// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import "net/netip"

// TakeOver returns the edits that give the addresses of a terminated pod to another pod of the same workload: all of them
// or, if that is not possible, none and the Blocker. Addresses that the former holder does not have are claimed. An
// address that the agent still reports as in use is not taken over, since the agent would give it out a second time; the
// edits require that it does not report it before the write either.
func (n NodePool) TakeOver(addrs []netip.Addr, from string, entry Entry) ([]EntryChange, error) {
	var edits []EntryChange
	for _, a := range addrs {
		now := n.Entries[a]
		if !now.OwnedBy(from) {
			continue
		}
		sameWorkload := func(e Entry) bool { return e.Purpose == entry.Purpose && e.Workload == entry.Workload }
		if b := n.entryBlocker(a, entry.Owner, sameWorkload); b != nil {
			return nil, b
		}
		edits = append(edits, n.Set(a, entry))
	}
	claimed, err := n.With(edits).Claim(addrs, entry)
	if err != nil {
		return nil, err
	}
	edits = append(edits, claimed...)
	for i, e := range edits {
		edits[i].Unlisted = !n.InUse(e.Addr)
	}
	return edits, nil
}
