// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"fixedip.io/fixedip/ipam/core/pool"
)

const (
	// answerWithin is how long an agent may take over its answer in a release handshake. It reports once in
	// ipam-cilium-node-update-rate, 15 s by default, tries again when a report loses against another write,
	// and looks at all handshakes anew when it starts: two minutes are enough for any of them.
	answerWithin = 2 * time.Minute
	// silences bounds how often that is doubled for an agent that answers nothing at all: it is down, and every
	// question goes to all other agents.
	silences = 2
)

// answers remember since when agents owe an answer in release handshakes. An agent keeps its answer in a copy
// of its CiliumNode until it reports it, and a write of anything but the spec and the status takes the place of
// that copy: the answer is forgotten, and the agent does not look at the handshake again before something in the
// spec or the status has changed.
//
// All of it is a measure of patience alone: a replica that takes over is patient anew.
type answers struct {
	clock clock.PassiveClock
	mu    sync.Mutex
	// nodes is what agents owe. Key: the node. A key exists while its agent owes an answer, or has left one out
	// since it last gave any, and goes with the node.
	nodes map[string]*owed
}

// owed is what the agent of one node owes.
type owed struct {
	// uid is that of the CiliumNode. One that was made again has handshakes of its own.
	uid string
	// since is when each handshake was first seen where it stands, or was last given up there. Key: its address
	// and its state. A key exists exactly while it is the agent's turn there, as of the last look.
	since map[turn]time.Time
	// silent counts the questions in a row that were given up.
	silent int
}

// turn is a handshake in a state that it is the agent's turn to end.
type turn struct {
	addr  netip.Addr
	state pool.Handshake
}

func newAnswers(c clock.PassiveClock) *answers {
	return &answers{clock: c, nodes: map[string]*owed{}}
}

// look takes in how the handshakes of a node stand. late are those whose answer is not to be waited for any
// longer, and next is when the next one will be late; zero where none is waited for.
func (o *answers) look(n pool.Node) (late []turn, next time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.clock.Now()
	at, ok := o.nodes[n.Name]
	if !ok || at.uid != n.UID {
		at = &owed{uid: n.UID, since: map[turn]time.Time{}}
		o.nodes[n.Name] = at
	}
	maps.DeleteFunc(at.since, func(t turn, _ time.Time) bool { return n.Handshakes[t.addr] != t.state || !n.AgentsTurn(t.addr) })
	for a, state := range n.Handshakes {
		switch _, seen := at.since[turn{a, state}]; {
		case state == pool.Agreed || state == pool.Refused:
			// It has said so.
			at.silent = 0
		case n.AgentsTurn(a) && !seen:
			at.since[turn{a, state}] = now
		}
	}
	for t, since := range at.since {
		due := since.Add(answerWithin << min(at.silent, silences))
		if !now.Before(due) {
			late = append(late, t)
		} else if next.IsZero() || due.Before(next) {
			next = due
		}
	}
	if len(at.since) == 0 && at.silent == 0 {
		delete(o.nodes, n.Name)
	}
	return late, next
}

// giveUp notes that answers are not waited for any longer. What is asked once more is waited for anew, whether
// the change between the two was seen or not.
func (o *answers) giveUp(n pool.Node, late []turn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at, ok := o.nodes[n.Name]
	if !ok {
		return
	}
	at.silent++
	for _, t := range late {
		at.since[t] = o.clock.Now()
	}
}

// forget drops what is remembered of a node that is gone.
func (o *answers) forget(node string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.nodes, node)
}
