// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/core/ledger"
)

// heldOn returns what is held on a node.
func heldOn(held []ledger.Holding, node string) (ledger.Holding, bool) {
	i := slices.IndexFunc(held, func(h ledger.Holding) bool { return h.Node == node && node != "" })
	if i < 0 {
		return ledger.Holding{}, false
	}
	return held[i], true
}

func runsWith(pod *corev1.Pod, a netip.Addr) bool {
	return slices.Contains(pod.Status.PodIPs, corev1.PodIP{IP: a.String()})
}
