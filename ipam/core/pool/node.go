// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"fixedip.io/fixedip/ipam/core/address"
)

// NodePool is the pool of one node at one version of its CiliumNode. It is a value: its maps are never changed, only replaced.
type NodePool struct {
	Name string
	// UID is the CiliumNode's: a node that was deleted and created again is another one.
	UID string
	// ResourceVersion is the version of the CiliumNode that this was read from.
	ResourceVersion string
	// Generation changes with every write of the spec, and not when the agent reports its status.
	Generation int64
	// Subnets are spec.ipam.podCIDRs. This pool decides over the addresses in them: the node is their home.
	Subnets []netip.Prefix
	// PodCIDRs are the subnets as they are written: a patch that relies on them has to name them so.
	PodCIDRs []string
	// HasPool is false if the pool was never written; a patch differs then.
	HasPool bool
	// Entries are spec.ipam.pool.
	Entries map[netip.Addr]Entry
	// Used are the keys of status.ipam.used with their owners: what the agent had allocated when it last reported, which may
	// be 15 s ago or more (Cilium fact 4).
	Used map[netip.Addr]string
	// HasUsed is to Used what HasPool is to Entries.
	HasUsed bool
	// Unreported is true if Used lists no address of the node itself. The agent allocates these after it has restored the
	// endpoints of running pods (Cilium fact 24). Until then Used may lack addresses that pods use, including pods that were
	// deleted from the API and still run on the node, so that no address without an entry counts as free.
	Unreported bool
	// Handshakes are the keys of status.ipam.release-ips: entries that are being released. The values are never NoHandshake.
	Handshakes map[netip.Addr]Handshake
	// HasHandshakes is to Handshakes what HasPool is to Entries.
	HasHandshakes bool
	// Probes are the probes that status.ipam.used lists, sorted: questions that the agent has not answered yet.
	Probes []netip.Addr
	// Tracked is true if the CiliumNode has managedFields, which name each entry once more.
	Tracked bool
	// Malformed are keys of the pool and entries of podCIDRs that are not addresses or subnets. They are reported and never
	// changed.
	Malformed []string
	// Resources are the resources of entries as they are written, of those that fixedip would write differently: the
	// tests of a patch have to name them so.
	Resources map[netip.Addr]string
}

// OlderThan reports whether n is an earlier version of the same CiliumNode than other. Resource versions are compared if
// both are numbers, generations otherwise.
func (n NodePool) OlderThan(other NodePool) bool {
	if n.UID != other.UID {
		return false
	}
	mine, err1 := strconv.ParseUint(n.ResourceVersion, 10, 64)
	others, err2 := strconv.ParseUint(other.ResourceVersion, 10, 64)
	if err1 == nil && err2 == nil {
		return mine < others
	}
	return n.Generation < other.Generation
}

// SameSpec reports whether both are versions of the same CiliumNode with the same spec.
func (n NodePool) SameSpec(other NodePool) bool {
	return n.UID == other.UID && n.Generation == other.Generation && n.Generation != 0
}

// Home reports whether the address is in one of the node's subnets.
func (n NodePool) Home(a netip.Addr) bool {
	return slices.ContainsFunc(n.Subnets, func(s netip.Prefix) bool { return s.Contains(a) })
}

// HasFamily reports whether the node has a subnet of the family.
func (n NodePool) HasFamily(f address.Family) bool {
	return slices.ContainsFunc(n.Subnets, func(s netip.Prefix) bool { return address.Of(s.Addr()) == f })
}

// InUse reports whether the agent reported the address as allocated. That it did not proves nothing (Cilium fact 4).
func (n NodePool) InUse(a netip.Addr) bool {
	_, ok := n.Used[a]
	return ok
}

// EntryChange changes one entry, provided that it still is what the writer saw.
type EntryChange struct {
	Addr netip.Addr
	// From is the required entry; nil: there must be none.
	From *Entry
	// To is the new entry; nil: the entry is removed.
	To *Entry
	// ReadyForRelease requires that the agent agrees to the release of the entry.
	ReadyForRelease bool
	// Unlisted requires that the agent does not report the address as in use: it may report between the decision and the
	// write.
	Unlisted bool
}

// Set returns the edit that replaces what the node has for an address now.
func (n NodePool) Set(a netip.Addr, to Entry) EntryChange {
	edit := EntryChange{Addr: a, To: &to}
	if now, ok := n.Entries[a]; ok {
		edit.From = &now
	}
	return edit
}

// Drop returns the edit that removes the entry that the node has now. ok is false if there is none.
func (n NodePool) Drop(a netip.Addr) (edit EntryChange, ok bool) {
	now, ok := n.Entries[a]
	return EntryChange{Addr: a, From: &now}, ok
}

// HasEntry returns the lowest address of a family whose entry gives it to the owner.
func (n NodePool) HasEntry(owner string, f address.Family) (found netip.Addr, ok bool) {
	for a, e := range n.Entries {
		if e.OwnedBy(owner) && address.Of(a) == f && (!ok || a.Less(found)) {
			found, ok = a, true
		}
	}
	return found, ok
}

// Owns returns the addresses whose entries give them to the owner, sorted.
func (n NodePool) Owns(owner string) []netip.Addr {
	var owned []netip.Addr
	for a, e := range n.Entries {
		if e.OwnedBy(owner) {
			owned = append(owned, a)
		}
	}
	slices.SortFunc(owned, netip.Addr.Compare)
	return owned
}

// Unused reports whether a claim can have the address as far as the pool goes: it is in a subnet of the node, has no
// entry, is not in use and not in a release handshake.
func (n NodePool) Unused(a netip.Addr) bool {
	_, exists := n.Entries[a]
	return n.Home(a) && !exists && !n.InUse(a) && !n.IsReleasing(a)
}

// Lowest returns the lowest unused address of a family for which taken is false: that of the next unreserved pod.
func (n NodePool) Lowest(f address.Family, taken func(netip.Addr) bool) (netip.Addr, bool) {
	for _, s := range n.Subnets {
		if address.Of(s.Addr()) != f {
			continue
		}
		// The walk skips only addresses that something is known of, so that it is as short as that is little.
		for a := range address.Up(s) {
			if n.Unused(a) && !taken(a) {
				return a, true
			}
		}
	}
	return netip.Addr{}, false
}

// Handshake is the state of the release of an entry between the controller and the agent: one key of
// status.ipam.release-ips. The agent may have given a free entry to a pod without having reported it yet; the handshake is
// the only way to learn that it has not and will not (Cilium fact 8).
type Handshake string

// The states as Cilium spells them, in the order in which an address goes through them. The agent may answer
// MarkedForRelease with DoNotRelease instead. Both ways end with the key removed.
const (
	// NoHandshake means that there is no key.
	NoHandshake Handshake = ""
	// MarkedForRelease means that the controller asks. The agent gives the address to no pod until it has answered.
	MarkedForRelease Handshake = "marked-for-release"
	// ReadyForRelease means that the agent has not allocated the address and does not, as long as the key exists.
	ReadyForRelease Handshake = "ready-for-release"
	// Released means that the controller says that it removed the entry. The agent removes the key.
	Released Handshake = "released"
	// DoNotRelease means that the agent has allocated the address.
	DoNotRelease Handshake = "do-not-release"
	// OtherState stands for every state that fixedip does not know. It is not changed.
	OtherState Handshake = "other"
)

// HandshakeChange changes the handshake of one address, provided that it still has the state that the writer saw.
type HandshakeChange struct {
	Addr netip.Addr
	// From is the required state, To the new one; NoHandshake is no key.
	From, To Handshake
}

// ChangeHandshake returns the change that changes the state of an address from what it is now.
func (n NodePool) ChangeHandshake(a netip.Addr, to Handshake) HandshakeChange {
	return HandshakeChange{Addr: a, From: n.Handshakes[a], To: to}
}

// IsReleasing reports whether the agent withholds the address because of a handshake. It gives it to no pod but the
// entry's owner, and does not restore it after a restart.
func (n NodePool) IsReleasing(a netip.Addr) bool {
	state := n.Handshakes[a]
	return state != NoHandshake && state != DoNotRelease
}

// AwaitsAgent reports whether the handshake of an address waits for the agent.
func (n NodePool) AwaitsAgent(a netip.Addr) bool {
	_, exists := n.Entries[a]
	state := n.Handshakes[a]
	return exists && state == MarkedForRelease || !exists && state == Released
}

// WithHandshakes returns the node as it is after the marks, with a map of its own.
func (n NodePool) WithHandshakes(marks []HandshakeChange) NodePool {
	states := make(map[netip.Addr]Handshake, len(n.Handshakes)+len(marks))
	maps.Copy(states, n.Handshakes)
	for _, m := range marks {
		if m.To == NoHandshake {
			delete(states, m.Addr)
		} else {
			states[m.Addr] = m.To
		}
	}
	n.Handshakes = states
	return n
}

// probes is the discard-only prefix of RFC 6666. No node, pod or service ever has an address of it, so that a
// probe never collides with an entry of a pool.
var probes = netip.MustParsePrefix("100::/64")

// Probe returns the address that asks an agent one question, see package agentview. Each question needs a nonce of
// its own.
func Probe(nonce uint64) netip.Addr {
	bytes := probes.Addr().As16()
	binary.BigEndian.PutUint64(bytes[8:], nonce)
	return netip.AddrFrom16(bytes)
}

// IsProbe reports whether an address is a probe.
func IsProbe(a netip.Addr) bool { return probes.Contains(a) }

// State is what an entry means for the free addresses of its node, as metrics and commands show it.
type State string

// The states. Free and used are dynamic entries, by the last report of the agent.
const (
	StateFree     State = "free"
	StateUsed     State = "used"
	StateFixed    State = "fixed"
	StateCooldown State = "cooldown"
	StateNode     State = "node"
	StateOther    State = "other"
)

// CountStates counts the entries of a family by state. It contains free, used and fixed even if they are 0.
func (n NodePool) CountStates(f address.Family) map[State]int {
	states := map[State]int{StateFree: 0, StateUsed: 0, StateFixed: 0}
	for a, e := range n.Entries {
		switch {
		case address.Of(a) != f:
		case e.Kind == Cooldown:
			states[StateCooldown]++
		case e.Kind == Dynamic && n.InUse(a):
			states[StateUsed]++
		case e.Kind == Dynamic:
			states[StateFree]++
		case e.Kind == Owned:
			states[StateFixed]++
		case e.Kind == NodeOwned:
			states[StateNode]++
		default:
			states[StateOther]++
		}
	}
	return states
}

// Undo returns the edits that put entries back to what they were before other edits, except those that were changed
// again since.
func (n NodePool) Undo(made []EntryChange) []EntryChange {
	var undo []EntryChange
	for _, e := range made {
		now, exists := n.Entries[e.Addr]
		switch {
		case e.To == nil && exists, e.To != nil && (!exists || now != *e.To):
			continue
		case e.From != nil:
			undo = append(undo, n.Set(e.Addr, *e.From))
		case exists:
			drop, _ := n.Drop(e.Addr)
			undo = append(undo, drop)
		}
	}
	return undo
}

// With returns the node as it is after the edits, with a map of its own.
func (n NodePool) With(edits []EntryChange) NodePool {
	entries := make(map[netip.Addr]Entry, len(n.Entries)+len(edits))
	maps.Copy(entries, n.Entries)
	for _, e := range edits {
		if e.To == nil {
			delete(entries, e.Addr)
		} else {
			entries[e.Addr] = *e.To
		}
	}
	n.Entries = entries
	return n
}
