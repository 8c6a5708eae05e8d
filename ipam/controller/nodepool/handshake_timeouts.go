// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"maps"
	"net/netip"
	"time"

	"fixedip.io/fixedip/ipam/core/pool"
)

// maxDoublings is the maximum number of times that the timeout for an answer in a release handshake
// (CiliumSettings.AnswerTimeout) is doubled for an agent that does not answer. Such an agent is probably down, and every mark
// is sent to all other agents.
const maxDoublings = 2

// memory is the state of one node that the controller stores: since when the first report of its agent and the
// answers in release handshakes are pending. An answer can be lost: the agent stores it in its copy of the CiliumNode
// until its next report. A write that changes neither spec nor status replaces that copy. The agent then evaluates
// the handshake again only after the spec or the status has changed (Cilium fact 28).
//
// The state is in memory only. A replica that takes over starts all timeouts again, and asks the agent at once: see
// resumeHandshakes.
type memory struct {
	// uid is the UID of the CiliumNode. A CiliumNode that is created again has handshakes of its own.
	uid string
	// resumed is true after the first call of resumeHandshakes for the CiliumNode. Later calls do nothing, because this
	// process has started all later handshakes itself, and knows since when their answers are pending.
	resumed bool
	// since contains the handshakes in which the agent has to act next. Value: the time at which the handshake was first
	// seen in that state, or at which its last timeout was reported.
	since map[pendingReply]time.Time
	// unreported is the time at which the CiliumNode was first seen with a pool but without a report; zero if it has no pool
	// or has a report.
	unreported time.Time
	// timeouts counts the timeouts in a row without any answer.
	timeouts int
	// stripped is true after hasStripped. The controller writes the CiliumNode only once for the sole purpose of removing its
	// managedFields: if another client uses server-side apply, the fields return, and the writes would never end.
	stripped bool
}

// pendingReply is a handshake in a state that only an answer of the agent can end.
type pendingReply struct {
	addr  netip.Addr
	state pool.Handshake
}

// remember returns the memory of a node. It creates one if there is none for this CiliumNode. The caller must hold mu.
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

// observe updates the memory of a node from its handshakes. It returns the addresses whose answer is overdue, and the time at
// which the next answer becomes overdue; zero if no other answer is pending.
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
		due := since.Add(r.Cilium.AnswerTimeout() << min(m.timeouts, maxDoublings))
		if !now.Before(due) {
			overdue = append(overdue, p.addr)
		} else if next.IsZero() || due.Before(next) {
			next = due
		}
	}
	return overdue, next
}

// resumeHandshakes sends a barrier request to the agent of a node if this process, in its first pass over the node,
// finds handshakes in which the agent has to act next. The answers of the agent may be lost, and the process does not
// know since when they are pending: controllers that are killed more often than once per AnswerTimeout would never
// withdraw such a handshake. The probe of the request changes the status of the CiliumNode, so that the agent
// evaluates all handshakes again.
func (r *Reconciler) resumeHandshakes(n pool.NodePool) {
	r.mu.Lock()
	m := r.remember(n)
	first := !m.resumed
	m.resumed = true
	r.mu.Unlock()
	for a := range n.Handshakes {
		if first && n.AwaitsAgent(a) {
			r.Agents.Ask(n.Name, "handshakes of CiliumNode "+n.UID, func() {})
			return
		}
	}
}

// restart starts a new timeout for overdue answers. The new timeout is twice as long as the last one, unless the timeout has
// already been doubled maxDoublings times. A handshake that is withdrawn and marked again also gets the longer timeout,
// whether or not observe has seen it without the mark.
func (r *Reconciler) restart(n pool.NodePool, overdue []netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.remember(n)
	m.timeouts++
	for _, a := range overdue {
		m.since[pendingReply{a, n.Handshakes[a]}] = r.Clock.Now()
	}
}

// shouldStrip reports whether the CiliumNode has to be written to remove its managedFields even if its pool needs no
// edit. It returns true until the first such write of this process, because the fields may return after each write.
func (r *Reconciler) shouldStrip(n pool.NodePool) bool {
	if !r.StripManagedFields || !n.Tracked {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.remember(n).stripped
}

// hasStripped records that the CiliumNode was written without managedFields.
func (r *Reconciler) hasStripped(n pool.NodePool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remember(n).stripped = true
}
