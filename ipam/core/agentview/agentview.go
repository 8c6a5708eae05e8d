// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package agentview

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"

	"fixedip.io/fixedip/ipam/core/pool"
)

// Barrier is a question to the agent of one node that has been written and may not be answered yet.
type Barrier struct {
	// AskedNode is the node as the patch that wrote the probe left it, or as it was when another question was joined. The
	// answer proves that the agent has seen this pool.
	AskedNode pool.NodePool
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

// Join returns the Barrier for questions that wait when the agent has a probe to answer already; false: it has none. n has
// to be read from the API server after the questions were asked: the report that removes the probe is accepted after that.
// The probe is not replaced, since the controller that wrote it would take its absence as the answer.
func Join(n pool.NodePool) (Barrier, bool) {
	if len(n.Probes) == 0 {
		return Barrier{}, false
	}
	return Barrier{AskedNode: n, Probe: n.Probes[0]}, true
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
	case n.UID != b.AskedNode.UID:
		return Evidence{}, Void
	case slices.Contains(n.Probes, b.Probe) && !n.HasPool:
		return Evidence{}, NoPool
	case slices.Contains(n.Probes, b.Probe):
		return Evidence{}, Pending
	case n.Unreported:
		return Evidence{}, Incomplete
	}
	return Evidence{Node: n.Name, Generation: b.AskedNode.Generation, UID: n.UID, Entries: b.AskedNode.Entries, Used: n.Used}, Complete
}

// Evidence is what the answer of one agent proves.
type Evidence struct {
	// Node is the name of the node, UID is that of its CiliumNode.
	Node, UID string
	// Generation is that of the newest spec that the agent is known to have seen, and Entries is the pool in it.
	Generation int64
	Entries    map[netip.Addr]pool.Entry
	// Used are the addresses that the agent had allocated when it answered. Value: the owner.
	Used map[netip.Addr]string
}

// Pod is a pod that is bound to the node, as the API server shows it.
type Pod struct {
	// Owner is "namespace/name", as in a pool entry.
	Owner string
	// Addrs are those in the status of the pod.
	Addrs []netip.Addr
	// Stopped means that no container of the pod runs or will run: it has succeeded or failed.
	Stopped bool
}

// State is what is known about the use of an address.
type State uint8

const (
	// Unknown means that another pod may get the address at any time.
	Unknown State = iota
	// InUse means that a pod, or the node itself, has the address.
	InUse
	// Clear means that no pod has the address, and that the agent gives it only to the pod that the entry names, if it
	// names one, while the entry stands.
	Clear
)

func (s State) String() string { return [...]string{"unknown", "in use", "clear"}[s] }

// AddressUse is the answer to the question whether a pod may still use an address.
type AddressUse struct {
	State State
	// By is the owner that has the address, if it is InUse; empty: the agent does not name it.
	By string
	// Why is a sentence for people, if the address is not Clear.
	Why string
}

// Judge decides whether an address of the node can be taken by the pod owner. owner may be empty: then the address is
// Clear only if no pod at all uses it. pods are the pods that are bound to the node, read after the answer.
//
// A pod counts as a user if the agent lists the address for it, if its status has the address (the agent may have lost
// it, Cilium facts 13 and 30), or if the entry names it: a pod that was bound a moment ago gets the address from the agent
// without another write. A pod that has not reported an address may have any that the pool offered when it started, so
// that nothing is known until it reports, unless the pool has another address for it. Two addresses are certainly not
// its own: one that the agent lists for owner, and one whose entry is a pod's. No other pod had that one when the
// entry was made, and the agent has given it to no other since.
func (e Evidence) Judge(a netip.Addr, owner string, pods []Pod) AddressUse {
	if user, used := e.Used[a]; used && (user != owner || owner == "") {
		return AddressUse{State: InUse, By: user, Why: fmt.Sprintf("the agent of node %s lists %s as used by %s", e.Node, a, cmp.Or(user, "an unknown owner"))}
	}
	_, listed := e.Used[a]
	entry, exists := e.Entries[a]
	exclusive := listed || entry.Kind == pool.Owned
	for _, p := range pods {
		switch {
		case p.Stopped || p.Owner == owner:
		case slices.Contains(p.Addrs, a):
			return AddressUse{State: InUse, By: p.Owner, Why: fmt.Sprintf("pod %s runs with %s on node %s", p.Owner, a, e.Node)}
		case exists && entry.Owner == p.Owner:
			return AddressUse{State: InUse, By: p.Owner, Why: fmt.Sprintf("pod %s is bound to node %s, whose pool has %s for it", p.Owner, e.Node, a)}
		}
	}
	for _, p := range pods {
		if !exclusive && !p.Stopped && p.Owner != owner && len(p.Addrs) == 0 && !e.ownsOther(p.Owner, a) {
			return AddressUse{Why: fmt.Sprintf("pod %s on node %s has not reported its address, which may be %s", p.Owner, e.Node, a)}
		}
	}
	if exists && entry.Kind == pool.Dynamic {
		return AddressUse{Why: fmt.Sprintf("the pool of node %s offers %s to any pod", e.Node, a)}
	}
	return AddressUse{State: Clear}
}

// ownsOther reports whether the pool has an entry for the pod that gives it another address of the family of a, so that it
// can't get a.
func (e Evidence) ownsOther(pod string, a netip.Addr) bool {
	for other, entry := range e.Entries {
		if other != a && entry.OwnedBy(pod) && other.BitLen() == a.BitLen() {
			return true
		}
	}
	return false
}
