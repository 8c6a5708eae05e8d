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
	// replyTimeout is how long an agent may take to answer in a release handshake. It reports once per
	// ipam-cilium-node-update-rate, 15 s by default, tries again if a report conflicts with another write, and looks at
	// all handshakes when it starts: two minutes are enough for any of them.
	replyTimeout = 2 * time.Minute
	// maxDoublings limits how often replyTimeout is doubled for an agent that answers nothing: it is probably down, and
	// every mark is sent to all other agents too.
	maxDoublings = 2
)

// handshakeTimeouts remembers since when agents owe answers in release handshakes. An agent keeps its answer in a copy of
// its CiliumNode until it reports it. A write of anything but the spec and the status replaces that copy: the answer is
// lost, and the agent looks at the handshake again only when something in the spec or the status has changed.
//
// The times are kept in memory only: a replica that takes over waits again from the start.
type handshakeTimeouts struct {
	clock clock.PassiveClock
	mu    sync.Mutex
	// nodes has an item for each agent that owes an answer, or has not answered since its last timeout. Key: the node.
	nodes map[string]*pendingReplies
}

// pendingReplies are the answers that the agent of one node owes.
type pendingReplies struct {
	// uid is that of the CiliumNode: a new CiliumNode has handshakes of its own.
	uid string
	// since is when each handshake was first seen in its state, or when its last timeout was reported. It has exactly
	// the handshakes in which the agent has to act next.
	since map[pendingReply]time.Time
	// timeouts counts the timeouts in a row without any answer.
	timeouts int
}

// pendingReply is a handshake in a state that only the agent can end.
type pendingReply struct {
	addr  netip.Addr
	state pool.Handshake
}

func newHandshakeTimeouts(c clock.PassiveClock) *handshakeTimeouts {
	return &handshakeTimeouts{clock: c, nodes: map[string]*pendingReplies{}}
}

// observe records the handshakes of a node. overdue are the addresses whose answer is not waited for any longer, and next
// is when the next answer becomes overdue; zero if none is pending.
func (t *handshakeTimeouts) observe(n pool.NodePool) (overdue []netip.Addr, next time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now()
	node, ok := t.nodes[n.Name]
	if !ok || node.uid != n.UID {
		node = &pendingReplies{uid: n.UID, since: map[pendingReply]time.Time{}}
		t.nodes[n.Name] = node
	}
	maps.DeleteFunc(node.since, func(p pendingReply, _ time.Time) bool {
		return n.Handshakes[p.addr] != p.state || !n.AwaitsAgent(p.addr)
	})
	for a, state := range n.Handshakes {
		switch _, seen := node.since[pendingReply{a, state}]; {
		case state == pool.ReadyForRelease || state == pool.DoNotRelease:
			// The agent has answered.
			node.timeouts = 0
		case n.AwaitsAgent(a) && !seen:
			node.since[pendingReply{a, state}] = now
		}
	}
	for p, since := range node.since {
		due := since.Add(replyTimeout << min(node.timeouts, maxDoublings))
		if !now.Before(due) {
			overdue = append(overdue, p.addr)
		} else if next.IsZero() || due.Before(next) {
			next = due
		}
	}
	if len(node.since) == 0 && node.timeouts == 0 {
		delete(t.nodes, n.Name)
	}
	return overdue, next
}

// restart starts the wait for overdue answers again, with a longer timeout. A handshake that is marked again waits that
// long, whether or not the change in between was seen.
func (t *handshakeTimeouts) restart(n pool.NodePool, overdue []netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	node, ok := t.nodes[n.Name]
	if !ok {
		return
	}
	node.timeouts++
	for _, a := range overdue {
		node.since[pendingReply{a, n.Handshakes[a]}] = t.clock.Now()
	}
}

// forget drops a node that is gone.
func (t *handshakeTimeouts) forget(node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.nodes, node)
}
