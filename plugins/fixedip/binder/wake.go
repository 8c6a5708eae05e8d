// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// The queue of waiting pods asks the Binder. Its answers come from the cache only, never from the snapshot of a cycle.
var _ requeue.Domain = &Binder{}

// CanRun reports whether the node's labels let the pod run there, and the node is not cordoned: an address that becomes
// free wakes no pod that cannot run there.
func (b *Binder) CanRun(pod *corev1.Pod, name string) bool {
	node, err := b.Nodes.Get(name)
	if err != nil || node.Spec.Unschedulable {
		return false
	}
	match, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	return err == nil && match
}

// HasRoom reports whether the node has the address that the pod waits for.
func (b *Binder) HasRoom(pod *corev1.Pod, room requeue.Room, name string) bool {
	if len(room.Carried) > 0 {
		return b.Cache.Ledger.Carries(name, pool.OwnerKey(pod.Namespace, pod.Name), room.Carried) == nil
	}
	// On a node that is not strict, an unreserved pod needs no address.
	return room.Strict && !b.onStrictNode(name) || b.Cache.Ledger.CanAllocate(name, b.families, room.Requested)
}

// FreeSlots returns the free slots of a workload.
func (b *Binder) FreeSlots(workload string) (requeue.FreeSlots, error) {
	free, err := b.freeSlots(workload, "")
	if err != nil {
		return requeue.FreeSlots{}, err
	}
	found := requeue.FreeSlots{Count: len(free), Searching: b.slots.count(workload)}
	for _, f := range available(free) {
		found.Nodes = append(found.Nodes, f.node)
	}
	return found, nil
}

// MayUse reports whether a node that is new may take a pod that was refused. The framework asks after it knows the node
// itself, which an event of our own watch could precede.
func (b *Binder) MayUse(pod *corev1.Pod, node string) bool {
	id, fixed, err := identity.Of(pod, b.Cache.Kinds, b.Cache.Workloads.Controller)
	if err != nil || !fixed {
		// A node mends neither an annotation, nor a workload that is not known.
		return false
	}
	r, err := b.reservationOf(context.Background(), id)
	switch {
	case err != nil:
		return false
	case r.node != "":
		return r.node == node || b.homeNodeIfMoved(id, r) == node
	}
	if requested, err := b.requestOf(pod, id); err == nil && len(requested.Families()) > 0 && slices.Contains(b.Cache.Ledger.NodesServing(requested.Addresses), node) {
		return true
	}
	return id.Slot && b.hasSlots(id, node)
}

// hasSlots reports whether the workload of a pod has addresses on the node, or FixedIPs of its namespace do.
func (b *Binder) hasSlots(id identity.Identity, node string) bool {
	n, _ := b.Cache.Ledger.Node(node)
	return slices.ContainsFunc(b.Cache.Ledger.Slots(id.Resource()), func(s ledger.Slot) bool { return s.Node == node }) ||
		slices.ContainsFunc(b.Cache.Ledger.ReservationsIn(n.Subnets...), func(r ledger.Reservation) bool {
			namespace, _, ok := pool.SplitOwnerKey(r.Owner)
			return ok && namespace == id.Namespace
		})
}
