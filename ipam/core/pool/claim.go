// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"fixedip.io/fixedip/ipam/core/address"
)

// Claim returns the edits that give addresses to the pod of an owned entry: all of them or, if one is not available, none
// and its Blocker. It returns none if the entries exist already. A pod that has another address of the family on the node
// is refused too; that is certain only if the edits are applied to the version of the pool that they were made from.
func (n NodePool) Claim(addrs []netip.Addr, entry Entry) ([]EntryChange, error) {
	if b := n.OtherAddressOf(entry.Owner, addrs); b != nil {
		return nil, b
	}
	var edits []EntryChange
	for _, a := range addrs {
		if b := n.Blocker(a, entry.Owner, nil); b != nil {
			return nil, b
		}
		switch {
		case n.Entries[a].OwnedBy(entry.Owner):
			continue
		case n.IsReleasing(a):
			return nil, &Blocker{Addr: a, Node: n.Name, Reason: Releasing, Asks: entry.Owner}
		}
		edits = append(edits, n.Set(a, entry))
	}
	return edits, nil
}

// ErrOnOtherNode returns the error of a claim whose owner has addresses on another node as well.
func ErrOnOtherNode(owner, node string, addrs []netip.Addr) error {
	return fmt.Errorf("pod %s already has IP %s on node %s: %w", owner, address.Join(addrs), node, ErrTaken)
}

// Release returns the edits that take addresses from an owner, its move targets included: the given ones, or all if none
// are given. The addresses cool down: until then no pod gets them, not even one of the same name.
func (n NodePool) Release(owner string, addrs []netip.Addr, at time.Time) []EntryChange {
	var edits []EntryChange
	for a, e := range n.Entries {
		has := e.OwnedBy(owner) || e.Kind == MoveTarget && e.Pod == owner
		if has && (len(addrs) == 0 || slices.Contains(addrs, a)) {
			edits = append(edits, n.Set(a, CooldownEntry(owner, at)))
		}
	}
	return edits
}

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
