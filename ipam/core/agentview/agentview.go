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

// Barrier is one probe in the status of a CiliumNode. If the agent removes the probe, it has processed every earlier write.
// One Barrier can serve several barrier requests (package barrier).
type Barrier struct {
	// ProbedNode is the version of the node's pool that the agent has processed if the answer is Complete. It is the result
	// of the patch that wrote the probe. For a Barrier that Join returned, it is the version that was passed to Join.
	ProbedNode pool.NodePool
	// Probe is the key that the next report of the agent removes.
	Probe netip.Addr
}

// NewProbe returns the probe to write into the CiliumNode of n, which has to be read from the API server. The probe
// contains a hash of the UID and the resourceVersion. Every write of a probe makes a new version, so that no probe is
// written twice.
func NewProbe(n pool.NodePool) netip.Addr {
	h := fnv.New64a()
	h.Write([]byte(n.UID + "/" + n.ResourceVersion))
	return pool.Probe(h.Sum64())
}

// Join returns a Barrier for the first probe in the status of n, and false if there is none. n has to be read from the API
// server after the barrier requests were made, so that the report that removes the probe is accepted after the requests. The
// probe is not replaced, since the controller that wrote it would take its absence as the answer.
func Join(n pool.NodePool) (Barrier, bool) {
	if len(n.Probes) == 0 {
		return Barrier{}, false
	}
	return Barrier{ProbedNode: n, Probe: n.Probes[0]}, true
}

// Answer is the state of a Barrier in one version of the CiliumNode.
type Answer uint8

const (
	// Pending means that the agent has not reported since the probe was written.
	Pending Answer = iota
	// NoPool means that the agent has not reported since the probe was written, and that the CiliumNode has no pool: a probe
	// does not make such an agent report.
	NoPool
	// Incomplete means that the agent has reported, and that the report contains no address of the node itself. Such an agent
	// has usually just started, and may not have restored its endpoints. The answer of an agent that allocates no address for
	// the node itself (with --local-router-ipv4 and without health checks, Cilium fact 24) stays Incomplete.
	Incomplete
	// Complete means that the agent has removed the probe, and that its report contains an address of the node itself: the
	// Evidence is valid.
	Complete
	// Void means that the CiliumNode was deleted, and perhaps created again. A new barrier is needed.
	Void
)

func (a Answer) String() string {
	return [...]string{"pending", "no pool", "incomplete", "complete", "void"}[a]
}

// Answer returns the state of the barrier in n, which has to be read from the API server after the probe was written. The
// Evidence is valid only if the Answer is Complete.
func (b Barrier) Answer(n pool.NodePool) (Evidence, Answer) {
	switch {
	case n.UID != b.ProbedNode.UID:
		return Evidence{}, Void
	case slices.Contains(n.Probes, b.Probe) && !n.HasPool:
		return Evidence{}, NoPool
	case slices.Contains(n.Probes, b.Probe):
		return Evidence{}, Pending
	case n.Unreported:
		return Evidence{}, Incomplete
	}
	return Evidence{Node: n.Name, Generation: b.ProbedNode.Generation, UID: n.UID, Entries: b.ProbedNode.Entries, Used: n.Used}, Complete
}

// Evidence is the information that the complete answer of one agent proves.
type Evidence struct {
	// Node is the name of the node. UID is the UID of its CiliumNode.
	Node, UID string
	// Generation is the generation of the newest spec that the agent has provably processed.
	Generation int64
	// Entries is the pool in that spec. Key: the address.
	Entries map[netip.Addr]pool.Entry
	// Used contains the addresses that the agent had allocated when it answered. Key: the address. Value: the owner; empty
	// if the agent does not name it.
	Used map[netip.Addr]string
}

// Pod is a pod that is bound to the node and uses the pod network, as the API server shows it.
type Pod struct {
	// Owner is "namespace/name", as in a pool entry.
	Owner string
	// Addrs are the IPs in the status of the pod.
	Addrs []netip.Addr
	// Stopped is true if the pod has succeeded or failed: then only the report of the agent counts.
	Stopped bool
}

// State is the result of judging the use of an address.
type State uint8

const (
	// Unknown means that another pod may have the address already or may get it at any time.
	Unknown State = iota
	// InUse means that the node itself, an unknown owner, or a pod other than the owner passed to Judge has the address, or
	// that the entry of the address names such a pod and that pod is bound to the node.
	InUse
	// Clear means that no pod other than the owner passed to Judge has the address. As long as the entry is unchanged, the
	// agent gives the address only to the owner of the entry. If the entry is a cooldown, moved or move-target entry, or if
	// there is no entry, the agent gives the address to no pod. The address of a dynamic entry is never Clear.
	Clear
)

func (s State) String() string { return [...]string{"unknown", "in use", "clear"}[s] }

// AddressUse is the result of Evidence.Judge for one address.
type AddressUse struct {
	State State
	// By is the owner that has the address, or that the entry names, if State is InUse; empty if the agent does not name it.
	By string
	// Why explains State in messages; empty if State is Clear.
	Why string
}

// Judge decides whether the pod that owner names can take the address a of the node. If owner is empty, a is Clear only if
// no pod at all uses it. pods are the pods that are bound to the node; they have to be read after the agent answered. Pods of the
// host network must not be among them: while such a pod has no IP in its status, it would count as a possible user of a. A
// stopped pod counts only if the agent reports a as used by that pod.
//
// A pod other than owner uses a in three cases: the agent reports a as used by that pod; the status of the pod contains a,
// even if the agent does not report a as used (Cilium facts 13 and 30); or the entry of a names the pod, because a pod that
// was bound a moment ago gets a from the agent without another write.
//
// A pod without an IP in its status may have any address that the pool offered when the pod started. While there is such a
// pod, a is Unknown, unless the pool has another address of the family of a for that pod, or a is certainly not the
// address of that pod. This is certain if the agent reports a as used by owner, or if the entry of a is owned by a pod: no
// other pod had a when that entry was made, and the agent has given a to no other pod since.
//
// If the entry of a is dynamic, a is never Clear: the agent may give a to any pod.
func (e Evidence) Judge(a netip.Addr, owner string, pods []Pod) AddressUse {
	if user, used := e.Used[a]; used && (user != owner || owner == "") {
		return AddressUse{State: InUse, By: user, Why: fmt.Sprintf("the agent of node %s reports IP %s as used by %s", e.Node, a, cmp.Or(user, "an unknown owner"))}
	}
	_, reported := e.Used[a]
	entry, exists := e.Entries[a]
	exclusive := reported || entry.Kind == pool.Owned
	for _, p := range pods {
		switch {
		case p.Stopped || p.Owner == owner:
		case slices.Contains(p.Addrs, a):
			return AddressUse{State: InUse, By: p.Owner, Why: fmt.Sprintf("pod %s on node %s has IP %s in its status", p.Owner, e.Node, a)}
		case exists && entry.Owner() == p.Owner:
			return AddressUse{State: InUse, By: p.Owner, Why: fmt.Sprintf("pod %s is bound to node %s, whose pool has an entry that gives IP %s to that pod", p.Owner, e.Node, a)}
		}
	}
	for _, p := range pods {
		if !exclusive && !p.Stopped && p.Owner != owner && len(p.Addrs) == 0 && !e.ownsOther(p.Owner, a) {
			return AddressUse{Why: fmt.Sprintf("pod %s on node %s has no IP in its status and may use IP %s", p.Owner, e.Node, a)}
		}
	}
	if exists && entry.Kind == pool.Dynamic {
		return AddressUse{Why: fmt.Sprintf("the pool of node %s offers IP %s to any pod", e.Node, a)}
	}
	return AddressUse{State: Clear}
}

// ownsOther reports whether the pool has an entry that gives the pod another address of the family of a, so that the pod
// can't get a.
func (e Evidence) ownsOther(pod string, a netip.Addr) bool {
	for other, entry := range e.Entries {
		if other != a && entry.OwnedBy(pod) && other.BitLen() == a.BitLen() {
			return true
		}
	}
	return false
}
