// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"maps"
	"net/netip"
)

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
	switch n.Handshakes[a] {
	case NoHandshake, DoNotRelease:
		return false
	}
	return true
}

// AwaitsAgent reports whether the handshake of an address waits for the agent.
func (n NodePool) AwaitsAgent(a netip.Addr) bool {
	_, exists := n.Entries[a]
	switch n.Handshakes[a] {
	case MarkedForRelease:
		return exists
	case Released:
		return !exists
	}
	return false
}

// WithHandshakes returns the node as it is after the marks, with a map of its own.
func (n NodePool) WithHandshakes(marks []HandshakeChange) NodePool {
	states := maps.Clone(n.Handshakes)
	if states == nil {
		states = map[netip.Addr]Handshake{}
	}
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
