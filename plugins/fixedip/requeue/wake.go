// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package requeue

import (
	"net/netip"
	"slices"

	"fixedip.io/fixedip/ipam/core/request"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

// Key is one cause that pods wait for and that events are about.
type Key struct {
	// Cause determines the meaning of Name:
	//   - Owner: a pod, "namespace/name". Its pool entries or its FixedIP change, its claim in flight ends, or the pod ends.
	//   - Workload: a workload, named as in pool entries. It becomes known, or its annotations change.
	//   - Node: a node that changes (see Event.Node). The name of anySubnet stands for the subnets of all nodes.
	//   - Slot: a workload, named as in pool entries. Its slots change, or one of its pods no longer searches for a slot.
	//   - Quota: a namespace whose quota allows more FixedIPs.
	//   - FreeAddress: see anyFreeAddress.
	Cause metrics.Cause
	Name  string
	// Addr is an address whose home changes, because a node gets or loses a subnet that contains it. Name is empty then.
	Addr netip.Addr
}

// Keys returns a Key of the cause for each name that is not empty.
func Keys(cause metrics.Cause, names ...string) []Key {
	var keys []Key
	for _, n := range names {
		if n != "" {
			keys = append(keys, Key{Cause: cause, Name: n})
		}
	}
	return keys
}

// WakeOn lists the causes that may help a refused pod. A change of the annotations of the pod requeues the pod in any case,
// even with the zero value.
type WakeOn struct {
	Keys []Key
	// FreeAddress describes the address that helps if it becomes free on some node; nil: no free address helps.
	FreeAddress *FreeAddress
	// Searching is true if the pod searches for a slot of the workload among Keys, so that a free address does not help.
	Searching bool
}

// On returns a WakeOn with a Key of the cause for each name that is not empty.
func On(cause metrics.Cause, names ...string) WakeOn { return WakeOn{Keys: Keys(cause, names...)} }

// And returns w with a further Key of the cause for each name that is not empty.
func (w WakeOn) And(cause metrics.Cause, names ...string) WakeOn {
	w.Keys = slices.Concat(w.Keys, Keys(cause, names...))
	return w
}

// anySubnet is the key of pods that wait for a change of the subnets of any node.
var anySubnet = Key{Cause: metrics.Node, Name: "*"}

// AndAnySubnet returns w with a further cause: the subnets of any node change.
func (w WakeOn) AndAnySubnet() WakeOn {
	w.Keys = append(slices.Clip(w.Keys), anySubnet)
	return w
}

// AndHome returns w with further causes: the home of one of the addresses changes.
func (w WakeOn) AndHome(addrs ...netip.Addr) WakeOn {
	for _, a := range addrs {
		w.Keys = append(slices.Clip(w.Keys), Key{Cause: metrics.Node, Addr: a})
	}
	return w
}

// FreeAddress describes the address that a pod waits for.
type FreeAddress struct {
	// Requested contains the addresses that the pod requests; empty: any address helps.
	Requested request.Addresses
	// Carried contains the fixed addresses of the pod, which waits for a node that can carry them.
	Carried []netip.Addr
	// Strict is true for an unreserved pod, which waits for any address of a strict node.
	Strict bool
}

// The keys of pods that wait for a free address: for any address, for a node that can carry their addresses, and for an
// address that they request.
var (
	anyFreeAddress       = Key{Cause: metrics.FreeAddress}
	carriedFreeAddress   = Key{Cause: metrics.FreeAddress, Name: "carried"}
	requestedFreeAddress = Key{Cause: metrics.FreeAddress, Name: "requested"}
)

// index returns the keys under which the queue finds a pod.
func (w WakeOn) index() []Key {
	switch r := w.FreeAddress; {
	case r == nil:
		return w.Keys
	case len(r.Carried) > 0:
		return append(slices.Clip(w.Keys), carriedFreeAddress)
	case len(r.Requested.Families()) > 0:
		return append(slices.Clip(w.Keys), requestedFreeAddress)
	}
	return append(slices.Clip(w.Keys), anyFreeAddress)
}

// Event is a change of the cluster. Each field that is set may requeue pods.
type Event struct {
	Keys []Key
	// Node is a node whose pool, free addresses, readiness, fencing or strictness has changed; empty: none.
	Node string
	// Freed is the number of addresses of Node that became free. AllFreeAddresses requeues every pod that waits for a free
	// address and can use Node.
	Freed int
	// Subnets contains the subnets that were added to a node or removed from one.
	Subnets []netip.Prefix
}

// AllFreeAddresses is the value of Event.Freed that requeues every pod that waits for a free address and can use the node.
const AllFreeAddresses = int(^uint(0) >> 1)

// about reports whether the event concerns a key. It returns false for the keys of pods that wait for a free address.
func (e Event) about(k Key) bool {
	return slices.Contains(e.Keys, k) || e.Node != "" && k == Key{Cause: metrics.Node, Name: e.Node} || len(e.Subnets) > 0 && k == anySubnet ||
		slices.ContainsFunc(e.Subnets, func(s netip.Prefix) bool { return s.Contains(k.Addr) })
}
