// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"net/netip"
	"slices"
	"time"

	"fixedip.io/fixedip/ipam/core/address"
)

// Claim returns the edits that write entry for all addrs, or no edit and the Blocker if an address is not available to the
// owner of entry. Addresses whose entry belongs to the owner already need no edit. An owner that has another address of the
// same family on the node is refused too; that check holds only if the edits are applied to this version of the pool.
func (n NodePool) Claim(addrs []netip.Addr, entry Entry) ([]EntryChange, error) {
	if b := n.OtherAddressOf(entry.Owner(), addrs); b != nil {
		return nil, b
	}
	var edits []EntryChange
	for _, a := range addrs {
		if b := n.ClaimBlocker(a, entry.Owner(), nil); b != nil {
			return nil, b
		}
		if !n.Entries[a].OwnedBy(entry.Owner()) {
			edits = append(edits, n.Set(a, entry))
		}
	}
	return edits, nil
}

// ClaimBlocker returns the reason why an entry of owner can't be written for the address now; nil if it can, or exists
// already. replaces is as in Blocker.
func (n NodePool) ClaimBlocker(a netip.Addr, owner string, replaces func(Entry) bool) *Blocker {
	if b := n.Blocker(a, owner, replaces); b != nil {
		return b
	}
	e, exists := n.Entries[a]
	switch {
	case e.OwnedBy(owner):
	case n.IsReleasing(a):
		return &Blocker{Addr: a, Node: n.Name, Reason: Releasing, Requester: owner}
	case !exists && !n.Usable(a):
		// If such an address has an entry, a user wrote the entry, and a pod may have the address.
		return &Blocker{Addr: a, Node: n.Name, Reason: SubnetEdge, Requester: owner}
	}
	return nil
}

// ErrOnOtherNode returns the error of a claim whose owner already has addrs on another node. It matches ErrTaken.
func ErrOnOtherNode(owner, node string, addrs []netip.Addr) error {
	return Taken("pod %s already has IP %s on node %s", owner, address.Join(addrs), node)
}

// Release returns the edits that replace entries of an owner, its MoveTarget entries included, by Cooldown entries: those
// of addrs, or all if addrs is empty. Until the cooldown ends, the agent assigns the addresses to no pod, not even to owner.
func (n NodePool) Release(owner string, addrs []netip.Addr, at time.Time) []EntryChange {
	var edits []EntryChange
	for a, e := range n.Entries {
		has := e.OwnedBy(owner) || e.Kind == MoveTarget && e.Pod() == owner
		if has && (len(addrs) == 0 || slices.Contains(addrs, a)) {
			edits = append(edits, n.Set(a, CooldownEntry(owner, at)))
		}
	}
	return edits
}

// TakeOver returns the edits that write entry for all addrs of a slot, or no edit and the Blocker if that is not possible.
// from is the former holder, a pod of the same workload that has stopped. An address whose entry does not belong to from is
// claimed (see Claim). An address that the agent reports as used by a pod other than the owner of entry is refused, because
// the agent would assign it twice. If the agent does not report an address as used, the edit of that address sets
// RequireUnused.
func (n NodePool) TakeOver(addrs []netip.Addr, from string, entry Entry) ([]EntryChange, error) {
	var edits []EntryChange
	for _, a := range addrs {
		now := n.Entries[a]
		if !now.OwnedBy(from) {
			continue
		}
		sameWorkload := func(e Entry) bool { return e.Purpose == entry.Purpose && e.Workload() == entry.Workload() }
		if b := n.entryBlocker(a, entry.Owner(), sameWorkload); b != nil {
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
		edits[i].RequireUnused = !n.InUse(e.Addr)
	}
	return edits, nil
}
