// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"maps"
	"net/netip"
	"time"

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

// memory is what the controller remembers of one node: since when its agent owes its first report, and since when it owes
// answers in release handshakes. An agent keeps its answer in a copy of its CiliumNode until it reports it. A write of
// anything but the spec and the status replaces that copy: the answer is lost, and the agent looks at the handshake again
// only when something in the spec or the status has changed.
//
// It is kept in memory only: a replica that takes over waits again from the start.
type memory struct {
	// uid is that of the CiliumNode: a new CiliumNode has handshakes of its own.
	uid string
	// since is when each handshake was first seen in its state, or when its last timeout was reported. It has exactly
	// the handshakes in which the agent has to act next.
	since map[pendingReply]time.Time
	// unreported is when the CiliumNode was first seen with a pool and without a report; zero: it has one.
	unreported time.Time
	// timeouts counts the timeouts in a row without any answer.
	timeouts int
	// stripped: the CiliumNode was once written only to remove its managedFields. If another client applies server-side
	// the fields return, and a second write would not be the last.
	stripped bool
}

// pendingReply is a handshake in a state that only the agent can end.
type pendingReply struct {
	addr  netip.Addr
	state pool.Handshake
}

// remember returns the memory of a node. It requires mu.
func (r *Reconciler) remember(n pool.NodePool) *memory {
	m := r.nodes[n.Name]
	if m == nil || m.uid != n.UID {
		m = &memory{uid: n.UID, since: map[pendingReply]time.Time{}}
		if r.nodes == nil {
			r.nodes = map[string]*memory{}
		}
		r.nodes[n.Name] = m
	}
	return m
}

// observe records the handshakes of a node. overdue are the addresses whose answer is not waited for any longer, and next
// is when the next answer becomes overdue; zero if none is pending.
func (r *Reconciler) observe(n pool.NodePool) (overdue []netip.Addr, next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, m := r.Clock.Now(), r.remember(n)
	maps.DeleteFunc(m.since, func(p pendingReply, _ time.Time) bool {
		return n.Handshakes[p.addr] != p.state || !n.AwaitsAgent(p.addr)
	})
	for a, state := range n.Handshakes {
		switch _, seen := m.since[pendingReply{a, state}]; {
		case state == pool.ReadyForRelease || state == pool.DoNotRelease:
			// The agent has answered.
			m.timeouts = 0
		case n.AwaitsAgent(a) && !seen:
			m.since[pendingReply{a, state}] = now
		}
	}
	for p, since := range m.since {
		due := since.Add(replyTimeout << min(m.timeouts, maxDoublings))
		if !now.Before(due) {
			overdue = append(overdue, p.addr)
		} else if next.IsZero() || due.Before(next) {
			next = due
		}
	}
	return overdue, next
}

// restart starts the wait for overdue answers again, with a longer timeout. A handshake that is marked again waits that
// long, whether or not the change in between was seen.
func (r *Reconciler) restart(n pool.NodePool, overdue []netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.remember(n)
	m.timeouts++
	for _, a := range overdue {
		m.since[pendingReply{a, n.Handshakes[a]}] = r.Clock.Now()
	}
}

// shouldStrip reports whether the CiliumNode has to be written only to remove its managedFields, and remembers that it
// was.
func (r *Reconciler) shouldStrip(n pool.NodePool) bool {
	if !r.StripManagedFields || !n.Tracked {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.remember(n)
	first := !m.stripped
	m.stripped = true
	return first
}
