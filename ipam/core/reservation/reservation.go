// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
)

// ReservedAddress is an address that a FixedIP reserves.
type ReservedAddress struct {
	Addr netip.Addr
	// Node is the node that the FixedIP names.
	Node string
	// Entry is the pool entry that gives the address to the pod.
	Entry pool.Entry
	// Record is the FixedIP.
	Record types.NamespacedName
	// Failover is the FixedIP's own policy for a pod that its node can't take; empty: none.
	Failover v1alpha1.Failover
}

// EntryOf returns the pool entry that gives its addresses to the pod of a FixedIP. The entry of a pod without a
// workload names none: see identity.Identity.Entry.
func EntryOf(r *v1alpha1.FixedIP) pool.Entry {
	if r.Spec.Owner.Kind == "Pod" {
		return pool.BarePodEntry(r.Namespace, r.Spec.PodName)
	}
	return pool.OwnedEntry(r.Namespace, r.Spec.PodName, identity.OwnerOf(r).Label(), r.Spec.Owner.Name)
}

// ReservedAddresses returns the addresses that a FixedIP reserves. Text that is not an address reserves nothing.
func ReservedAddresses(r *v1alpha1.FixedIP) []ReservedAddress {
	var kept []ReservedAddress
	for _, ip := range r.Spec.IPs {
		if a, err := address.Parse(ip); err == nil {
			kept = append(kept, ReservedAddress{
				Addr:     a,
				Node:     r.Spec.NodeName,
				Entry:    EntryOf(r),
				Record:   types.NamespacedName{Namespace: r.Namespace, Name: r.Name},
				Failover: r.Spec.Failover,
			})
		}
	}
	return kept
}

// AllReservedAddresses returns the addresses that several FixedIPs reserve.
func AllReservedAddresses(records []*v1alpha1.FixedIP) []ReservedAddress {
	var kept []ReservedAddress
	for _, r := range records {
		kept = append(kept, ReservedAddresses(r)...)
	}
	return kept
}
