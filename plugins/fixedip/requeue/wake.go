// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package requeue

import (
	"net/netip"
	"slices"

	"fixedip.io/fixedip/ipam/core/request"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

// Key is one thing that pods wait for, and that events are about.
type Key struct {
	// Cause says what Name is. Owner: the identity, "namespace/name", whose pool entries or FixedIP change, or the pod of
	// that name that ends. Workload: a workload, named as in pool entries, that becomes known or has other annotations.
	// Node: a node whose pool, or whose readiness, changes. Slot: the workload of which a slot becomes free.
	Cause metrics.Cause
	Name  string
	// Addr is an address whose home changes: a subnet with it comes or goes. It has no Name.
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

// WakeOn lists what helps a refused pod. The zero value waits for a change of the pod's annotations, which wakes every
// pod.
type WakeOn struct {
	Keys []Key
	// FreeAddress is an address that becomes free on some node; nil: none helps.
	FreeAddress *FreeAddress
	// Searching tells that the pod waits for a slot alone, of the workload among Keys.
	Searching bool
}

// On returns a WakeOn of names.
func On(cause metrics.Cause, names ...string) WakeOn { return WakeOn{Keys: Keys(cause, names...)} }

// And adds names to a WakeOn.
func (w WakeOn) And(cause metrics.Cause, names ...string) WakeOn {
	w.Keys = slices.Concat(w.Keys, Keys(cause, names...))
	return w
}

// anySubnet is the key of pods that any node may help that gets a subnet.
var anySubnet = Key{Cause: metrics.Node, Name: "*"}

// AndAnySubnet adds every node that gets a subnet, or loses one, to a WakeOn.
func (w WakeOn) AndAnySubnet() WakeOn {
	w.Keys = append(slices.Clip(w.Keys), anySubnet)
	return w
}

// AndHome adds addresses whose home changes to a WakeOn.
func (w WakeOn) AndHome(addrs ...netip.Addr) WakeOn {
	for _, a := range addrs {
		w.Keys = append(slices.Clip(w.Keys), Key{Cause: metrics.Node, Addr: a})
	}
	return w
}

// FreeAddress describes the address that a pod waits for.
type FreeAddress struct {
	// Requested are the addresses that the pod asks for; none: any helps.
	Requested request.Addresses
	// Carried are addresses that a node has to carry for the pod, which keeps them.
	Carried []netip.Addr
	// Strict: the pod has no fixed address, and waits for any address of a strict node.
	Strict bool
}

// The keys of pods that wait for room, by what makes room for them.
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

// Event is a change of the cluster. Each field that is set may help pods.
type Event struct {
	Keys []Key
	// Node is a node whose pool or readiness has changed.
	Node string
	// Freed is how many addresses of Node became free; AllRoom: as many as pods wait.
	Freed int
	// Subnets came to a node or left it.
	Subnets []netip.Prefix
}

// AllFreeAddresses is the number of freed addresses of a node that wakes every pod that can use the node.
const AllFreeAddresses = int(^uint(0) >> 1)

// about reports whether the event is about a key, other than one of room.
func (e Event) about(k Key) bool {
	return slices.Contains(e.Keys, k) || e.Node != "" && k == Key{Cause: metrics.Node, Name: e.Node} || len(e.Subnets) > 0 && k == anySubnet ||
		slices.ContainsFunc(e.Subnets, func(s netip.Prefix) bool { return s.Contains(k.Addr) })
}
