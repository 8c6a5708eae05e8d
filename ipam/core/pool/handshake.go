// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"maps"
	"net/netip"
)

// Handshake is how far the controller and the agent are in taking an entry out of the pool of a
// live agent: one key of status.ipam.release-ips. An agent may have given a free entry to a pod
// without having said so yet; the handshake is the one way to learn that it has not and won't.
type Handshake uint8

// The states, in the order in which an address goes through them. From Asked the agent may also
// answer Refused, and either of them ends with the key dropped.
const (
	// NotAsked means that there is no key.
	NotAsked Handshake = iota
	// Asked means that the controller asks. The agent offers the address to nobody until it has answered.
	Asked
	// Agreed means that the agent has not allocated the address and won't, as long as the key stands.
	Agreed
	// TakenOut means that the controller says that the entry is gone. The agent drops the key.
	TakenOut
	// Refused means that the agent has allocated the address.
	Refused
	// OtherState is one that is not known here. It is left alone.
	OtherState
)

// Mark changes the handshake over one address, provided that it still is where the writer saw it.
type Mark struct {
	Addr netip.Addr
	// From is the state that there has to be now, To what it becomes; NotAsked is no key.
	From, To Handshake
}

// Mark is the mark that moves an address from where the node has it now.
func (n Node) Mark(a netip.Addr, to Handshake) Mark {
	return Mark{Addr: a, From: n.Handshakes[a], To: to}
}

// IsReleasing tells whether the agent keeps the address back because of a handshake. It gives it to
// nobody but the entry's owner, and does not restore it after a restart.
func (n Node) IsReleasing(a netip.Addr) bool {
	switch n.Handshakes[a] {
	case NotAsked, Refused:
		return false
	}
	return true
}

// AgentsTurn tells whether the agent has the next word in the handshake over an address.
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

// WithMarks is the node as it is after the marks, on a map of its own.
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
