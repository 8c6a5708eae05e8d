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

// Precedes reports which of two FixedIPs that name the same address has it: the one whose entry exists, or else the
// older one. Two such FixedIPs are a user's mistake, and one of them has to wait.
func Precedes(a, b *v1alpha1.FixedIP, holds func(*v1alpha1.FixedIP) bool) bool {
	if x, y := holds(a), holds(b); x != y {
		return x
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Namespace+"/"+a.Name < b.Namespace+"/"+b.Name
}

// allocation returns where the recorded addresses that have no entry in any pool get one: all of them, or none. A
// scheduler would complete what a pod holds in one family with any address of the other. blocker is the obstacle, if
// there is one.
func allocation(s State) (node string, addrs []netip.Addr, blocker *pool.Blocker) {
	for _, h := range s.Homes {
		if holds(s.Held, h.Addr) && (h.Entry == nil || !h.Entry.IsUnreserved()) {
			continue
		}
		if b := blockerAt(s, h); b != nil {
			return "", nil, b
		}
		if node != "" && node != h.Node {
			return "", nil, &pool.Blocker{Addr: h.Addr, Node: h.Node, Reason: pool.AddressesOnDifferentNodes, Who: node, Asks: ownerOf(s)}
		}
		node, addrs = h.Node, append(addrs, h.Addr)
	}
	return node, addrs, nil
}

// blockerAt returns why the entry of an address cannot be written at its home; nil: it can.
func blockerAt(s State, h AddressHome) *pool.Blocker {
	owner := ownerOf(s)
	switch {
	case h.Node == "":
		return &pool.Blocker{Addr: h.Addr, Reason: pool.SubnetNotFound, Asks: owner}
	case h.ConflictingFixedIP != "":
		return &pool.Blocker{Addr: h.Addr, Node: h.Node, Reason: pool.ReservedByOtherFixedIP, Who: h.ConflictingFixedIP, Asks: owner}
	case h.User != "":
		return &pool.Blocker{Addr: h.Addr, Node: h.Node, Reason: pool.InUseByPod, Who: h.User, Asks: owner}
	case h.Entry == nil:
		return otherAddress(s, h)
	case h.Entry.Kind == pool.Cooldown && RunsOn(s.Pod, h.Node, h.Addr):
		// The address was released, and the pod has it from an agent that did not know yet: no other pod can.
		return otherAddress(s, h)
	case h.Entry.Kind == pool.Dynamic && h.Reported && RunsOn(s.Pod, h.Node, h.Addr):
		// The pod itself has the address: no other pod can. Its status alone may be from before a reboot of the node.
		return nil
	}
	return h.Entry.Blocker(h.Node, h.Addr, owner)
}

// otherAddress returns the Blocker if the pod has another address of the family at the same home: a pool never gives
// two to one pod.
func otherAddress(s State, h AddressHome) *pool.Blocker {
	held, _ := heldOn(s.Held, h.Node)
	i := slices.IndexFunc(held.Addrs, func(a netip.Addr) bool { return address.Of(a) == address.Of(h.Addr) })
	if i < 0 {
		return nil
	}
	return &pool.Blocker{Addr: h.Addr, Node: h.Node, Reason: pool.OtherAddressAllocated, Who: held.Addrs[i].String(), Asks: ownerOf(s)}
}

// ownerOf returns the pod of the FixedIP as entries name it.
func ownerOf(s State) string { return pool.OwnerKey(s.Record.Namespace, s.Record.Spec.PodName) }

// RunsOn reports whether a pod runs on a node with an address and is not being deleted.
func RunsOn(pod *corev1.Pod, node string, a netip.Addr) bool {
	return pod != nil && pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning && boundTo(pod) == node && podutil.RunsWith(pod, a)
}

// WithdrawEntries returns the edits that put addresses that a pod runs with, and that the pool offers to all pods, into a
// cooldown: all of them, or none and an error that matches pool.ErrTaken. The agent has to list them for the pod: its
// status may be from before a reboot of the node.
func WithdrawEntries(n pool.NodePool, addrs []netip.Addr, owner string, at time.Time) ([]pool.EntryChange, error) {
	var edits []pool.EntryChange
	for _, a := range addrs {
		e, exists := n.Entries[a]
		if user, used := n.Used[a]; !exists || e.Kind != pool.Dynamic || !used || user != owner {
			return nil, fmt.Errorf("address %s of node %s is not offered to all pods, or the agent does not list it for %s: %w", a, n.Name, owner, pool.ErrTaken)
		}
		edits = append(edits, n.Set(a, pool.CooldownEntry("", at)))
	}
	return edits, nil
}

// AllocateEntries returns the edits that give a pod its recorded addresses in the pool of their home: all of them, or
// none and an error that matches pool.ErrTaken. own reports whether the pod itself runs with an address, and whether that
// is proved: its entry may then be in its cooldown. The agent looks at the owner of an entry alone, and would give the
// address to the pod also if another one has it (Cilium fact 2).
func AllocateEntries(n pool.NodePool, addrs []netip.Addr, entry pool.Entry, own func(netip.Addr) bool) ([]pool.EntryChange, error) {
	var free []netip.Addr
	var edits []pool.EntryChange
	for _, a := range addrs {
		e := n.Entries[a]
		user, used := n.Used[a]
		switch {
		case e.IsUnreserved() && e.OwnedBy(entry.Owner),
			// On a strict node it was written for as long as the pod exists.
			own(a) && e.Kind == pool.Cooldown && n.OtherAddressOf(entry.Owner, addrs) == nil && (!used || user == entry.Owner):
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

// release returns the next action that removes the identity's entries from every node except keepNode, which may be
// empty, and the targets of moves that its pod does not rely on. ok is false if there is none.
//
// A moved address is released where it is first. Then its home says that it leaves (MarkLeaving), its way there is fenced
// (FenceTarget), and only then may it be released at home: a scheduler that is about to bring it there fails. One watch
// shows all pools in the order of their writes, so that what is seen fenced while the home says that it leaves stays
// so until the home is written. As long as the agent there reports the address, its pod may run there, of which the
// agent at home knows nothing: the address stays. Blocked entries stay too.
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
	for _, h := range s.Arriving {
		switch {
		case h.Node != boundTo(s.Pod):
			return Action{Type: ReleaseEntries, Node: h.Node}, true
		case RunsWithout(s.Pod, h.Addrs):
			return Action{Type: ReleaseEntries, Node: h.Node, Addrs: h.Addrs}, true
		}
		// A pod that does not run yet may come to have what the move prepared.
	}
	kept, _ := heldOn(s.Held, keepNode)
	for _, m := range s.Away {
		switch {
		case m.At == keepNode && !slices.ContainsFunc(m.Addrs, func(x netip.Addr) bool { return !slices.Contains(kept.Addrs, x) }):
		case !m.Leaving:
			return Action{Type: MarkLeaving, Node: m.Home, From: m.At, Addrs: m.Addrs}, true
		case !m.Barred:
			return Action{Type: FenceTarget, Node: m.At, Addrs: m.Addrs}, true
		case m.Listed && !Overdue(s):
			return Action{At: s.Now.Add(lookAgain)}, true
		default:
			return Action{Type: ReleaseHome, Node: m.Home, From: m.At, Addrs: m.Addrs, Generation: m.Generation}, true
		}
	}
	return Action{}, false
}

// releaseAll returns the next action that takes everything from an identity without a FixedIP.
func (v *evaluation) releaseAll() Action {
	a, ok := v.release("")
	if why := v.blockerExcept(""); !ok && why != "" {
		return Action{At: v.Now.Add(lookAgain), Why: why}
	}
	return a
}

// withoutOwnMoves returns the state without the moves of the recorded addresses: these end with the FixedIP.
func (v *evaluation) withoutOwnMoves() State {
	s := v.State
	s.Away = slices.DeleteFunc(slices.Clone(s.Away), func(m ledger.RemoteAddresses) bool {
		return slices.ContainsFunc(m.Addrs, func(x netip.Addr) bool { return slices.Contains(v.spec.IPs, x.String()) })
	})
	return s
}

// staleMove releases the target of a move whose pod is gone: a move that was only prepared binds no one, and the next
// pod may go elsewhere or never come. A claim without a FixedIP may have been lost with its node, and only the target be
// left.
func (v *evaluation) staleMove() (a Action, ok bool) {
	if v.Pod != nil {
		return Action{}, false
	}
	for _, h := range v.Arriving {
		left := v.Record == nil && len(v.Held)+len(v.Away) == 0
		if prepared := slices.DeleteFunc(slices.Clone(h.Addrs), func(a netip.Addr) bool { return !left && !holds(v.Held, a) }); len(prepared) > 0 {
			return Action{Type: ReleaseEntries, Node: h.Node, Addrs: prepared}, true
		}
	}
	return Action{}, false
}

// unexpected releases entries that stand in place of the recorded addresses: a claim whose pod was deleted before it
// ran, or an adoption for a pod that was deleted meanwhile. The next pod would get them.
//
// A bound pod relies on them: see the rule "beside". A pod that waits is placed by the recorded addresses if they are
// held elsewhere, except under Reassign; once it is bound there, the rule "superseded" releases the rest. A pod that
// opts out gets nothing of all this.
func (v *evaluation) unexpected() (a Action, ok bool) {
	waits := v.Pod != nil && !identity.OptsOut(v.Pod)
	if v.node != "" || waits && v.failover() == v1alpha1.Reassign {
		return Action{}, false
	}
	recorded := func(addrs []netip.Addr) bool { return containsAll(addrs, v.spec.IPs) }
	elsewhere := slices.ContainsFunc(v.Held, func(h ledger.NodeAddresses) bool { return recorded(h.Addrs) }) ||
		slices.ContainsFunc(v.Away, func(m ledger.RemoteAddresses) bool { return recorded(m.Addrs) })
	for _, h := range v.Held {
		beside := address.Besides(h.Addrs, v.spec.IPs)
		if len(beside) > 0 && v.blocker(beside) == "" && (!waits || !elsewhere || recorded(h.Addrs)) {
			return Action{Type: ReleaseEntries, Node: h.Node, Addrs: beside}, true
		}
	}
	return Action{}, false
}

// replaced reports whether the pod holds, on its node, other addresses than the recorded ones in each of their
// families, and runs with none of the recorded ones.
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

// blocker returns why one of the addresses must not be released; empty: all may be.
func (s State) blocker(addrs []netip.Addr) string {
	i := slices.IndexFunc(s.Blockers, func(b ReleaseBlocker) bool { return slices.Contains(addrs, b.Addr) })
	if i < 0 {
		return ""
	}
	return s.Blockers[i].Why
}

// blockerExcept is blocker for everything that the identity holds on other nodes than keepNode.
func (s State) blockerExcept(keepNode string) string {
	for _, h := range s.Held {
		if why := s.blocker(h.Addrs); h.Node != keepNode && why != "" {
			return why
		}
	}
	return ""
}
