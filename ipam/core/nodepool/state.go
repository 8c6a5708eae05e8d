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

// otherNodeRetry is the interval at which a cooldown is checked while another node still has the address: changes of that
// node cause no event for this one.
const otherNodeRetry = 10 * time.Second

// State contains the inputs from which the pool of one node is decided, except the pool itself.
type State struct {
	Now       time.Time
	Watermark Watermark
	Cooldown  time.Duration
	// Strict is true for a strict node: its pool needs no dynamic entries.
	Strict bool
	// Capacity is the maximum number of pods on the node.
	Capacity int64
	// NoNode is true if there is no Node. NotReady is true if the Node exists and is not ready: its agent may be unable to
	// report which addresses are in use.
	NoNode, NotReady bool
	// ReadySince is the time at which the Node became ready; zero if it is not known or if there is no Node.
	ReadySince time.Time
	// Waiting are the owner keys of the pods that use the pod network of the node, have not ended and have no IP in their status
	// yet. Pods that a DaemonSet created for the node may be among them before they are bound.
	Waiting []string
	// RestoreWithin is the time after a release during which the cooldown does not end if a pod with the name of the previous
	// owner is among Waiting.
	RestoreWithin time.Duration
	// PodIPs are the IPs in the statuses of the pods on the node. The agent may not have reported them yet.
	PodIPs []netip.Addr
	// Pods are the pods of a strict node that have IPs or need some, except those whose entries a FixedIP defines.
	Pods []PodAddresses
	// Held reports whether a pod on the node has an address. Reserved reports whether a FixedIP reserves an address. OnOtherNode
	// reports whether this node is the home of an address and another node still has the address, in its pool or in the report
	// of its agent.
	Held, Reserved, OnOtherNode func(netip.Addr) bool
	// Acknowledged reports whether the agent has acknowledged the cooldown entry of an address and does not report the
	// address as used. If NoNode is true, it returns true for every address. A call may request a barrier.
	Acknowledged func(n pool.NodePool, a netip.Addr) bool
	// Gone contains the owners of unreserved entries that no pod needs. Key: the owner. Value: always true.
	Gone map[string]bool
	// Live is true if the pods were read from the API server.
	Live bool
}

// Shortage is the number of addresses that the subnets of a node lack in one family. On a strict node Family is zero, and
// Count is the sum of both families.
type Shortage struct {
	Family address.Family
	Count  int
}

// NeedsLive reports whether the pods have to be read from the API server before the pool is written: an edit relies on pods
// (relyOnPods), or Gone has owners whose entries can be released.
func (s *State) NeedsLive(edits []pool.EntryChange) bool {
	return slices.ContainsFunc(edits, relyOnPods) || len(s.Gone) > 0
}

// relyOnPods reports whether an edit would be wrong if a pod that the cache does not show had the address: the edit removes a
// dynamic entry, replaces it by an entry that is not node-owned, or ends a cooldown.
func relyOnPods(e pool.EntryChange) bool {
	removed := e.To == nil
	return e.From != nil && (e.From.Kind == pool.Cooldown && removed || e.From.Kind == pool.Dynamic && (removed || e.To.Kind != pool.NodeOwned))
}

// SafeEdits returns the edits that may be written now. It leaves out those that rely on pods if the pods were not read from
// the API server.
func (s *State) SafeEdits(n pool.NodePool) []pool.EntryChange {
	edits := s.Edits(n)
	if !s.Live {
		edits = slices.DeleteFunc(edits, relyOnPods)
	}
	return edits
}

// Edits returns all edits that the pool needs. Entries of owners in Gone are released only if Live is true.
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
		// No entry is withdrawn on a node that is not ready or does not exist, because its agent would not acknowledge the
		// withdrawal.
		if !s.NotReady && !s.NoNode {
			surplus := Surplus(n, f, s.watermark(n, f), s.Now, s.Held, s.Reserved)
			edits, n = append(edits, surplus...), n.With(surplus)
		}
	}
	first, _ := s.FirstEntries(n)
	return append(edits, first...)
}

// FirstEntries returns the edits for the entries that the pool lacks: new entries, withdrawn entries that become dynamic
// again, and on a strict node dynamic entries that get an owner. shortages is not empty if the subnets have no room for all
// of them. A new pool needs no other edits.
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
	// If more pods start at once than there are free entries, the agent assigns all free entries before it reports, which
	// may take 15 s. Each further batch would wait for another report. So the entries for all waiting pods are added at
	// once.
	if waiting := withoutEntry(n, s.Waiting); waiting > 0 {
		w.Free = max(w.Free, waiting+unreportedNodeIPs(n, f))
	}
	return w
}

// withoutEntry counts the owners that have no entry in the pool.
func withoutEntry(n pool.NodePool, owners []string) int {
	has := map[string]bool{}
	for _, e := range n.Entries {
		has[e.Owner()] = true
	}
	count := 0
	for _, o := range owners {
		if !has[o] {
			count++
		}
	}
	return count
}

// unreportedNodeIPs returns the number of addresses of a family that the agent may have taken for the node itself and has not
// reported yet. Until the agent reports them, they count as free.
func unreportedNodeIPs(n pool.NodePool, f address.Family) int {
	count := len(pool.NodeOwners)
	for a, owner := range n.Used {
		if address.Of(a) == f && pool.ForOwner(owner).Kind == pool.NodeOwned {
			count--
		}
	}
	return count
}

// withPodIPs returns n with the IPs of the pods added to Used, because the agent will report them. If Used is nil, it
// stays nil.
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

// ExpireCooldowns returns the edits for the cooldowns that are over: they remove the entry or, if the agent still reports
// the address as used and Cooldown is not 0, start the cooldown again. An entry is not changed if a pod on the node has the
// address, or before its restoreDeadline. A withdrawn entry is an exception: if a pod has the address, or the agent reports the
// address as used, the entry becomes dynamic again. next is the time of the next check of a cooldown; zero if no check depends
// on time.
//
// On a node that is not ready no cooldown ends: a pod that was deleted by force may still run there with an address that the
// agent never reported. A cooldown counts at the earliest from the time at which the node became ready, since earlier
// reports prove nothing. A cooldown does not end before the agent has acknowledged it: an agent that still has the previous
// entry would give the address to the next pod with the name of the previous owner. For the same reason a cooldown at the
// home of the address does not end while another node still has the address.
func (s *State) ExpireCooldowns(n pool.NodePool) (edits []pool.EntryChange, next time.Time) {
	if s.NotReady {
		return nil, time.Time{}
	}
	for a, e := range n.Entries {
		if e.Kind != pool.Cooldown {
			continue
		}
		at, cooldown := e.SinceTime(), s.Cooldown
		switch {
		case e.IsWithdrawn():
			cooldown = 0
		case !n.Home(a):
			cooldown = max(cooldown, minFenceCooldown)
		}
		if at.Before(s.ReadySince) {
			at = s.ReadySince
		}
		due := at.Add(cooldown)
		switch {
		case e.IsWithdrawn() && (n.InUse(a) || s.Held(a)):
			edits = append(edits, n.Set(a, pool.Entry{}))
		case s.Now.Before(due):
			next = earliest(next, due)
		case s.OnOtherNode(a):
			next = earliest(next, s.Now.Add(otherNodeRetry))
		case s.Now.Before(s.restoreDeadline(e)), s.Held(a):
		case n.InUse(a):
			// With a cooldown of 0 there is nothing to restart, and each write would lead to the next.
			if s.Cooldown > 0 {
				edits = append(edits, n.Set(a, pool.CooldownEntry(e.Pod(), s.Now)))
			}
		case s.Acknowledged(n, a):
			edit, _ := n.Drop(a)
			edits = append(edits, edit)
		}
	}
	slices.SortFunc(edits, func(x, y pool.EntryChange) int { return x.Addr.Compare(y.Addr) })
	return edits, next
}

// minFenceCooldown is the minimum cooldown of an address on a node that is not its home. Until the home has released the
// address, this cooldown prevents a move of the address to the node (see pool.Move). The FixedIP controller checks the
// address one second after it has written the entry. Cooldowns count whole seconds, so a cooldown of less than two seconds
// could end before that check, and the entry would be written and removed again and again.
const minFenceCooldown = 5 * time.Second

// restoreDeadline returns the time before which a cooldown must not end because a pod with the name of the previous
// owner waits for an IP; zero if there is no such pod. A scheduler may have bound that pod because of the entry that was
// released; the controller then restores the entry. Or an agent that had not seen the release may have given the address to
// that pod.
func (s *State) restoreDeadline(e pool.Entry) time.Time {
	if e.Kind != pool.Cooldown || e.Pod() == "" || !slices.Contains(s.Waiting, e.Pod()) {
		return time.Time{}
	}
	return e.SinceTime().Add(s.RestoreWithin)
}

// NextRestoreDeadline returns the earliest restoreDeadline in the future; zero if there is none.
func (s *State) NextRestoreDeadline(n pool.NodePool) (next time.Time) {
	for _, e := range n.Entries {
		if deadline := s.restoreDeadline(e); s.Now.Before(deadline) {
			next = earliest(next, deadline)
		}
	}
	return next
}

// NextCheck returns the time at which the pool has to be checked again even if there is no event; zero: only after events.
func (s *State) NextCheck(n pool.NodePool) time.Time {
	_, next := s.ExpireCooldowns(n)
	return earliest(next, s.NextRestoreDeadline(n))
}

// earliest returns the earlier of two times. The zero time means never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
