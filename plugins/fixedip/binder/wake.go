// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// domain answers what the queue of waiting pods asks. It reads the cache only, never the snapshot of a cycle.
type domain struct{ *Binder }

// Domain returns what the queue of the profile asks about the cluster.
func (b *Binder) Domain() requeue.Domain { return domain{b} }

// Fits reports whether the node's labels let the pod run there, and the node is not cordoned: an address that becomes
// free wakes no pod that cannot run there.
func (d domain) Fits(pod *corev1.Pod, name string) bool {
	node, err := d.Nodes.Get(name)
	if err != nil || node.Spec.Unschedulable {
		return false
	}
	match, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	return err == nil && match
}

// HasRoom reports whether the node has the address that the pod waits for.
func (d domain) HasRoom(pod *corev1.Pod, room requeue.Room, name string) bool {
	switch {
	case len(room.Carried) > 0:
		return d.Cache.Ledger.Carries(name, pool.OwnerKey(pod.Namespace, pod.Name), room.Carried) == nil
	case room.Strict:
		if !d.strict.has(name) {
			// It needs no address there.
			return true
		}
	}
	return d.Cache.Ledger.CanAllocate(name, d.families, room.Requested)
}

// FreeSlots returns the free slots of a workload.
func (d domain) FreeSlots(workload string) (requeue.FreeSlots, error) {
	free, err := d.freeSlots(workload, "")
	if err != nil {
		return requeue.FreeSlots{}, err
	}
	found := requeue.FreeSlots{Count: len(free), Searching: d.slots.count(workload)}
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
	return b.reaches(pod, id, node) || id.Slot && b.hasSlots(id, node)
}

// reaches reports whether the node's subnets have what a pod asks for.
func (b *Binder) reaches(pod *corev1.Pod, id identity.Identity, node string) bool {
	requested, err := b.requestOf(pod, id)
	if err != nil || len(requested.Families()) == 0 {
		return false
	}
	n, _ := b.Cache.Ledger.Node(node)
	for _, s := range n.Subnets {
		if len(requested.Within(s)) > 0 {
			return true
		}
	}
	return false
}

// hasSlots reports whether the workload of a pod has addresses on the node, or FixedIPs of its namespace do.
func (b *Binder) hasSlots(id identity.Identity, node string) bool {
	n, _ := b.Cache.Ledger.Node(node)
	for _, e := range n.Entries {
		if e.Workload == id.Resource() {
			return true
		}
	}
	for _, k := range b.Cache.Ledger.ReservationsIn(n.Subnets...) {
		if namespace, _, ok := pool.SplitOwnerKey(k.Owner); ok && namespace == id.Namespace {
			return true
		}
	}
	return false
}
