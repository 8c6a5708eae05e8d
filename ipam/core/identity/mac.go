// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"crypto/sha256"
	"net"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

const (
	// AnnotationStickyMAC on a pod ("true" or "false") says whether its interface keeps its MAC address too.
	AnnotationStickyMAC = "fixedip.io/sticky-mac"
	// AnnotationCiliumMAC is the annotation from which an agent takes the MAC address of a new interface (Cilium
	// fact 16). A value that a user set is kept.
	AnnotationCiliumMAC = "cni.cilium.io/mac-address"
)

// WantsMAC reports whether the pod asks for a stable MAC address and has none yet.
func WantsMAC(pod *corev1.Pod) (bool, error) {
	wanted, _, err := boolean(pod, AnnotationStickyMAC)
	return wanted && pod.Annotations[AnnotationCiliumMAC] == "", err
}

// MAC returns the MAC address of the identity. It is derived from the identity's name or, for a slot, from its first
// address, so it need not be stored. It is a locally administered unicast address; 46 bits come from a hash.
func (i Identity) MAC(addrs []netip.Addr) net.HardwareAddr {
	of := i.Key()
	if i.Slot && len(addrs) > 0 {
		of = addrs[0].String()
	}
	sum := sha256.Sum256([]byte("fixedip.io/mac/" + of))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^0x01 | 0x02
	return mac
}
