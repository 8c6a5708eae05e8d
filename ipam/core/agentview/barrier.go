// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package agentview

import (
	"hash/fnv"
	"net/netip"
	"slices"

	"fixedip.io/fixedip/ipam/core/pool"
)

// Barrier is a question to the agent of one node that has been written and may not be answered yet.
type Barrier struct {
	// Asked is the node as the patch that wrote the probe left it. The answer proves that the agent has seen this pool.
	Asked pool.NodePool
	// Probe is the address that asks.
	Probe netip.Addr
}

// NewProbe returns the probe for a question that is written into a version of a CiliumNode. n has to be read from the
// API server: then no two questions have the same probe, since each of them makes a new version.
func NewProbe(n pool.NodePool) netip.Addr {
	h := fnv.New64a()
	h.Write([]byte(n.UID + "/" + n.ResourceVersion))
	return pool.Probe(h.Sum64())
}

// Answer is what a version of a CiliumNode says about a Barrier.
type Answer uint8

const (
	// Pending means that the agent has not reported since the probe was written.
	Pending Answer = iota
	// NoPool is Pending for a reason: an agent whose CiliumNode has no pool does not report because of a probe.
	NoPool
	// Incomplete means that the agent has reported and lists no address of the node itself. It has just started, and
	// may not have restored its endpoints.
	Incomplete
	// Complete means that the agent has answered.
	Complete
	// Void means that the CiliumNode is gone, or is another one of the same name. Ask again.
	Void
)

func (a Answer) String() string {
	return [...]string{"pending", "no pool", "incomplete", "complete", "void"}[a]
}

// Answer judges a version of the CiliumNode that was read from the API server after the probe was written. The Evidence
// is valid only if the answer is Complete.
func (b Barrier) Answer(n pool.NodePool) (Evidence, Answer) {
	switch {
	case n.UID != b.Asked.UID:
		return Evidence{}, Void
	case slices.Contains(n.Probes, b.Probe) && !n.HasPool:
		return Evidence{}, NoPool
	case slices.Contains(n.Probes, b.Probe):
		return Evidence{}, Pending
	case !restored(n):
		return Evidence{}, Incomplete
	}
	return Evidence{Node: n.Name, Generation: b.Asked.Generation, UID: n.UID, Entries: b.Asked.Entries, Used: n.Used}, Complete
}

// restored reports whether the agent that made the report has allocated an address for the node itself, which it does
// after it has restored the last endpoint.
func restored(n pool.NodePool) bool {
	for _, owner := range n.Used {
		if slices.Contains(pool.NodeOwners[:], owner) {
			return true
		}
	}
	return false
}
