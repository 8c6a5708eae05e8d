// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

// elsewhereRetry is how long a cooldown waits for another node that still has the address: no event of this node
// reports changes of another.
const elsewhereRetry = 10 * time.Second

// State is what the pool of one node is decided from, besides the pool itself.
type State struct {
	Now       time.Time
	Watermark Watermark
	CoolDown  time.Duration
	// Strict is true if the pool has owned entries only.
	Strict bool
	// Capacity is how many pods the node takes.
	Capacity int64
	// NotReady is true if the Node exists and is not ready, so that no report says what runs there. ReadySince is since
	// when it is ready; zero if that is not known, or if there is no Node.
	NotReady   bool
	ReadySince time.Time
	// Waiting are the owner keys of the pods that are bound to the node and have not reported an IP yet.
	Waiting []string
	// RestoreWithin is how long after its release an address is left for such a pod.
	RestoreWithin time.Duration
	// PodIPs are the IPs of the pods on the node by their statuses, which the agent may report later.
	PodIPs []netip.Addr
	// Pods are the pods of a strict node that have IPs or need some.
	Pods []PodAddresses
	// Held reports whether a pod on the node has an address, Reserved whether a FixedIP reserves it, and Elsewhere
	// whether the pool or the agent of another node still has an address whose home is this node.
	Held, Reserved, OnOtherNode func(netip.Addr) bool
	// Acknowledged reports whether the agent has reported since an address is in cooldown, and does not use it.
	Acknowledged func(n pool.NodePool, a netip.Addr) bool
	// Gone are the owners of unreserved entries that are not needed.
	Gone map[string]bool
	// Live is true if the pods were read from the API server.
	Live bool
	// Overdue are the addresses whose handshake the agent should have answered by now, and NextTimeout is when the next
	// answer becomes overdue; zero if there is none.
	Overdue     []netip.Addr
	NextTimeout time.Time
}

// Shortage is how many addresses the subnets of a node lack for one family, or for all on a strict node.
type Shortage struct {
	Family address.Family
	Count  int
}

// NeedsLive reports whether any edit requires that the pods are read from the API server first.
func (s *State) NeedsLive(edits []pool.EntryChange) bool {
	return slices.ContainsFunc(edits, relyOnPods) || len(s.Gone) > 0
}

// relyOnPods reports whether an edit would be wrong if a pod that the cache does not show had the address: it removes or
// assigns a dynamic entry, or ends a cooldown.
func relyOnPods(e pool.EntryChange) bool {
	removed := e.To == nil
	return e.From != nil && (e.From.Kind == pool.Cooldown && removed || e.From.Kind == pool.Dynamic && (removed || e.To.Kind != pool.NodeOwned))
}

// SafeEdits returns the edits that may be written: all of them only if the pods were read from the API server.
func (s *State) SafeEdits(n pool.NodePool) []pool.EntryChange {
	edits := s.Edits(n)
	if !s.Live {
		edits = slices.DeleteFunc(edits, relyOnPods)
	}
	return edits
}

// Edits returns all edits that the pool needs.
func (s *State) Edits(n pool.NodePool) []pool.EntryChange {
	edits, _ := s.ExpireCooldowns(n)
	if s.Live {
		for a := range StaleUnreserved(n, func(namespace, name string) bool { return !s.Gone[pool.OwnerKey(namespace, name)] }) {
			if !s.Held(a) {
				edits = append(edits, n.Set(a, pool.CooldownEntry("", s.Now)))
			}
		}
	}
	n = n.With(edits)
	for _, f := range address.Families {
		removed := RemoveReleased(n, f, s.watermark(n, f), s.Held, s.Reserved, s.overdue)
		edits, n = append(edits, removed...), n.With(removed)
	}
	first, _ := s.FirstEntries(n)
	return append(edits, first...)
}

// Marks returns the next marks of the release handshakes.
func (s *State) Marks(n pool.NodePool) []pool.HandshakeChange {
	var marks []pool.HandshakeChange
	for _, f := range address.Families {
		marks = append(marks, ReleaseExcess(n, f, s.watermark(n, f), s.Held, s.Reserved, s.overdue)...)
	}
	return marks
}

func (s *State) overdue(a netip.Addr) bool { return slices.Contains(s.Overdue, a) }

// FirstEntries returns the edits that add the entries that the pool lacks, and what the subnets have no room for. A new
// pool needs no other edits.
func (s *State) FirstEntries(n pool.NodePool) (edits []pool.EntryChange, shortages []Shortage) {
	if s.Strict {
		edits, short := Strict(n, s.Pods, s.Reserved)
		if short > 0 {
			shortages = []Shortage{{Count: short}}
		}
		return edits, shortages
	}
	n = s.withPodIPs(n)
	for _, f := range address.Families {
		if !n.HasFamily(f) {
			continue
		}
		added, short := FillDynamic(n, f, s.watermark(n, f), s.Reserved)
		edits = append(edits, added...)
		if short > 0 {
			shortages = append(shortages, Shortage{f, short})
		}
	}
	return edits, shortages
}

// watermark returns the watermark of one family.
func (s *State) watermark(n pool.NodePool, f address.Family) Watermark {
	if s.Strict {
		return NoDynamic
	}
	size := int64(0)
	for _, subnet := range n.Subnets {
		if address.Of(subnet.Addr()) == f {
			size += min(address.Size(subnet), math.MaxInt32)
		}
	}
	w := s.Watermark.ForNode(s.Capacity, size)
	// If more pods start at once than the watermark has room for, the agent reports them only after it has assigned what
	// there is, up to 15 s later, and again for each next portion.
	if waiting := withoutEntry(n, s.Waiting); waiting > 0 {
		w.Free = max(w.Free, waiting+unreportedNodeIPs(n))
	}
	return w
}

// withoutEntry counts the owners that have no entry in the pool.
func withoutEntry(n pool.NodePool, owners []string) int {
	has := map[string]bool{}
	for _, e := range n.Entries {
		has[e.Owner] = true
	}
	count := 0
	for _, o := range owners {
		if !has[o] {
			count++
		}
	}
	return count
}

// unreportedNodeIPs returns how many addresses the agent may have taken for the node itself and has not reported yet.
// Until it does, they count as free.
func unreportedNodeIPs(n pool.NodePool) int {
	count := len(pool.NodeOwners)
	for _, owner := range n.Used {
		if pool.ForOwner(owner).Kind == pool.NodeOwned {
			count--
		}
	}
	return count
}

// withPodIPs returns the node as its agent will report it: the IPs of its pods are in use.
func (s *State) withPodIPs(n pool.NodePool) pool.NodePool {
	used := maps.Clone(n.Used)
	for _, a := range s.PodIPs {
		if _, ok := used[a]; !ok && used != nil {
			used[a] = ""
		}
	}
	n.Used = used
	return n
}

// ExpireCooldowns returns the edits that remove the entries of addresses whose cooldown has ended, and when to look again;
// zero if nothing is left to end. An address that a pod on the node still has stays, and the cooldown of one that the agent
// still reports starts again.
//
// On a node that is not ready no cooldown ends: a pod that was deleted by force may run on there with an address that the
// agent never reported; and what the agent did not report before the node was ready proves nothing. Nor does a cooldown end
// before the agent has acknowledged it, or, at the home of the address, while another node still has it: an agent that is
// behind would give it to the next pod with the name that it had before.
func (s *State) ExpireCooldowns(n pool.NodePool) (edits []pool.EntryChange, next time.Time) {
	if s.NotReady {
		return nil, time.Time{}
	}
	for a, e := range n.Entries {
		if e.Kind != pool.Cooldown {
			continue
		}
		at, rest := e.SinceTime(), s.CoolDown
		if !n.Home(a) {
			rest = max(rest, fenceLasts)
		}
		if at.Before(s.ReadySince) {
			at = s.ReadySince
		}
		due := at.Add(rest)
		switch {
		case s.Now.Before(due):
			next = earlier(next, due)
		case s.OnOtherNode(a):
			next = earlier(next, s.Now.Add(elsewhereRetry))
		case s.Now.Before(s.restoreDeadline(e)), s.Held(a):
		case n.InUse(a):
			// With a cooldown of 0 there is nothing to restart, and each write would lead to the next.
			if s.CoolDown > 0 {
				edits = append(edits, n.Set(a, pool.CooldownEntry(e.Pod, s.Now)))
			}
		case s.Acknowledged(n, a):
			edit, _ := n.Drop(a)
			edits = append(edits, edit)
		}
	}
	slices.SortFunc(edits, func(x, y pool.EntryChange) int { return x.Addr.Compare(y.Addr) })
	return edits, next
}

// fenceLasts is how long the cooldown of an address lasts at least on a node that is not its home. Until its home has
// released it, that cooldown keeps the address from coming back there (see pool.Move), and the controller of FixedIPs
// looks at it a second later. Cooldowns count whole seconds, so that one of less than two could end between the two:
// the address would be fenced and unfenced for ever.
const fenceLasts = 5 * time.Second

// restoreDeadline returns until when an address in cooldown is left for a pod on the node that has the name from which the
// address was released and has not reported an IP: it may have been bound because of the entry, which is restored, or its
// agent, which was behind, may have given it the address. Zero if there is no such pod.
func (s *State) restoreDeadline(e pool.Entry) time.Time {
	if e.Kind != pool.Cooldown || e.Pod == "" || !slices.Contains(s.Waiting, e.Pod) {
		return time.Time{}
	}
	return e.SinceTime().Add(s.RestoreWithin)
}

// NextRestoreDeadline returns when the next address in cooldown is no longer left for a waiting pod; zero if there is none.
func (s *State) NextRestoreDeadline(n pool.NodePool) (next time.Time) {
	for _, e := range n.Entries {
		if deadline := s.restoreDeadline(e); s.Now.Before(deadline) {
			next = earlier(next, deadline)
		}
	}
	return next
}

// NextCheck returns when the pool has to be looked at again without an event; zero if nothing is due.
func (s *State) NextCheck(n pool.NodePool) time.Time {
	_, next := s.ExpireCooldowns(n)
	return earlier(earlier(next, s.NextTimeout), s.NextRestoreDeadline(n))
}

// earlier returns the earlier of two times; a zero time is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
