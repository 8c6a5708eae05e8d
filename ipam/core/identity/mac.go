package identity

import (
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

const (
	// AnnotationStickyMAC on a pod says "true" or "false": whether its interface keeps its MAC
	// address as well.
	AnnotationStickyMAC = "fixedip.io/sticky-mac"
	// AnnotationCiliumMAC is what an agent takes the MAC address of a new interface from (pkg/annotation
	// in Cilium's source). Who sets it by hand has chosen the address himself.
	AnnotationCiliumMAC = "cni.cilium.io/mac-address"
)

// WantsMAC tells whether the pod asks for a MAC address that it does not have yet.
func WantsMAC(pod *corev1.Pod) (bool, error) {
	v, ok := pod.Annotations[AnnotationStickyMAC]
	if !ok {
		return false, nil
	}
	wanted, err := strconv.ParseBool(v)
	if err != nil {
		return false, fmt.Errorf("annotation %s of pod %s/%s is %q; write \"true\" or \"false\"", AnnotationStickyMAC, pod.Namespace, pod.Name, v)
	}
	return wanted && pod.Annotations[AnnotationCiliumMAC] == "", nil
}

// MAC is the address of the identity's interface, the same at any time and in any scheduler, since
// it is worked out from the name alone, or for a slot from the first of its addresses: nothing has to
// be stored, and nothing can be lost. It is a locally administered unicast address; 46 of its bits
// come from a hash.
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
