// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"net/netip"
	"slices"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/podutil"
)

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
func (v *view) releaseAll() Action {
	a, ok := v.release("")
	if why := v.blockerExcept(""); !ok && why != "" {
		return Action{At: v.Now.Add(lookAgain), Why: why}
	}
	return a
}

// withoutOwnMoves returns the state without the moves of the recorded addresses: these end with the FixedIP.
func (v *view) withoutOwnMoves() State {
	s := v.State
	s.Away = slices.DeleteFunc(slices.Clone(s.Away), func(m ledger.RemoteAddresses) bool {
		return slices.ContainsFunc(m.Addrs, func(x netip.Addr) bool { return slices.Contains(v.spec.IPs, x.String()) })
	})
	return s
}

// staleMove releases the target of a move whose pod is gone: a move that was only prepared binds no one, and the next
// pod may go elsewhere or never come.
func (v *view) staleMove() (a Action, ok bool) {
	if v.Pod != nil {
		return Action{}, false
	}
	for _, h := range v.Arriving {
		if prepared := slices.DeleteFunc(slices.Clone(h.Addrs), func(a netip.Addr) bool { return !holds(v.Held, a) }); len(prepared) > 0 {
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
func (v *view) unexpected() (a Action, ok bool) {
	waits := v.Pod != nil && !identity.OptsOut(v.Pod.Annotations)
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
func (v *view) replaced() bool {
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
