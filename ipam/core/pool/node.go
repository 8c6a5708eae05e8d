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

// NodePool is the pool of one node at one version of its CiliumNode. It is a value: its maps are replaced and never
// changed.
type NodePool struct {
	Name string
	// UID is the UID of the CiliumNode. It differs if the CiliumNode was deleted and created again.
	UID string
	// ResourceVersion is the version of the CiliumNode that the pool was read from.
	ResourceVersion string
	// Generation is metadata.generation. It changes with the spec, and not when the agent reports its status.
	Generation int64
	// Subnets are the valid spec.ipam.podCIDRs. The node is the home node of the addresses in them.
	Subnets []netip.Prefix
	// PodCIDRs is spec.ipam.podCIDRs as text. A patch tests the field with this text.
	PodCIDRs []string
	// HasPool is false if spec.ipam.pool is missing. A patch has to create the map then.
	HasPool bool
	// Entries is spec.ipam.pool. Key: the address.
	Entries map[netip.Addr]Entry
	// Used is status.ipam.used without probes: the addresses that the agent had allocated at its last report, which may be
	// 15 s old or more (Cilium fact 4). Key: the address. Value: the owner; empty if the agent names none.
	Used map[netip.Addr]string
	// HasUsed is false if status.ipam.used is missing.
	HasUsed bool
	// Unreported is true if Used contains no address of the node itself. The agent allocates these addresses after it has
	// restored the endpoints of running pods (Cilium fact 24). Until then Used may lack addresses that pods use, including
	// pods that were deleted from the API and still run on the node. Therefore no address without an entry counts as free.
	Unreported bool
	// Handshakes is status.ipam.release-ips without the probes that Probes contains. Key: the address. Value: the state of
	// the handshake, never NoHandshake.
	Handshakes map[netip.Addr]Handshake
	// HasHandshakes is false if status.ipam.release-ips is missing.
	HasHandshakes bool
	// Probes are the probes in status.ipam.used, sorted: the agent has not answered them yet.
	Probes []netip.Addr
	// Tracked is true if the CiliumNode has managedFields, which repeat the key of every entry.
	Tracked bool
	// Malformed describes the keys of spec.ipam.pool that are not addresses in canonical form, and the elements of podCIDRs
	// that are not valid subnets, equal another element or lie within one. They are reported and never changed.
	Malformed []string
	// Resources contains the resource text of the entries whose text differs from the one that fixedip would write. A patch
	// tests the entry with this text. Key: the address. Value: the resource.
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

// SameSpec reports whether both are versions of the same CiliumNode with the same spec, according to UID and
// Generation. It is false if Generation is 0, which means unknown.
func (n NodePool) SameSpec(other NodePool) bool {
	return n.UID == other.UID && n.Generation == other.Generation && n.Generation != 0
}

// Home reports whether the node is the home node of the address: the address is in one of the node's subnets.
func (n NodePool) Home(a netip.Addr) bool {
	return slices.ContainsFunc(n.Subnets, func(s netip.Prefix) bool { return s.Contains(a) })
}

// HasFamily reports whether the node has a subnet of the family.
func (n NodePool) HasFamily(f address.Family) bool {
	return slices.ContainsFunc(n.Subnets, func(s netip.Prefix) bool { return address.Of(s.Addr()) == f })
}

// InUse reports whether the address is used according to the agent's last report. False does not prove that the address is
// unused (Cilium fact 4).
func (n NodePool) InUse(a netip.Addr) bool {
	_, ok := n.Used[a]
	return ok
}

// EntryChange is an edit of one entry. It is applied only if the entry is still the one that the writer saw.
type EntryChange struct {
	Addr netip.Addr
	// From is the required current entry; nil: there must be no entry.
	From *Entry
	// To is the new entry; nil: the entry is removed.
	To *Entry
	// RequireUnused requires that the agent does not report the address as used. It guards against a report between the
	// decision and the write.
	RequireUnused bool
}

// Set returns the edit that writes an entry for an address. It requires that the current entry is still the one in n, or
// that there is still no entry if n has none.
func (n NodePool) Set(a netip.Addr, to Entry) EntryChange {
	edit := EntryChange{Addr: a, To: &to}
	if now, ok := n.Entries[a]; ok {
		edit.From = &now
	}
	return edit
}

// Drop returns the edit that removes the entry of an address. It requires that the current entry is still the one in n. ok
// is false if n has no entry for the address.
func (n NodePool) Drop(a netip.Addr) (edit EntryChange, ok bool) {
	now, ok := n.Entries[a]
	return EntryChange{Addr: a, From: &now}, ok
}

// HasEntry returns the lowest address among the entries of a family that belong to the owner. ok is false if there is none.
func (n NodePool) HasEntry(owner string, f address.Family) (found netip.Addr, ok bool) {
	for a, e := range n.Entries {
		if e.OwnedBy(owner) && address.Of(a) == f && (!ok || a.Less(found)) {
			found, ok = a, true
		}
	}
	return found, ok
}

// Owns returns the addresses whose entries belong to the owner, sorted.
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

// Usable reports whether the address is in a subnet of the node and is one that pods may have (address.Usable).
func (n NodePool) Usable(a netip.Addr) bool {
	return slices.ContainsFunc(n.Subnets, func(s netip.Prefix) bool { return address.Usable(s, a) })
}

// Unused reports whether the address is in a subnet of the node, has no entry, is not reported as used, and is not
// withheld by the agent for a release handshake. Callers have to check Unreported and Usable themselves.
func (n NodePool) Unused(a netip.Addr) bool {
	_, exists := n.Entries[a]
	return n.Home(a) && !exists && !n.InUse(a) && !n.IsReleasing(a)
}

// Lowest returns the lowest unused address for which taken is false, in the first subnet of the family that has such an
// address. Unreserved pods and the node itself get this address. The result is false if there is none.
func (n NodePool) Lowest(f address.Family, taken func(netip.Addr) bool) (netip.Addr, bool) {
	for _, s := range n.Subnets {
		if address.Of(s.Addr()) != f {
			continue
		}
		// The loop skips only addresses that n or taken knows, of which there are few, so it ends early even in a large subnet.
		for a := range address.Up(s) {
			if n.Unused(a) && !taken(a) {
				return a, true
			}
		}
	}
	return netip.Addr{}, false
}

// Handshake is the state of a release handshake: the value of one key of status.ipam.release-ips (Cilium fact 8). fixedip
// starts no handshakes, because they can cost a running pod its address (ADR 0057), and withdraws those of other programs.
type Handshake string

// The states of a handshake. Except for NoHandshake and OtherState, the values are those that Cilium writes.
const (
	// NoHandshake means that there is no key.
	NoHandshake Handshake = ""
	// MarkedForRelease means that a program wants to release the entry. Once the agent has seen this state, it gives the
	// address only to the pod that the owner of the entry names.
	MarkedForRelease Handshake = "marked-for-release"
	// ReadyForRelease means that the agent has not allocated the address, and gives the address only to the pod that the
	// owner of the entry names, as long as the key exists.
	ReadyForRelease Handshake = "ready-for-release"
	// Released means that the entry was removed. The agent then removes the key.
	Released Handshake = "released"
	// DoNotRelease means that the agent has allocated the address.
	DoNotRelease Handshake = "do-not-release"
	// OtherState stands for every state that fixedip does not know. It is not changed.
	OtherState Handshake = "other"
)

// IsReleasing reports whether the agent withholds the address because of a handshake: it gives the address only to the
// owner of the entry, and does not restore it for an endpoint after a restart. OtherState counts, because fixedip does not
// know whether the agent withholds the address in that state.
func (n NodePool) IsReleasing(a netip.Addr) bool {
	state := n.Handshakes[a]
	return state != NoHandshake && state != DoNotRelease
}

// Withdrawable returns the addresses of the handshakes that fixedip withdraws: all whose state it knows, sorted.
func (n NodePool) Withdrawable() []netip.Addr {
	var addrs []netip.Addr
	for a, state := range n.Handshakes {
		if state != OtherState {
			addrs = append(addrs, a)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

// probes is the discard-only prefix of RFC 6666. No node, pod or service has an address of this prefix, so a probe never
// collides with a pool entry.
var probes = netip.MustParsePrefix("100::/64")

// Probe returns the probe for one barrier: see package agentview. Each barrier needs a nonce of its own.
func Probe(nonce uint64) netip.Addr {
	bytes := probes.Addr().As16()
	binary.BigEndian.PutUint64(bytes[8:], nonce)
	return netip.AddrFrom16(bytes)
}

// IsProbe reports whether an address is a probe.
func IsProbe(a netip.Addr) bool { return probes.Contains(a) }

// State is the state of an entry as metrics and commands show it.
type State string

// The states. StateUsed are dynamic entries whose addresses the agent reported as used, StateFree all other dynamic entries.
// StateFixed are Owned entries, StateCooldown Cooldown entries, StateNode NodeOwned entries, and StateOther those of all
// remaining kinds.
const (
	StateFree     State = "free"
	StateUsed     State = "used"
	StateFixed    State = "fixed"
	StateCooldown State = "cooldown"
	StateNode     State = "node"
	StateOther    State = "other"
)

// CountStates returns the number of entries of a family by state. StateFree, StateUsed and StateFixed are always present.
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

// Undo returns the edits of n, the pool as it is now, that revert the edits in made. It leaves out the entries that another
// write has changed since the edits were written.
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

// With returns n with the edits applied. It does not check their requirements, and does not change the map Entries of n.
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
