// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package reservation

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Address is an address that a FixedIP reserves.
type Address struct {
	Addr netip.Addr
	// Node is spec.nodeName of the FixedIP; empty: not set.
	Node string
	// Entry is the pool entry that gives the address to the pod.
	Entry pool.Entry
	// Record is the namespace and name of the FixedIP.
	Record types.NamespacedName
	// Failover is the failover policy of the FixedIP; empty: the FixedIP has none.
	Failover v1alpha1.Failover
	// InUse is true if the status of the FixedIP names a pod that uses the address.
	InUse bool
	// MovableFor is the UID of the pod that may take, or has taken, the address to another node; empty: none. See
	// v1alpha1.FixedIPStatus.
	MovableFor types.UID
}

// NamesPod reports whether the status of the FixedIP names a pod that uses the address, or that may have taken it to another
// node. Such a pod may still run on Node after it was deleted by force.
func (a Address) NamesPod() bool { return a.InUse || a.MovableFor != "" }

// State is the state of a reservation in one word.
type State string

const (
	// Unseen means that the controller has not written the status yet.
	Unseen State = ""
	// Reserved means that the addresses are reserved and no pod uses them.
	Reserved State = "Reserved"
	// InUse means that a pod that is bound to a node uses the addresses.
	InUse State = "InUse"
	// Releasing means that the FixedIP is being deleted. Its addresses are released when no pod uses them any more.
	Releasing State = "Releasing"
)

// StateOf returns the state of the reservation of a FixedIP.
func StateOf(fip *v1alpha1.FixedIP) State {
	switch {
	case fip.DeletionTimestamp != nil:
		return Releasing
	case fip.Status.PodUID != "":
		return InUse
	case len(fip.Status.Conditions) > 0:
		return Reserved
	}
	return Unseen
}

// EntryOf returns the pool entry that gives the addresses of a FixedIP to its pod. The entry of a bare pod names no
// workload: see identity.Identity.Entry.
func EntryOf(r *v1alpha1.FixedIP) pool.Entry {
	if r.Spec.Owner.Kind == "Pod" {
		return pool.BarePodEntry(r.Namespace, r.Spec.PodName)
	}
	return pool.OwnedEntry(r.Namespace, r.Spec.PodName, identity.OwnerOf(r).Label(), r.Spec.Owner.Name)
}

// Of returns the addresses that FixedIPs reserve, in the order of records. Values of spec.ips that are not addresses are
// left out.
func Of(records ...*v1alpha1.FixedIP) []Address {
	var reserved []Address
	for _, r := range records {
		for _, a := range address.ParseAll(r.Spec.IPs) {
			reserved = append(reserved, Address{
				Addr:       a,
				Node:       r.Spec.NodeName,
				Entry:      EntryOf(r),
				Record:     types.NamespacedName{Namespace: r.Namespace, Name: r.Name},
				Failover:   r.Spec.Failover,
				InUse:      r.Status.PodUID != "",
				MovableFor: r.Status.MovableFor,
			})
		}
	}
	return reserved
}

// InheritancePending reports whether the condition SubnetAvailable of a FixedIP has the reason InheritancePending: the node
// of the addresses is gone, and another node will inherit the subnet.
func InheritancePending(fip *v1alpha1.FixedIP) bool {
	c := meta.FindStatusCondition(fip.Status.Conditions, v1alpha1.ConditionSubnetAvailable)
	return c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonInheritancePending
}
