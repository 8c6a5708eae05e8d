// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package requeue

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/core/request"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

// WakeOn lists what helps a refused pod. Each field that is set is a cause of its own. The zero value waits for a
// change of the pod's annotations, which wakes every pod.
type WakeOn struct {
	// Owner is the identity, "namespace/name", whose pool entries or FixedIP change.
	Owner string
	// Workload is named as in pool entries. It becomes known, or its annotations change.
	Workload string
	// Nodes are nodes whose pool, or whose readiness, changes.
	Nodes []string
	// Addrs are addresses whose home changes: a subnet with one of them comes or goes.
	Addrs []netip.Addr
	// Occupants are pods that end or are deleted.
	Occupants []*corev1.Pod
	// At is a time that comes; zero: none.
	At time.Time
	// Room is an address that becomes free on some node; nil: none helps.
	Room *Room
	// Slots is the workload, named as in pool entries, of which a slot becomes free; empty: none helps.
	Slots string
	// Searching tells that the pod waits for one of the slots alone.
	Searching bool
}

// Room describes the address that a pod waits for.
type Room struct {
	// Requested are the addresses that the pod asks for; none: any helps.
	Requested request.Addresses
	// Carried are addresses that a node has to carry for the pod, which keeps them.
	Carried []netip.Addr
	// Strict: the pod has no fixed address, and waits for any address of a strict node.
	Strict bool
}

// Merge returns the union of two sets of causes.
func (w WakeOn) Merge(o WakeOn) WakeOn {
	if w.Owner == "" {
		w.Owner = o.Owner
	}
	if w.Workload == "" {
		w.Workload = o.Workload
	}
	if w.Room == nil {
		w.Room = o.Room
	}
	if w.Slots == "" {
		w.Slots, w.Searching = o.Slots, o.Searching
	}
	if w.At.IsZero() || !o.At.IsZero() && o.At.Before(w.At) {
		w.At = o.At
	}
	w.Nodes = slices.Concat(w.Nodes, o.Nodes)
	w.Addrs = slices.Concat(w.Addrs, o.Addrs)
	w.Occupants = slices.Concat(w.Occupants, o.Occupants)
	return w
}

// Event is a change of the cluster. Each field that is set may help pods.
type Event struct {
	// Node is a node whose pool or readiness has changed.
	Node string
	// Freed is how many addresses of Node became free; AllRoom: as many as pods wait.
	Freed int
	// Subnets came to a node or left it.
	Subnets []netip.Prefix
	// Owners are the identities whose pool entries or FixedIP have changed.
	Owners []string
	// Workloads became known, or have other annotations.
	Workloads []string
	// Slots are the workloads of which a slot may have become free.
	Slots []string
	// Pod is the UID of a pod that has ended or is deleted.
	Pod types.UID
}

// AllRoom is the number of freed addresses of a node that wakes every pod that can use the node.
const AllRoom = int(^uint(0) >> 1)

// reason returns which of the causes of a pod the event is, without a look at the cluster. The cause that
// concerns the pod alone comes first.
func (w *WakeOn) reason(e Event) (metrics.Cause, bool) {
	switch {
	case w.Owner != "" && slices.Contains(e.Owners, w.Owner):
		return metrics.Owner, true
	case w.Workload != "" && slices.Contains(e.Workloads, w.Workload):
		return metrics.Workload, true
	case e.Pod != "" && slices.ContainsFunc(w.Occupants, func(p *corev1.Pod) bool { return p.UID == e.Pod }):
		return metrics.Owner, true
	case e.Node != "" && slices.Contains(w.Nodes, e.Node),
		slices.ContainsFunc(w.Addrs, func(a netip.Addr) bool {
			return slices.ContainsFunc(e.Subnets, func(s netip.Prefix) bool { return s.Contains(a) })
		}):
		return metrics.Node, true
	}
	return "", false
}
