// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/podutil"
)

// boundTo returns the node that a pod is bound to; empty: none, or there is no pod.
func boundTo(pod *corev1.Pod) string {
	if pod == nil {
		return ""
	}
	return pod.Spec.NodeName
}

// heldOn returns what is held on a node.
func heldOn(held []ledger.NodeAddresses, node string) (ledger.NodeAddresses, bool) {
	i := slices.IndexFunc(held, func(h ledger.NodeAddresses) bool { return h.Node == node && node != "" })
	if i < 0 {
		return ledger.NodeAddresses{}, false
	}
	return held[i], true
}

// holds reports whether an address is among what is held.
func holds(held []ledger.NodeAddresses, a netip.Addr) bool {
	return slices.ContainsFunc(held, func(h ledger.NodeAddresses) bool { return slices.Contains(h.Addrs, a) })
}

// onePerFamily chooses one address of each family among those that a pod holds on its node. If there are several of
// one family, a user wrote an entry by hand, and the pod runs with the one that counts; ok is false while that is not
// known.
func onePerFamily(addrs []netip.Addr, pod *corev1.Pod) (chosen []netip.Addr, ok bool) {
	for _, f := range address.Families {
		family := slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return address.Of(a) != f })
		if len(family) > 1 {
			family = slices.DeleteFunc(family, func(a netip.Addr) bool { return !podutil.RunsWith(pod, a) })
			if len(family) != 1 {
				return nil, false
			}
		}
		chosen = append(chosen, family...)
	}
	return chosen, true
}

// recorded returns the addresses that a FixedIP names.
func recorded(r *v1alpha1.FixedIP) []netip.Addr { return address.ParseAll(r.Spec.IPs) }

// containsAll reports whether every one of the given texts is among the addresses.
func containsAll(addrs []netip.Addr, ips []string) bool {
	return !slices.ContainsFunc(ips, func(ip string) bool { return !slices.Contains(address.Strings(addrs), ip) })
}

// RunsWithout reports whether the pod has reported IPs and none of addrs is among them. A pod without reported IPs may
// come to have any that its node's pool has for it.
func RunsWithout(pod *corev1.Pod, addrs []netip.Addr) bool {
	return pod != nil && len(pod.Status.PodIPs) > 0 && !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return podutil.RunsWith(pod, a) })
}
