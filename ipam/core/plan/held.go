package plan

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/podutil"
)

func boundTo(pod *corev1.Pod) string {
	if pod == nil {
		return ""
	}
	return pod.Spec.NodeName
}

func heldOn(held []ledger.Holding, node string) (ledger.Holding, bool) {
	for _, h := range held {
		if h.Node == node && node != "" {
			return h, true
		}
	}
	return ledger.Holding{}, false
}

// onePerFamily chooses one address of each family among those that a pod holds on its node. Where
// there are several of one family, somebody has written there by hand, and it is the one that the
// pod runs with; ok is false while that is not known.
func onePerFamily(addrs []netip.Addr, pod *corev1.Pod) (chosen []netip.Addr, ok bool) {
	for _, f := range address.Families {
		var family []netip.Addr
		for _, a := range addrs {
			if address.Of(a) == f {
				family = append(family, a)
			}
		}
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

// all tells whether every one of the given texts is among the addresses.
func all(addrs []netip.Addr, ips []string) bool {
	return !slices.ContainsFunc(ips, func(ip string) bool { return !slices.Contains(address.Strings(addrs), ip) })
}

// heldAny are those of the addresses that are among what is held.
func heldAny(held []ledger.Holding, addrs []netip.Addr) []netip.Addr {
	var found []netip.Addr
	for _, a := range addrs {
		if slices.ContainsFunc(held, func(h ledger.Holding) bool { return slices.Contains(h.Addrs, a) }) {
			found = append(found, a)
		}
	}
	return found
}

// Spares tells that a pod runs, and with none of the addresses. One whose addresses are not known
// yet may come to have any that its node's pool gives it.
func Spares(pod *corev1.Pod, addrs []netip.Addr) bool {
	return pod != nil && len(pod.Status.PodIPs) > 0 && !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return podutil.RunsWith(pod, a) })
}

// hasIPs reports whether the pod has IPs, whichever.
func hasIPs(pod *corev1.Pod) bool { return len(pod.Status.PodIPs) > 0 }

func sameSpec(a, b v1alpha1.FixedIPSpec) bool {
	return slices.Equal(a.IPs, b.IPs) && a.NodeName == b.NodeName && a.Owner == b.Owner && a.PodName == b.PodName && a.Slot == b.Slot && a.Reclaim == b.Reclaim && a.Failover == b.Failover
}
