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
	// ErrOldPodRunning means that the former pod of the addresses may still run with them.
	ErrOldPodRunning = errors.New("the former pod may still use the address")
	// ErrUndecided means that a step of a move is not possible: a pool, usually that of the home, lacks the entry that the step
	// relies on, or the addresses no longer have the home that the move began with.
	ErrUndecided = errors.New("the move cannot continue")
)

// Move moves the addresses of one pod from the pool of one node to that of another. The pool of the home node decides about
// an address even if another pool carries it, so one patch of that pool decides the move; the other two pools follow. The
// steps, each of which is one write to one pool:
//
//	PrepareTarget     at To, if Home is another node: no entry -> MoveTarget. From then on every reader knows where the
//	                  address may go.
//	MarkLeaving       at Home, if From is another node: Moved to From -> Moved to From and leaving.
//	VacateSource      at From, if Home is another node: Owned, MoveTarget or no entry -> Cooldown.
//	CommitAtHome      at Home: Owned, Cooldown or no entry (if From is Home), otherwise Moved to From and leaving
//	                  -> Moved to To, or Owned if To is Home.
//	CompleteAtTarget  at To, if Home is another node: MoveTarget -> Owned, after the entry at Home was seen as Moved to To.
//
// No step makes an address allocatable in a pool while it may be allocatable in another pool. CompleteAtTarget requires that
// the pool of To is unchanged since before the entry at Home was seen as Moved to To (CheckCommitted). CheckCommitted refuses
// an entry that MarkLeaving has marked as leaving, and VacateSource changes the pool of From, so that after both steps no
// writer can complete a move to From. If From is neither Home nor To, CommitAtHome requires that the pool of Home is unchanged
// since before VacateSource was confirmed.
//
// Each step is idempotent. After a crash at any point the next writer that moves the pod continues from the state of the
// pools, to the same node or to another: a MoveTarget entry does not commit the pod to that node. A step that is not
// possible returns no edits and an error: a Blocker, or an error that matches ErrUndecided or ErrOldPodRunning.
type Move struct {
	// Owner is the pod, "namespace/name". Entry is the Owned entry that its addresses have in the pool that carries them.
	Owner string
	Entry Entry
	// Addrs are the addresses, at most one of each family. All have the same home.
	Addrs []netip.Addr
	// Home is the home node of the addresses, From the node whose pool has them now, To the node that gets them. From and To are
	// equal in two cases: the writer completes a move to To that was interrupted after CommitAtHome, or cancels a move away from
	// To that was interrupted after MarkLeaving.
	Home, From, To string
	// Down is true if From is a fenced node: no pod runs there, whatever its agent reported last. If Down is false,
	// evidence from the agent shows that the former pod has stopped (see package agentview).
	Down bool
}

// inUse returns an error that matches ErrOldPodRunning if the agent of From, whose pool is n, reports the address as used.
// It returns nil if From is down.
func (m Move) inUse(n NodePool, a netip.Addr) error {
	if !m.Down && n.InUse(a) {
		return fmt.Errorf("the Cilium agent of node %s still reports IP %s as used: %w", n.Name, a, ErrOldPodRunning)
	}
	return nil
}

// PrepareTarget returns the edits of n, the pool of To, that announce the addresses there. To must not be the home. The
// error is the Blocker that Carries returns.
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

// MarkLeaving returns the edits of n, the pool of the home, that announce that the addresses leave From. From must not be
// the home. To is not used. The error matches ErrUndecided.
func (m Move) MarkLeaving(n NodePool) ([]EntryChange, error) {
	var edits []EntryChange
	for _, a := range m.Addrs {
		switch n.Entries[a] {
		case LeavingEntry(m.From, m.Owner):
		case MovedEntry(m.From, m.Owner):
			edits = append(edits, n.Set(a, LeavingEntry(m.From, m.Owner)))
		default:
			return nil, n.undecided(a, m.Owner, "moved to node "+m.From)
		}
	}
	return edits, nil
}

// undecided returns an error that matches ErrUndecided: the entry of a in n is not the one that a step of the move of owner
// relies on. want describes the expected entry.
func (n NodePool) undecided(a netip.Addr, owner, want string) error {
	return fmt.Errorf("the entry of IP %s on node %s is %s, not %s as expected: %w", a, n.Name, n.describe(a, owner), want, ErrUndecided)
}

// describe returns the text for the entry of an address of the owner. The text does not name another pod, which may be in
// another namespace.
func (n NodePool) describe(a netip.Addr, owner string) string {
	e, exists := n.Entries[a]
	switch {
	case !exists:
		return "missing"
	case e.Kind == Moved && e.Pod() != owner:
		return "moved for another pod"
	case e.Kind == Moved && e.Leaving:
		return "leaving node " + e.Node()
	case e.Kind == Moved:
		return "moved to node " + e.Node()
	}
	return e.Kind.String()
}

// notHome returns the error, which matches ErrUndecided, of a step for an address that is in no subnet of n.
func (n NodePool) notHome(a netip.Addr) error {
	return fmt.Errorf("IP %s is no longer in the subnets of node %s (%s): %w", a, n.Name, JoinSubnets(n.PodCIDRs), ErrUndecided)
}

// VacateSource returns the edits of n, the pool of From, that replace the pod's entries by Cooldown entries. From must not
// be the home. An address without an entry gets a Cooldown entry too, so that a writer that is about to complete a move to
// From finds the pool changed. An existing Cooldown entry stays. at is the time at which the new cooldowns begin. The error
// matches ErrOldPodRunning if the former pod may still use an address, and is a Blocker if an address has any other entry.
func (m Move) VacateSource(n NodePool, at time.Time) ([]EntryChange, error) {
	var edits []EntryChange
	for _, a := range m.Addrs {
		now, exists := n.Entries[a]
		// The former pod may still run with the address even if the address cools down: Release does not check for use.
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
		edit.RequireUnused = had && !m.Down
		edits = append(edits, edit)
	}
	return edits, nil
}

// CommitAtHome returns the edits of n, the pool of the home, that decide the move. If From is neither the home nor To, write
// them only if the whole spec of the home's CiliumNode is unchanged since before VacateSource was confirmed. The error is a
// Blocker, or matches ErrUndecided or ErrOldPodRunning.
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
			return nil, n.notHome(a)
		case edit.From != nil && (now == to || m.To == m.Home && now.OwnedBy(m.Owner)):
			continue
		case m.From != m.Home && now != LeavingEntry(m.From, m.Owner):
			return nil, n.undecided(a, m.Owner, "leaving node "+m.From)
		case m.From == m.Home:
			mayMove := func(e Entry) bool { return e.Kind == Cooldown }
			if b := n.entryBlocker(a, m.Owner, mayMove); b != nil {
				return nil, b
			}
			if user, used := n.Used[a]; used && user != m.Owner {
				return nil, &Blocker{Addr: a, Node: n.Name, Reason: InUseByPod, Who: user, Requester: m.Owner}
			}
			if err := m.inUse(n, a); err != nil {
				return nil, err
			}
			// Unless the node is down, the agent must still not report the address as used when the edit is written.
			edit.RequireUnused = !m.Down
		}
		edits = append(edits, edit)
	}
	return edits, nil
}

// CheckCommitted returns an error that matches ErrUndecided unless all addresses are in subnets of the home and have entries
// there that are Moved to To.
func (m Move) CheckCommitted(home NodePool) error {
	for _, a := range m.Addrs {
		switch {
		case !home.Home(a):
			return home.notHome(a)
		case home.Entries[a] != MovedEntry(m.To, m.Owner):
			return home.undecided(a, m.Owner, "moved to node "+m.To)
		}
	}
	return nil
}

// CompleteAtTarget returns the edits of n, the pool of To, that replace the MoveTarget entries by Entry. To must not be the
// home. Write them only if the whole spec of the CiliumNode of To is unchanged since before the home was read for
// CheckCommitted. The error is the Blocker that Carries returns, or matches ErrUndecided.
func (m Move) CompleteAtTarget(n NodePool) ([]EntryChange, error) {
	if b := n.Carries(m.Owner, m.Addrs); b != nil {
		return nil, b
	}
	var edits []EntryChange
	for _, a := range m.Addrs {
		now, exists := n.Entries[a]
		if !exists {
			return nil, n.undecided(a, m.Owner, MoveTarget.String())
		}
		if !now.OwnedBy(m.Owner) {
			edits = append(edits, n.Set(a, m.Entry))
		}
	}
	return edits, nil
}

// Carries returns the reason why this pool can't carry addresses that belong to the owner and have another home node; nil if
// the pool can, or carries them already. An address that is in its cooldown in this pool is refused: its former pod may
// still use the address on this node.
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

// FenceTarget returns the edits that write Cooldown entries for an owner's addresses in the pool of the node that they
// were moved to, whether or not they have arrived. A writer that is about to complete the move then finds the pool
// changed. Entries of other owners are not changed.
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

// ReturnHome returns the edits that write a Cooldown entry for each of addrs whose entry in n is LeavingEntry(from, owner). n
// is the pool of the home node. Other entries are not changed. Call ReturnHome only after the move to the node named by from
// was fenced: the pool of that node has the Cooldown entries of FenceTarget, or that node has no CiliumNode. Write the edits
// only if the whole spec of the home node's CiliumNode has not changed since before the fence was observed.
func (n NodePool) ReturnHome(owner, from string, addrs []netip.Addr, at time.Time) []EntryChange {
	var edits []EntryChange
	for _, a := range addrs {
		if n.Entries[a] == LeavingEntry(from, owner) {
			edits = append(edits, n.Set(a, CooldownEntry("", at)))
		}
	}
	return edits
}
