// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

var (
	// ErrUnfenced means that the pod that had the addresses may still run with them.
	ErrUnfenced = errors.New("its old pod may still run")
	// ErrUndecided means that the home of the addresses does not have the entry that the step of a move relies on.
	ErrUndecided = errors.New("the home of the address says otherwise")
)

// Move moves the addresses of one pod from the pool of one node to that of another. The home of an address decides over it,
// wherever its entry is, so that one patch there decides the move; the other two pools follow. The steps, each one write to
// one pool:
//
//	PrepareTarget     at To: no entry -> MoveTarget. From here on every reader knows where the address may go.
//	MarkLeaving       at Home, if that is not From: Moved to From -> leaving it.
//	VacateSource      at From, if that is not the home: Owned -> Cooldown.
//	CommitAtHome      at Home: Owned, or leaving From, -> Moved to To; or Owned, if To is the home.
//	CompleteAtTarget  at To: MoveTarget -> Owned, after Home was seen to say that the address is there.
//
// No step makes an address allocatable in a pool while it may be in another. CompleteAtTarget needs a pool that is
// unchanged since before the home was seen to say "moved here". MarkLeaving ends that for From, and VacateSource changes
// that pool, so that after both no writer can complete a move to From. CommitAtHome needs a home that is unchanged since
// before that VacateSource was confirmed.
//
// Each step is idempotent. After a crash anywhere the next writer that moves the pod continues from what the pools say, to
// the same node or to another: a MoveTarget entry binds no pod.
type Move struct {
	// Owner is the pod as entries name it, and Entry the one that gives it an address.
	Owner string
	Entry Entry
	// Addrs are at most one of each family, all with one home.
	Addrs []netip.Addr
	// Home is the node whose subnets have the addresses, From the node whose pool has them now, To the one that gets them.
	// From and To are the same if a move that was interrupted after CommitAtHome is completed.
	Home, From, To string
	// Down means that From was deleted, or tainted out-of-service: no pod runs there, whatever its agent reported last.
	// Otherwise the agent has confirmed that the former pod stopped (see package agentview).
	Down bool
}

// inUse returns an error if the agent of From reports an address as in use.
func (m Move) inUse(n NodePool, a netip.Addr) error {
	if !m.Down && n.InUse(a) {
		return fmt.Errorf("%s is listed as used on node %s: %w", a, n.Name, ErrUnfenced)
	}
	return nil
}

// PrepareTarget returns the edits at To, which is not the home.
func (m Move) PrepareTarget(n NodePool) ([]EntryChange, error) {
	if b := n.Carries(m.Owner, m.Addrs); b != nil {
		return nil, b
	}
	var edits []EntryChange
	for _, a := range m.Addrs {
		if _, exists := n.Entries[a]; !exists {
			edits = append(edits, n.Set(a, MoveTargetEntry(m.Owner)))
		}
	}
	return edits, nil
}

// MarkLeaving returns the edits at the home, if that is not From, that announce that the addresses leave From. To need not
// be known.
func (m Move) MarkLeaving(n NodePool) ([]EntryChange, error) {
	var edits []EntryChange
	for _, a := range m.Addrs {
		switch n.Entries[a] {
		case LeavingEntry(m.From, m.Owner):
		case MovedEntry(m.From, m.Owner):
			edits = append(edits, n.Set(a, LeavingEntry(m.From, m.Owner)))
		default:
			return nil, n.undecided(a, "moved to node "+m.From)
		}
	}
	return edits, nil
}

// undecided is the error of a step that relies on the home of an address having another entry than it has.
func (n NodePool) undecided(a netip.Addr, want string) error {
	return fmt.Errorf("the entry of IP %s on node %s is %s and not %s: %w", a, n.Name, n.describe(a), want, ErrUndecided)
}

func (n NodePool) describe(a netip.Addr) string {
	e, exists := n.Entries[a]
	switch {
	case !exists:
		return "missing"
	case e.Kind == Moved && e.Leaving:
		return "leaving node " + e.Node
	case e.Kind == Moved:
		return "moved to node " + e.Node
	}
	return e.Kind.String()
}

// VacateSource returns the edits at From, if that is not the home. An address that has no entry there gets the Cooldown entry
// too: a writer that is about to settle it there then finds the pool changed.
func (m Move) VacateSource(n NodePool, at time.Time) ([]EntryChange, error) {
	var edits []EntryChange
	for _, a := range m.Addrs {
		now, exists := n.Entries[a]
		// A pod that had the address here may still run, even if the address cools down: the writer that released it did
		// not check.
		had := now.OwnedBy(m.Owner) || now.CoolsDownFrom(m.Owner)
		if err := m.inUse(n, a); had && err != nil {
			return nil, err
		}
		switch {
		case now.Kind == Cooldown:
			continue
		case exists && !had && now != MoveTargetEntry(m.Owner):
			return nil, now.Blocker(n.Name, a, m.Owner)
		}
		edit := n.Set(a, CooldownEntry("", at))
		edit.Unlisted = had && !m.Down
		edits = append(edits, edit)
	}
	return edits, nil
}

// CommitAtHome returns the edits at the home. It decides the move. If From is not the home, write them only
// if the home is unchanged as a whole since before From was seen to be left.
func (m Move) CommitAtHome(n NodePool) ([]EntryChange, error) {
	to := MovedEntry(m.To, m.Owner)
	if m.To == m.Home {
		to = m.Entry
		if b := n.OtherAddressOf(m.Owner, m.Addrs); b != nil {
			return nil, b
		}
	}
	var edits []EntryChange
	for _, a := range m.Addrs {
		now := n.Entries[a]
		edit := n.Set(a, to)
		switch {
		case !n.Home(a):
			return nil, fmt.Errorf("IP %s is no longer in a subnet of node %s (%s): %w", a, n.Name, JoinSubnets(n.PodCIDRs), ErrUndecided)
		case edit.From != nil && (now == to || m.To == m.Home && now.OwnedBy(m.Owner)):
			continue
		case m.From != m.Home && now != LeavingEntry(m.From, m.Owner):
			return nil, n.undecided(a, "leaving node "+m.From)
		case m.From == m.Home:
			mayMove := func(e Entry) bool { return e.Kind == Cooldown }
			if b := n.entryBlocker(a, m.Owner, mayMove); b != nil {
				return nil, b
			}
			if user, used := n.Used[a]; used && user != m.Owner {
				return nil, &Blocker{Addr: a, Node: n.Name, Reason: InUseByPod, Who: user, Asks: m.Owner}
			}
			if err := m.inUse(n, a); err != nil {
				return nil, err
			}
			// The agent must not report the address before the write either, unless the node is down: then the report is old.
			edit.Unlisted = !m.Down
		}
		edits = append(edits, edit)
	}
	return edits, nil
}

// IsCommitted returns an error unless the home says that the addresses are on To.
func (m Move) IsCommitted(home NodePool) error {
	for _, a := range m.Addrs {
		if !home.Home(a) || home.Entries[a] != MovedEntry(m.To, m.Owner) {
			return home.undecided(a, "moved to node "+m.To)
		}
	}
	return nil
}

// CompleteAtTarget returns the edits at To, which is not the home. Write them only if the pool is unchanged
// as a whole since before the home was seen to say that the move is decided (IsCommitted).
func (m Move) CompleteAtTarget(n NodePool) ([]EntryChange, error) {
	if b := n.Carries(m.Owner, m.Addrs); b != nil {
		return nil, b
	}
	var edits []EntryChange
	for _, a := range m.Addrs {
		now, exists := n.Entries[a]
		if !exists {
			return nil, n.undecided(a, MoveTarget.String())
		}
		if !now.OwnedBy(m.Owner) {
			edits = append(edits, n.Set(a, m.Entry))
		}
	}
	return edits, nil
}

// Carries returns why this pool can't have addresses of the owner whose home is another node; nil if it can, or has them.
// An address that cools down here was the owner's before, and its old pod may still have it.
func (n NodePool) Carries(owner string, addrs []netip.Addr) *Blocker {
	if b := n.OtherAddressOf(owner, addrs); b != nil {
		return b
	}
	arriving := func(e Entry) bool { return e == MoveTargetEntry(owner) }
	for _, a := range addrs {
		if b := n.entryBlocker(a, owner, arriving); b != nil {
			return b
		}
	}
	return nil
}

// FenceTarget returns the edits that put Cooldown entries on a node that an owner's addresses were moved to, whether or not they
// have arrived: a writer that is about to settle them there then finds the pool changed.
func (n NodePool) FenceTarget(owner string, addrs []netip.Addr, at time.Time) []EntryChange {
	var edits []EntryChange
	for _, a := range addrs {
		now, exists := n.Entries[a]
		if !exists || now.OwnedBy(owner) || now == MoveTargetEntry(owner) {
			edits = append(edits, n.Set(a, CooldownEntry("", at)))
		}
	}
	return edits
}

// ReturnHome returns the edits at the home that end the absence of an owner's addresses on another node: they cool down at
// home. An address that is not about to leave that node is not touched. Write the edits only if the home is unchanged as a
// whole since before the other node was seen to bar them.
func (n NodePool) ReturnHome(owner, from string, addrs []netip.Addr, at time.Time) []EntryChange {
	var edits []EntryChange
	for _, a := range addrs {
		if n.Entries[a] == LeavingEntry(from, owner) {
			edits = append(edits, n.Set(a, CooldownEntry("", at)))
		}
	}
	return edits
}
