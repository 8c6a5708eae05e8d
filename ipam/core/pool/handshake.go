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
type Handshake uint8

// The states, in the order in which an address goes through them. From Asked the agent may also answer Refused. Both ways
// end with the key removed.
const (
	// NotAsked means that there is no key.
	NotAsked Handshake = iota
	// Asked means that the controller asks. The agent gives the address to no pod until it has answered.
	Asked
	// Agreed means that the agent has not allocated the address and does not, as long as the key exists.
	Agreed
	// TakenOut means that the controller says that it removed the entry. The agent removes the key.
	TakenOut
	// Refused means that the agent has allocated the address.
	Refused
	// OtherState is a state that fixedip does not know. It is not changed.
	OtherState
)

// Mark changes the handshake of one address, provided that it still has the state that the writer saw.
type Mark struct {
	Addr netip.Addr
	// From is the required state, To the new one; NotAsked is no key.
	From, To Handshake
}

// Mark returns the Mark that changes the state of an address from what it is now.
func (n Node) Mark(a netip.Addr, to Handshake) Mark {
	return Mark{Addr: a, From: n.Handshakes[a], To: to}
}

// IsReleasing reports whether the agent withholds the address because of a handshake. It gives it to no pod but the
// entry's owner, and does not restore it after a restart.
func (n Node) IsReleasing(a netip.Addr) bool {
	switch n.Handshakes[a] {
	case NotAsked, Refused:
		return false
	}
	return true
}

// AgentsTurn reports whether the handshake of an address waits for the agent.
func (n Node) AgentsTurn(a netip.Addr) bool {
	_, exists := n.Entries[a]
	switch n.Handshakes[a] {
	case Asked:
		return exists
	case TakenOut:
		return !exists
	}
	return false
}

// WithMarks returns the node as it is after the marks, with a map of its own.
func (n Node) WithMarks(marks []Mark) Node {
	states := maps.Clone(n.Handshakes)
	if states == nil {
		states = map[netip.Addr]Handshake{}
	}
	for _, m := range marks {
		if m.To == NotAsked {
			delete(states, m.Addr)
		} else {
			states[m.Addr] = m.To
		}
	}
	n.Handshakes = states
	return n
}
