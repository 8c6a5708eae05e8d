// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Endpoint contains the fields of a CiliumEndpoint that Run needs.
type Endpoint struct {
	// Pod is the pod with the name of the CiliumEndpoint, "namespace/name".
	Pod string
	// Addrs are the addresses in the CiliumEndpoint; empty if the agent has not written them yet.
	Addrs           []netip.Addr
	UID             types.UID
	ResourceVersion string
}

// Objects are the inputs of Run: the objects of a cluster.
type Objects struct {
	// Pools contains the pools of all nodes.
	Pools       *ledger.Ledger
	FixedIPs    []v1alpha1.FixedIP
	NodeSubnets []v1alpha1.NodeSubnet
	// Nodes contains all nodes. Key: the name. If it is nil, StaleSubnet is not reported.
	Nodes     map[string]*corev1.Node
	Pods      []corev1.Pod
	Endpoints []Endpoint
	// Now is the time at which the objects were read.
	Now time.Time
	// StuckAfter is the age after which a release counts as stuck, and an orphaned NodeSubnet that is not needed as stale; 0
	// means DefaultStuckAfter.
	StuckAfter time.Duration
}

// Kind is the kind of a problem.
type Kind string

// The kinds of problems in which two pods have the same address, or may get the same address.
const (
	// SharedAddress means that two pods run with one address.
	SharedAddress Kind = "SharedAddress"
	// SharedReservation means that two FixedIPs reserve one address.
	SharedReservation Kind = "SharedReservation"
	// SharedEntry means that the pools of two nodes offer one address.
	SharedEntry Kind = "SharedEntry"
	// OverlappingSubnets means that the subnets of two nodes overlap.
	OverlappingSubnets Kind = "OverlappingSubnets"
	// OtherOwner means that the pool entry of a reserved address has another owner than the pod for which the FixedIP reserves
	// the address.
	OtherOwner Kind = "OtherOwner"
	// OtherUser means that an agent has given an address to a pod that exists and is not the pod that the pool entry names.
	OtherUser Kind = "OtherUser"
)

// The kinds of problems in which a pod does not have its address, or cannot get it.
const (
	// WrongAddress means that a pod runs with an address that differs from the one that its FixedIP reserves.
	WrongAddress Kind = "WrongAddress"
	// MissingEntry means that no pool has an entry that gives a reserved address to its pod: there is no entry, or the entry
	// offers the address to any pod or to none.
	MissingEntry Kind = "MissingEntry"
	// MissingSubnet is reported instead of MissingEntry if no node has the subnet of the address, or if the subnets of the node
	// that has it overlap those of another node.
	MissingSubnet Kind = "MissingSubnet"
	// WrongEndpoint means that the CiliumEndpoint of a pod with a FixedIP has addresses, but lacks an address of the pod.
	WrongEndpoint Kind = "WrongEndpoint"
	// MissingEndpoint means that a pod with a FixedIP has no CiliumEndpoint although other pods have one.
	MissingEndpoint Kind = "MissingEndpoint"
)

// The kinds of problems in which an object is left over or cannot be used.
const (
	// LeakedEntry means that the pool entry of an unused address belongs to a pod of a workload, and that this pod does not
	// exist and has no FixedIP.
	LeakedEntry Kind = "LeakedEntry"
	// StuckRelease means that the cooldown of an unused address, or the deletion of a FixedIP whose pod does not exist, has
	// lasted longer than Objects.StuckAfter.
	StuckRelease Kind = "StuckRelease"
	// StuckHandshake means that a release handshake does not end.
	StuckHandshake Kind = "StuckHandshake"
	// Malformed means that a pool has keys, subnets, owners or resources that fixedip cannot read.
	Malformed Kind = "Malformed"
	// StaleSubnet means that no CiliumNode has the subnet of a NodeSubnet. It is reported in two cases: the node that the
	// NodeSubnet names exists and has a CiliumNode; or that node does not exist, no FixedIP and no pod has an address of the
	// subnet, and status.orphanedSince is missing or longer ago than Objects.StuckAfter.
	StaleSubnet Kind = "StaleSubnet"
	// UnknownSubnet means that a CiliumNode has a subnet that no NodeSubnet gives it.
	UnknownSubnet Kind = "UnknownSubnet"
	// NoSubnet means that a CiliumNode has no subnet, so that its agent does not start.
	NoSubnet Kind = "NoSubnet"
)

// Repair is an action that ends a problem.
type Repair struct {
	// Evict is true if the pod has to be evicted. Its mismatch policy may forbid that.
	Evict bool `json:"evict,omitempty"`
	// DeleteEndpoint is true if the CiliumEndpoint has to be deleted, so that its agent creates it again.
	DeleteEndpoint bool `json:"deleteEndpoint,omitempty"`
	// Pod is the pod that is evicted, whose CiliumEndpoint is deleted, or whose entry is released or written again:
	// "namespace/name"; empty for other repairs.
	Pod string `json:"pod,omitempty"`
	// UID is the UID of the pod, the CiliumEndpoint or the NodeSubnet, and ResourceVersion the resource version of the
	// CiliumEndpoint or the NodeSubnet. They are preconditions of the repair: an object that was changed, or created again with
	// the same name, has not been checked.
	UID             types.UID `json:"uid,omitempty"`
	ResourceVersion string    `json:"resourceVersion,omitempty"`
	// Workload is the workload of the FixedIP or the pool entry, "namespace/Kind/name". Only one pod of a workload is
	// evicted at a time.
	Workload string `json:"workload,omitempty"`
	// ReleaseOn is the node in whose pool the entry of Address has to be released; empty for other repairs.
	ReleaseOn string `json:"releaseOn,omitempty"`
	// RewriteOn is the node in whose pool the entry of Address has a resource that cannot be read. The repair writes the
	// resource again from the FixedIP that reserves the address for the same pod. Empty for other repairs.
	RewriteOn string     `json:"rewriteOn,omitempty"`
	Address   netip.Addr `json:"address,omitzero"`
	// Handshake is the handshake that has to be withdrawn; nil: none.
	Handshake *HandshakeRepair `json:"handshake,omitempty"`
	// DeleteSubnet is the name of the NodeSubnet that has to be deleted; empty for other repairs. UID and ResourceVersion
	// are those of the NodeSubnet.
	DeleteSubnet string `json:"deleteSubnet,omitempty"`
}

// HandshakeRepair is the withdrawal of the release handshake of one address on one node.
type HandshakeRepair struct {
	Node    string     `json:"node"`
	Address netip.Addr `json:"address"`
	// State is the state of the handshake when it was checked.
	State pool.Handshake `json:"state"`
}

// Problem is a contradiction between objects.
type Problem struct {
	Kind Kind `json:"kind"`
	// Object is the object that has the problem, such as "FixedIP db/web-0".
	Object string `json:"object"`
	Text   string `json:"text"`
	// Help is advice on how to end the problem.
	Help string `json:"help"`
	// Repair ends the problem; nil if a user or the controller has to decide how to end the problem.
	Repair *Repair `json:"repair,omitempty"`
}

// DefaultStuckAfter is the default of Objects.StuckAfter. It is longer than a release normally takes: by default, the
// controller removes the finalizer of a FixedIP at most 10 minutes after the deletion unless its pod may still use the addresses,
// and an agent reports a change within 15 s.
const DefaultStuckAfter = 15 * time.Minute

// Run returns the problems of a cluster, sorted by object and kind.
func Run(o Objects) []Problem {
	s := scan{Objects: o, pods: map[string]*corev1.Pod{}, fixedIPs: map[string][]*v1alpha1.FixedIP{}, nodes: o.Pools.Nodes()}
	for i := range o.Pods {
		s.pods[pool.OwnerKey(o.Pods[i].Namespace, o.Pods[i].Name)] = &o.Pods[i]
	}
	for i := range o.FixedIPs {
		key := pool.OwnerKey(o.FixedIPs[i].Namespace, o.FixedIPs[i].Spec.PodName)
		s.fixedIPs[key] = append(s.fixedIPs[key], &o.FixedIPs[i])
	}
	s.checkPools()
	s.checkSubnets()
	s.checkFixedIPs()
	s.checkPods()
	s.checkEndpoints()
	slices.SortStableFunc(s.found, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Text, b.Text))
	})
	return s.found
}

// Lasting returns the problems of the second reading that the first reading had too. The text of a problem does not contain
// anything that changes while the problem lasts.
func Lasting(first, second []Problem) []Problem {
	type key struct {
		kind         Kind
		object, text string
	}
	had := map[key]bool{}
	for _, p := range first {
		had[key{p.Kind, p.Object, p.Text}] = true
	}
	var lasting []Problem
	for _, p := range second {
		if had[key{p.Kind, p.Object, p.Text}] {
			lasting = append(lasting, p)
		}
	}
	return lasting
}

// scan contains the inputs and the intermediate results of one call of Run.
type scan struct {
	Objects
	// pods contains the pods, and fixedIPs the FixedIPs of each pod. Key: the pod, "namespace/name".
	pods     map[string]*corev1.Pod
	fixedIPs map[string][]*v1alpha1.FixedIP
	// nodes are the pools of all nodes, sorted by name.
	nodes []pool.NodePool
	// held contains the addresses that pods have; nil until isHeld computes it.
	held  map[netip.Addr]bool
	found []Problem
}

func (s *scan) stuckAfter() time.Duration { return cmp.Or(s.StuckAfter, DefaultStuckAfter) }

// add adds a problem. text and its arguments are as for fmt.Sprintf.
func (s *scan) add(kind Kind, object, help string, repair *Repair, text string, args ...any) {
	s.found = append(s.found, Problem{Kind: kind, Object: object, Text: fmt.Sprintf(text, args...), Help: help, Repair: repair})
}
