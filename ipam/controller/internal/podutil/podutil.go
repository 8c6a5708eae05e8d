// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package podutil answers questions about a pod that several controllers have.
package podutil

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
)

// IPs returns the addresses in a pod's status. Text that is not an address is left out.
func IPs(pod *corev1.Pod) []netip.Addr {
	var addrs []netip.Addr
	for _, ip := range pod.Status.PodIPs {
		if a, err := address.Parse(ip.IP); err == nil {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// HoldsIPs reports whether the addresses in a pod's status, if any, come from its node's pool and have not been
// released.
func HoldsIPs(pod *corev1.Pod) bool { return !pod.Spec.HostNetwork && !identity.Ended(pod) }

// AwaitsIP reports whether a pod will take an address of its node's pool, as far as its status says.
func AwaitsIP(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && HoldsIPs(pod) && pod.DeletionTimestamp == nil && len(pod.Status.PodIPs) == 0
}
