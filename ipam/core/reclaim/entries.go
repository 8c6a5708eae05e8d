// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Precedes reports whether a takes precedence over b for an address that both name: the FixedIP whose entry exists comes
// first, or else the older one, or else the first by name. holds reports whether the address has an entry of the
// FixedIP's pod. Two FixedIPs that name one address are a conflict that a user has caused; the one without precedence
// waits.
func Precedes(a, b *v1alpha1.FixedIP, holds func(*v1alpha1.FixedIP) bool) bool {
	if x, y := holds(a), holds(b); x != y {
		return x
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Namespace+"/"+a.Name < b.Namespace+"/"+b.Name
}

// allocation returns the recorded addresses that need an entry, and their home node: all of them, or none and the blocker.
// If only one family got its entry, a scheduler would claim any address of the other family. An Unreserved entry does not
// count as the entry of an address.
func allocation(s State) (node string, addrs []netip.Addr, blocker *pool.Blocker) {
	for _, h := range s.Homes {
		if holds(s.Held, h.Addr) && (h.Entry == nil || !h.Entry.IsUnreserved()) {
			continue
		}
		if b := blockerAt(s, h); b != nil {
			return "", nil, b
		}
		if node != "" && node != h.Node {
			return "", nil, &pool.Blocker{Addr: h.Addr, Node: h.Node, Reason: pool.AddressesOnDifferentNodes, Who: node, Requester: ownerOf(s)}
		}
		node, addrs = h.Node, append(addrs, h.Addr)
	}
	return node, addrs, nil
}

// blockerAt returns the reason why the entry of an address can't be written at its home now; nil: there is none.
func blockerAt(s State, h AddressHome) *pool.Blocker {
	owner := ownerOf(s)
	switch {
	case h.Node == "":
		return &pool.Blocker{Addr: h.Addr, Reason: pool.SubnetNotFound, Requester: owner}
	case h.ConflictingFixedIP != "":
		return &pool.Blocker{Addr: h.Addr, Node: h.Node, Reason: pool.ReservedByOtherFixedIP, Who: h.ConflictingFixedIP, Requester: owner}
	case h.User != "":
		return &pool.Blocker{Addr: h.Addr, Node: h.Node, Reason: pool.InUseByPod, Who: h.User, Requester: owner}
	case h.Entry == nil && h.Blocker != nil:
		return h.Blocker
	case h.Entry == nil:
		return otherAddress(s, h)
	case h.Entry.Kind == pool.Cooldown && RunsOn(s.Pod, h.Node, h.Addr):
		// The agent assigned the address to the pod before it saw the Cooldown entry. The rule "withdrawn" writes the entry
		// of the pod once evidence from the agent shows that no other pod has the address.
		return otherAddress(s, h)
	case h.Entry.Kind == pool.Dynamic && h.Reported && RunsOn(s.Pod, h.Node, h.Addr):
		// Both the status of the pod and the report of the agent may date from before a reboot of the node, after which
		// another pod may have got the address (ADR 0025). They suffice for the first step: the rule "allocate" withdraws
		// the dynamic entry, and the rule "withdrawn" writes the entry of the pod once evidence from the agent shows that
		// no other pod has the address.
		return nil
	}
	return h.Entry.Blocker(h.Node, h.Addr, owner)
}

// otherAddress returns a Blocker if the pod has an entry of the same family at the home of the address, because a pool must
// not have two such entries for one pod. Otherwise it returns nil.
func otherAddress(s State, h AddressHome) *pool.Blocker {
	held, _ := heldOn(s.Held, h.Node)
	i := slices.IndexFunc(held.Addrs, func(a netip.Addr) bool { return address.Of(a) == address.Of(h.Addr) })
	if i < 0 {
		return nil
	}
	return &pool.Blocker{Addr: h.Addr, Node: h.Node, Reason: pool.OtherAddressAllocated, Who: held.Addrs[i].String(), Requester: ownerOf(s)}
}

// ownerOf returns the pod of the FixedIP as entries name it, "namespace/name".
func ownerOf(s State) string { return pool.OwnerKey(s.Record.Namespace, s.Record.Spec.PodName) }

// RunsOn reports whether the pod is bound to the node, is in phase Running with the address in its status, and is not being
// deleted.
func RunsOn(pod *corev1.Pod, node string, a netip.Addr) bool {
	return pod != nil && pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning && boundTo(pod) == node && podutil.RunsWith(pod, a)
}

// WithdrawEntries returns the edits that replace the dynamic entries of addresses that a pod runs with by Cooldown entries:
// all of them, or none and an error that matches pool.ErrTaken. The agent must report the addresses as used by owner,
// because the status of the pod may date from before a reboot of the node.
func WithdrawEntries(n pool.NodePool, addrs []netip.Addr, owner string, at time.Time) ([]pool.EntryChange, error) {
	var edits []pool.EntryChange
	for _, a := range addrs {
		e, exists := n.Entries[a]
		if user, used := n.Used[a]; !exists || e.Kind != pool.Dynamic || !used || user != owner {
			return nil, fmt.Errorf("IP %s on node %s has no dynamic entry, or the agent does not report it as used by pod %s: %w", a, n.Name, owner, pool.ErrTaken)
		}
		edits = append(edits, n.Set(a, pool.CooldownEntry("", at)))
	}
	return edits, nil
}

// AllocateEntries returns the edits that write the entries of recorded addresses in the pool of their home: all of them,
// or none and an error that matches pool.ErrTaken. own reports whether evidence shows that the pod itself runs with an
// address: then the edits may replace a Cooldown entry. Without evidence a Cooldown entry must stay, because the agent
// assigns by the owner of the entry alone, even if another pod has the address (Cilium fact 2).
func AllocateEntries(n pool.NodePool, addrs []netip.Addr, entry pool.Entry, own func(netip.Addr) bool) ([]pool.EntryChange, error) {
	var free []netip.Addr
	var edits []pool.EntryChange
	for _, a := range addrs {
		e := n.Entries[a]
		user, used := n.Used[a]
		switch {
		case e.IsUnreserved() && e.OwnedBy(entry.Owner()),
			// The condition above is for strict nodes: the Unreserved entry of the pod becomes the entry of its fixed
			// address.
			own(a) && e.Kind == pool.Cooldown && n.OtherAddressOf(entry.Owner(), addrs) == nil && (!used || user == entry.Owner()):
			edits = append(edits, n.Set(a, entry))
		default:
			free = append(free, a)
		}
	}
	if len(free) == 0 {
		return edits, nil
	}
	claimed, err := n.Claim(free, entry)
	if err != nil {
		return nil, err
	}
	return append(edits, claimed...), nil
}

// release returns the next action that removes the identity's entries from every node except keepNode (if it is not
// empty), and the targets of moves that the pod does not rely on. ok is false if no such action is left. Blocked
// entries stay.
//
// A moved address is released first on the node that it was moved to. Then its entry at the home is marked as leaving
// (MarkLeaving), Cooldown entries fence the other node (FenceTarget), and only then is the entry at the home released
// (ReleaseHome). The fence makes the write of a scheduler that is about to complete the move fail. One watch shows all
// pools in the order of their writes: if it shows a leaving entry together with the fence, the fence is still there when
// the home is written. While the agent of the other node reports the address as used, the pod may run there, and the
// agent of the home does not know that: the entry at the home stays, at most until the FixedIP is overdue.
func (s State) release(keepNode string) (a Action, ok bool) {
	for _, h := range s.Held {
		if h.Node != keepNode && s.blocker(h.Addrs) == "" {
			a := Action{Type: ReleaseEntries, Node: h.Node}
			if s.Slot {
				a.Addrs = h.Addrs
			}
			return a, true
		}
	}
	for _, h := range s.MoveTargets {
		switch {
		case h.Node != boundTo(s.Pod):
			return Action{Type: ReleaseEntries, Node: h.Node}, true
		case RunsWithout(s.Pod, h.Addrs):
			return Action{Type: ReleaseEntries, Node: h.Node, Addrs: h.Addrs}, true
		}
		// A pod that does not run yet may still get the address that the move prepared.
	}
	remaining, _ := heldOn(s.Held, keepNode)
	for _, m := range s.Moved {
		switch {
		case m.At == keepNode && !slices.ContainsFunc(m.Addrs, func(x netip.Addr) bool { return !slices.Contains(remaining.Addrs, x) }):
		case !m.Leaving:
			return Action{Type: MarkLeaving, Node: m.Home, From: m.At, Addrs: m.Addrs}, true
		case !m.Fenced:
			return Action{Type: FenceTarget, Node: m.At, Addrs: m.Addrs}, true
		case m.Used && !Overdue(s):
			return Action{At: s.Now.Add(recheckInterval)}, true
		default:
			return Action{Type: ReleaseHome, Node: m.Home, From: m.At, Addrs: m.Addrs, Generation: m.Generation}, true
		}
	}
	return Action{}, false
}

// releaseAll returns the next action that releases all entries of an identity without a FixedIP. If only blocked entries
// remain, it returns Nothing with the message and the time of the next decision.
func (v *evaluation) releaseAll() Action {
	a, ok := v.release("")
	if why := v.blockerExcept(""); !ok && why != "" {
		return Action{At: v.Now.Add(recheckInterval), Why: why}
	}
	return a
}

// withoutOwnMoves returns the state without the Moved entries of the recorded addresses: these remain as long as the FixedIP
// exists.
func (v *evaluation) withoutOwnMoves() State {
	s := v.State
	s.Moved = slices.DeleteFunc(slices.Clone(s.Moved), func(m ledger.RemoteAddresses) bool {
		return slices.ContainsFunc(m.Addrs, func(x netip.Addr) bool { return slices.Contains(v.spec.IPs, x.String()) })
	})
	return s
}

// staleMove returns the release of the target of a move that was only prepared and whose pod does not exist: the next pod may
// be bound to another node, or never be created. The target is released if the addresses still have their entries, or if there
// is no FixedIP and nothing else is left of the claim, because its CiliumNode was deleted.
func (v *evaluation) staleMove() (a Action, ok bool) {
	if v.Pod != nil {
		return Action{}, false
	}
	for _, h := range v.MoveTargets {
		left := v.Record == nil && len(v.Held)+len(v.Moved) == 0
		if prepared := slices.DeleteFunc(slices.Clone(h.Addrs), func(a netip.Addr) bool { return !left && !holds(v.Held, a) }); len(prepared) > 0 {
			return Action{Type: ReleaseEntries, Node: h.Node, Addrs: prepared}, true
		}
	}
	return Action{}, false
}

// unexpected returns the release of entries for addresses other than the recorded ones: the entries of a claim whose pod was
// deleted before it ran, or of an adoption whose pod was deleted in the meantime. Without the release the next pod would get
// the other addresses. ok is false if no such entry can be released.
//
// A bound pod may rely on such entries: see the rule "unused entries". So may a waiting pod under Reassign. Under the other
// policies the scheduler places a waiting pod on the node that has entries for the recorded addresses, if there is one.
// Entries on other nodes stay then; after the pod is bound, the rule "superseded" releases them. But if the scheduler has found
// no node for the pod, no claim is in flight, and the pod may wait forever, for example because its volume is on the node of
// the other entries: they are released at once. A pod that is not bound and opts out is ignored.
func (v *evaluation) unexpected() (a Action, ok bool) {
	waits := v.Pod != nil && !identity.OptsOut(v.Pod)
	if v.node != "" || waits && v.failover() == v1alpha1.Reassign {
		return Action{}, false
	}
	recorded := func(addrs []netip.Addr) bool { return containsAll(addrs, v.spec.IPs) }
	allocated := slices.ContainsFunc(v.Held, func(h ledger.NodeAddresses) bool { return recorded(h.Addrs) }) ||
		slices.ContainsFunc(v.Moved, func(m ledger.RemoteAddresses) bool { return recorded(m.Addrs) })
	for _, h := range v.Held {
		extra := address.Additional(h.Addrs, v.spec.IPs)
		if len(extra) > 0 && v.blocker(extra) == "" && (!waits || !allocated || recorded(h.Addrs) || podutil.IsUnschedulable(v.Pod)) {
			return Action{Type: ReleaseEntries, Node: h.Node, Addrs: extra}, true
		}
	}
	return Action{}, false
}

// replaced reports whether the node of the pod has, for each recorded address, an entry for another address of its family
// instead, and the pod runs with none of the recorded addresses.
func (v *evaluation) replaced() bool {
	if !v.isHeld || len(v.Record.Spec.IPs) == 0 {
		return false
	}
	for _, ip := range v.Record.Spec.IPs {
		a, err := address.Parse(ip)
		if err != nil || slices.Contains(v.held.Addrs, a) || podutil.RunsWith(v.Pod, a) ||
			!slices.ContainsFunc(v.held.Addrs, func(other netip.Addr) bool { return address.Of(other) == address.Of(a) }) {
			return false
		}
	}
	return true
}

// blocker returns the message of the first ReleaseBlocker for one of the addresses; empty if all may be released.
func (s State) blocker(addrs []netip.Addr) string {
	i := slices.IndexFunc(s.Blockers, func(b ReleaseBlocker) bool { return slices.Contains(addrs, b.Addr) })
	if i < 0 {
		return ""
	}
	return s.Blockers[i].Why
}

// blockerExcept returns the result of blocker for the addresses in Held on the nodes other than keepNode.
func (s State) blockerExcept(keepNode string) string {
	for _, h := range s.Held {
		if why := s.blocker(h.Addrs); h.Node != keepNode && why != "" {
			return why
		}
	}
	return ""
}
