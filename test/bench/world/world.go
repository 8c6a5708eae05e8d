// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"fmt"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// replicas is the number of pods of each StatefulSet and ReplicaSet.
	replicas = 10
	// namespaces is the number of namespaces of the workloads.
	namespaces = 200
	// freeEntries is the number of free dynamic entries of a pool: the sum of the defaults of --min-free-ips and
	// --max-surplus-ips.
	freeEntries = 16
	// ownEntries is the number of dynamic entries that the node itself uses: router and health.
	ownEntries = 2
)

// Size is the size of a cluster.
type Size struct {
	Nodes int
	// Fixed is the number of pods that belong to StatefulSets and have a FixedIP, Ordinary that of all other pods. Each of
	// these pods runs and has a CiliumEndpoint.
	Fixed, Ordinary int
	// Expected is the number of ReplicaSet pods without a Pod object. The benchmark creates them.
	Expected int
	// Absent is the number of FixedIPs whose pod does not exist, as during a restart.
	Absent int
	// WithoutFixedIPs leaves out the FixedIPs of the pods, so that the controller has to create them from the pool entries.
	WithoutFixedIPs bool
	// Searching is the number of pods of a Deployment that search for a slot. It is also the number of slots of that
	// Deployment. No pod can take them over, because the controller has not confirmed that their former pods have
	// stopped.
	Searching int
	// Unplaced is the number of StatefulSet pods without a Pod object and without a FixedIP. The benchmark creates them, so
	// that they are first placements.
	Unplaced int
}

// World is a cluster in which our controller has no work to do, unless WithoutFixedIPs or Searching is set: every object is
// in the state in which Kubernetes, Cilium and our controller leave it. The pods of each group are distributed evenly over
// the nodes, beginning with the first node.
type World struct {
	Size
	since metav1.Time
}

// New returns the world of a size. It returns an error if a number is out of range, or if the pods of a node need more
// addresses than its subnet has.
func New(s Size) (*World, error) {
	perNode := func(pods int) int { return (pods + s.Nodes - 1) / max(1, s.Nodes) }
	switch {
	case s.Nodes < 1 || s.Nodes > 1<<16:
		return nil, fmt.Errorf("%d nodes: must be between 1 and %d, the number of /24 subnets of 10.0.0.0/8", s.Nodes, 1<<16)
	case min(s.Fixed, s.Ordinary, s.Expected, s.Absent, s.Unplaced, s.Searching) < 0:
		return nil, fmt.Errorf("size %+v: no number may be negative", s)
	case s.Searching > s.Nodes:
		return nil, fmt.Errorf("size %+v: at most one pod per node can search for a slot", s)
	case perNode(s.Fixed+s.Absent)+perNode(s.Unplaced) > 254-slotAddress, perNode(s.Ordinary)+freeEntries+ownEntries >= slotAddress:
		return nil, fmt.Errorf("size %+v: the subnets of %d nodes do not have enough addresses", s, s.Nodes)
	}
	return &World{Size: s, since: metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))}, nil
}

// uid returns a UID that differs for each kind of object and number.
func uid(kind byte, i int) types.UID {
	return types.UID(fmt.Sprintf("%02x%06x-%04x-4%03x-a%03x-%012x", kind, i, (i*40503)&0xffff, (i*2654435)&0xfff, (i*97)&0xfff, uint64(i)*0x9e3779b97f4a&0xffffffffffff))
}

// NodeName returns the name of node i.
func NodeName(i int) string { return fmt.Sprintf("worker-%05d.example.internal", i) }
func nodeIP(i int) string   { return fmt.Sprintf("172.16.%d.%d", i>>8, i&255) }

// NamespaceName returns the name of namespace i.
func NamespaceName(i int) string { return fmt.Sprintf("team-%03d", i%namespaces) }

// address returns an address in the /24 of a node.
func address(node, last int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(node >> 8), byte(node), byte(last)})
}

// Place is a pod: its name, workload, node and address.
type Place struct {
	// serial differs for each pod.
	serial                          int
	Node                            int
	Namespace, Name, Workload, Kind string
	workloadUID                     types.UID
	// Address is the address of the pod; the zero Addr for a pod that was never placed.
	Address netip.Addr
}

// Fixed reports whether the pod belongs to a StatefulSet.
func (p Place) Fixed() bool { return p.Kind == "StatefulSet" }

// FixedPod returns pod i of the StatefulSets: the first w.Fixed run, the next w.Absent have FixedIPs but do not exist, and
// the last w.Unplaced never existed.
func (w *World) FixedPod(i int) Place {
	group := i / replicas
	p := Place{serial: i, Node: i % w.Nodes, Namespace: NamespaceName(group), Kind: "StatefulSet", Workload: fmt.Sprintf("database-%05d", group), workloadUID: uid('s', group)}
	p.Name = fmt.Sprintf("%s-%d", p.Workload, i%replicas)
	if i < w.Fixed+w.Absent {
		p.Address = address(p.Node, 254-i/w.Nodes)
	}
	return p
}

// AbsentPod returns the i-th pod that has a FixedIP but does not exist.
func (w *World) AbsentPod(i int) Place { return w.FixedPod(w.Fixed + i) }

// UnplacedPod returns the i-th StatefulSet pod that has never existed.
func (w *World) UnplacedPod(i int) Place { return w.FixedPod(w.Fixed + w.Absent + i) }

// OrdinaryPod returns pod i of the ReplicaSets: the first w.Ordinary run, the next w.Expected do not exist.
func (w *World) OrdinaryPod(i int) Place {
	group := i / replicas
	p := Place{serial: w.Fixed + w.Absent + w.Unplaced + i, Node: i % w.Nodes, Namespace: NamespaceName(group), Kind: "ReplicaSet",
		Workload: fmt.Sprintf("service-%05d-%08x", group, uint32(group)*2654435761), workloadUID: uid('r', group)}
	p.Name = fmt.Sprintf("%s-%05x", p.Workload, i)
	if i < w.Ordinary {
		p.Address = address(p.Node, 1+ownEntries+i/w.Nodes)
	}
	return p
}
