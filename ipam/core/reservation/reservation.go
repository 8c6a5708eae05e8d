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
	// Node is the node that the FixedIP names.
	Node string
	// Entry is the pool entry that gives the address to the pod.
	Entry pool.Entry
	// Record is the FixedIP.
	Record types.NamespacedName
	// Failover is the FixedIP's own policy for a pod that its node can't take; empty: none.
	Failover v1alpha1.Failover
	// InUse means that, as the status of the FixedIP says, a pod uses the address.
	InUse bool
	// MovableFor is the pod that may have taken the address to another node: see v1alpha1.FixedIPStatus.
	MovableFor types.UID
}

// EntryOf returns the pool entry that gives its addresses to the pod of a FixedIP. The entry of a pod without a
// workload names none: see identity.Identity.Entry.
func EntryOf(r *v1alpha1.FixedIP) pool.Entry {
	if r.Spec.Owner.Kind == "Pod" {
		return pool.BarePodEntry(r.Namespace, r.Spec.PodName)
	}
	return pool.OwnedEntry(r.Namespace, r.Spec.PodName, identity.OwnerOf(r).Label(), r.Spec.Owner.Name)
}

// Of returns the addresses that FixedIPs reserve. Text that is not an address reserves nothing.
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

// InheritancePending reports whether the status says that the node of the addresses is gone and that another node will inherit
// its subnet.
func InheritancePending(fip *v1alpha1.FixedIP) bool {
	c := meta.FindStatusCondition(fip.Status.Conditions, v1alpha1.ConditionSubnetAvailable)
	return c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonInheritancePending
}
