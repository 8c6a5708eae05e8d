// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/netip"
	"slices"
	"strings"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/test/sim/agent"
)

// isUnreserved reports whether an entry is for an unreserved pod, and goes with that pod.
func isUnreserved(raw ipamtypes.AllocationIP) bool {
	e, _ := ciliumpool.DecodeEntry(raw)
	return e.IsUnreserved()
}

// atRest checks the world once nothing happens any more: every pod has the addresses reserved for it, and nothing is left of
// deleted objects (invariants 3, 4 and 5).
func (c *checks) atRest() {
	w := c.w
	c.takenBack()
	c.endpointsAtRest()
	records := map[string]*v1alpha1.FixedIP{}
	for _, r := range all[*v1alpha1.FixedIP](w.server, fixedIPs) {
		records[r.Namespace+"/"+r.Spec.PodName] = r
		// The FixedIP of an existing pod stays until the pod is gone, if a user has deleted it.
		if _, pod := one[*corev1.Pod](w.server, pods, r.Namespace+"/"+r.Spec.PodName); r.DeletionTimestamp != nil && !pod {
			c.violate("no leak: FixedIP %s is being deleted for ever", r.Name)
		}
	}
	for _, pod := range all[*corev1.Pod](w.server, pods) {
		c.podAtRest(pod, records[keyOf(pod)])
	}
	for _, cn := range all[*ciliumv2.CiliumNode](w.server, ciliumNodes) {
		for ip, e := range cn.Spec.IPAM.Pool {
			switch {
			case e.Owner == "fixedip.io/cooldown" && (c.inUse(ip) || c.toldOf(ip)):
				// An unreserved pod got the address from an agent that had not seen the entry yet. The address stays in
				// cooldown until the pod is gone or has another address.
			case e.Owner == "fixedip.io/move-target" && c.onItsWay(records[strings.TrimPrefix(e.Resource, "pod=")], strings.TrimPrefix(e.Resource, "pod="), ip, cn.Name):
			case mark(e.Owner) && e.Owner != "fixedip.io/moved":
				c.violate("no leak: %s on %s is still marked %s %s", ip, cn.Name, e.Owner, e.Resource)
			case isPod(e.Owner):
				r := records[e.Owner]
				pod, exists := one[*corev1.Pod](w.server, pods, e.Owner)
				// A bare pod, a pod that opts out, and a pod for which a user has meanwhile made a FixedIP with another
				// address keep running with their address: see podAtRest. The entry of an unreserved pod goes with the pod,
				// which may have got another address from an agent that had not seen the entry yet.
				runs := exists && runsWithAny(pod, []string{ip}) &&
					(metav1.GetControllerOfNoCopy(pod) == nil || pod.Annotations[identity.AnnotationEnabled] != "" || r != nil && c.byUser[r.UID])
				if r == nil && !exists && !c.mayClaim(e.Owner) && !c.mayBeSlot(e.Resource) {
					c.violate("no leak: %s on %s is still kept for %s (%s), of which there is nothing", ip, cn.Name, e.Owner, e.Resource)
				} else if r != nil && namesFamily(r, ip) && !slices.Contains(r.Spec.IPs, ip) && !runs && !(exists && isUnreserved(e)) {
					c.violate("no leak: %s on %s is still kept for %s, whose FixedIP has %v", ip, cn.Name, e.Owner, r.Spec.IPs)
				}
			}
		}
		for ip, state := range cn.Status.IPAM.ReleaseIPs {
			c.violate("no leak: the release handshake of %s on %s is at %s", ip, cn.Name, state)
		}
	}
	for key, r := range records {
		_, pod := one[*corev1.Pod](w.server, pods, key)
		if r.Spec.Slot {
			c.slotAtRest(r, pod)
			continue
		}
		set, exists := one[*appsv1.StatefulSet](w.server, statefulSets, r.Namespace+"/"+r.Spec.Owner.Name)
		// A FixedIP that a user made waits for its workload until the workload has existed.
		gone := !exists && (r.Spec.Owner.UID != "" || !c.byUser[r.UID]) && r.Spec.Reclaim.WhenDeleted == v1alpha1.Delete
		// WhenScaled does not apply if the workload has opted out: the workload then counts as deleted.
		surplus := exists && set.Spec.Template.Annotations[identity.AnnotationEnabled] == "" && int(*set.Spec.Replicas) <= ordinal(r.Spec.PodName) && r.Spec.Reclaim.WhenScaled == v1alpha1.Delete
		if !pod && (gone || surplus) {
			c.violate("no leak: FixedIP %s stands, and nobody is to have it", r.Name)
		}
	}
}

// onItsWay reports whether a move to the node was announced, and the home entry names that node, but the pod went before the
// move was complete: the next pod with the name completes it. Either the FixedIP r reserves the address, or r is nil,
// because the controller saw the pod too late to make one, and the workload retains the addresses of pods that are scaled
// down.
func (c *checks) onItsWay(r *v1alpha1.FixedIP, owner, ip, node string) bool {
	if r != nil && !slices.Contains(r.Spec.IPs, ip) || r == nil && !c.retains(owner) {
		return false
	}
	if _, pod := one[*corev1.Pod](c.w.server, pods, owner); pod {
		return false
	}
	return slices.ContainsFunc(all[*ciliumv2.CiliumNode](c.w.server, ciliumNodes), func(home *ciliumv2.CiliumNode) bool {
		e := home.Spec.IPAM.Pool[ip]
		return e.Owner == "fixedip.io/moved" && e.Resource == "node="+node+";pod="+owner
	})
}

// retains reports whether a workload exists that retains the address of its pod owner after a scale-down.
func (c *checks) retains(owner string) bool {
	name, _, _ := strings.Cut(strings.TrimPrefix(owner, namespace+"/"), "-")
	s, exists := one[*appsv1.StatefulSet](c.w.server, statefulSets, namespace+"/"+name)
	return exists && s.Annotations[identity.AnnotationWhenScaled] != string(v1alpha1.Delete) && s.Spec.Template.Annotations[identity.AnnotationEnabled] == ""
}

// inUse reports whether a pod runs with an address.
func (c *checks) inUse(ip string) bool {
	return slices.ContainsFunc(c.w.machines, func(m *machine) bool { return len(m.uses(ip)) > 0 })
}

// namesFamily reports whether a FixedIP has an address of the family of ip.
func namesFamily(r *v1alpha1.FixedIP, ip string) bool {
	return slices.ContainsFunc(r.Spec.IPs, func(has string) bool { return agent.IsIPv6(has) == agent.IsIPv6(ip) })
}

// toldOf reports whether the status of a pod that has not ended contains an address. After a reboot, a pod that waits for an
// address on a full node still has its former address there.
func (c *checks) toldOf(ip string) bool {
	return slices.ContainsFunc(all[*corev1.Pod](c.w.server, pods), func(pod *corev1.Pod) bool { return !ended(pod) && runsWithAny(pod, []string{ip}) })
}

// staleStatusOnFullNode reports whether the node of a pod is full, and the status of another pod there still has the pod's
// address from before a reboot. That pod gets no new address on a full node, so that its status stays as it is, and the
// controller cannot rule out that it uses the address.
func (c *checks) staleStatusOnFullNode(pod *corev1.Pod) bool {
	return c.w.full(pod.Spec.NodeName) && slices.ContainsFunc(all[*corev1.Pod](c.w.server, pods), func(other *corev1.Pod) bool {
		return other.UID != pod.UID && other.Spec.NodeName == pod.Spec.NodeName && !ended(other) &&
			slices.ContainsFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool {
				return runsWithAny(other, []string{ip.IP}) && !c.hasOther(ip.IP, keyOf(pod))
			})
	})
}

// mayClaim reports whether an entry without a FixedIP may be for a pod that comes back: its workload exists and retains the
// addresses of pods that are scaled down.
func (c *checks) mayClaim(owner string) bool {
	name := owner[strings.Index(owner, "/")+1:]
	set, ok := one[*appsv1.StatefulSet](c.w.server, statefulSets, namespace+"/"+name[:1])
	return ok && set.Annotations[identity.AnnotationWhenScaled] != string(v1alpha1.Delete)
}

// pinnedByOther reports whether a user has made a FixedIP of another pod with an address of this pod. One of the two has to
// go, and only a user can decide which.
func (c *checks) pinnedByOther(pod *corev1.Pod) bool {
	return slices.ContainsFunc(all[*v1alpha1.FixedIP](c.w.server, fixedIPs), func(r *v1alpha1.FixedIP) bool {
		return c.byUser[r.UID] && keyOf(r) != keyOf(pod) && runsWithAny(pod, r.Spec.IPs)
	})
}

// runsWithAny reports whether the status of a pod contains one of the addresses.
func runsWithAny(pod *corev1.Pod, ips []string) bool {
	return slices.ContainsFunc(pod.Status.PodIPs, func(has corev1.PodIP) bool { return slices.Contains(ips, has.IP) })
}

// hasOther reports whether a pod other than key, which is namespace/name, runs with an address.
func (c *checks) hasOther(ip, key string) bool {
	return slices.ContainsFunc(c.w.machines, func(m *machine) bool {
		return slices.ContainsFunc(m.uses(ip), func(user string) bool { return user != key })
	})
}

// full reports whether, in one family, the pool of a node has 7 dynamic entries (the maximum, half of its subnet) or an
// entry for each of the 14 addresses. The default scheduler places pods on such a node too.
func (w *world) full(node string) bool {
	cn, ok := one[*ciliumv2.CiliumNode](w.server, ciliumNodes, node)
	if !ok {
		return false
	}
	return slices.ContainsFunc(w.setup.families(), func(v6 bool) bool {
		dynamic, entries := 0, 0
		for ip, e := range cn.Spec.IPAM.Pool {
			if agent.IsIPv6(ip) == v6 {
				entries++
				if e.Owner == "" {
					dynamic++
				}
			}
		}
		return dynamic >= 7 || entries >= 14
	})
}

// podAtRest checks invariant 3 for one pod. r is its FixedIP; nil: there is none.
func (c *checks) podAtRest(pod *corev1.Pod, r *v1alpha1.FixedIP) {
	key := keyOf(pod)
	if pod.DeletionTimestamp != nil {
		c.violate("no end: pod %s is being deleted for ever", key)
		return
	}
	adopted := c.w.setup.adoption && pod.Labels[adoptLabel] != ""
	fixed := adopted || metav1.GetControllerOfNoCopy(pod) != nil && pod.Annotations[identity.AnnotationEnabled] == ""
	if pod.Spec.NodeName == "" {
		if !c.w.mayWait(pod) {
			c.violate("no end: pod %s is not placed", key)
		}
		return
	}
	// After a reboot the status contains the former address, which the pod may not get again.
	started := slices.ContainsFunc(c.w.machines, func(m *machine) bool { return slices.Contains(m.uses(pod.Status.PodIP), key) })
	if !started && (!fixed || adopted || c.boundTooLate[pod.UID]) && c.w.full(pod.Spec.NodeName) {
		return
	}
	if len(pod.Status.PodIPs) != len(c.w.setup.families()) {
		c.violate("no end: pod %s has no address on %s", key, pod.Spec.NodeName)
		return
	}
	if !fixed {
		return
	}
	if r == nil && c.pinnedByOther(pod) {
		return
	}
	if r == nil && adopted && c.staleStatusOnFullNode(pod) {
		return
	}
	if r == nil {
		c.violate("sticky: pod %s runs with %s, and no FixedIP keeps that", key, pod.Status.PodIP)
		return
	}
	if r.DeletionTimestamp != nil {
		// A user has deleted it, and it goes when the pod does.
		return
	}
	if c.byUser[r.UID] && slices.ContainsFunc(r.Spec.IPs, func(ip string) bool { return c.hasOther(ip, key) }) {
		// A user has reserved an address for it that another pod has. One of the two has to go, and only a user can decide
		// which.
		return
	}
	if metav1.GetControllerOfNoCopy(pod) == nil && meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionMismatch) {
		// No controller would make the pod again, so that the product reports the mismatch and does not evict the pod.
		return
	}
	cn, _ := one[*ciliumv2.CiliumNode](c.w.server, ciliumNodes, pod.Spec.NodeName)
	for _, has := range pod.Status.PodIPs {
		if cn != nil && awayWithout(r, ciliumpool.FromCiliumNode(cn), has.IP) {
			continue
		}
		if !slices.Contains(r.Spec.IPs, has.IP) {
			c.violate("sticky: pod %s runs with %s, and %v is kept for it", key, has.IP, r.Spec.IPs)
		}
		if cn == nil || cn.Spec.IPAM.Pool[has.IP].Owner != key {
			c.violate("durable: pod %s runs with %s, and the pool of %s does not have it for it", key, has.IP, pod.Spec.NodeName)
		}
	}
}

// awayWithout reports whether a FixedIP has no address of the family of ip, and none of its addresses has its home on n. A
// pod gets an address of a second family only at home: otherwise it would have two home nodes.
func awayWithout(r *v1alpha1.FixedIP, n pool.NodePool, ip string) bool {
	family := address.Of(netip.MustParseAddr(ip))
	addrs := address.ParseAll(r.Spec.IPs)
	return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return address.Of(a) == family || n.Home(a) })
}

// takenBack checks that an owner in claimedTooEarly does not keep its entry while another pod runs with the address.
func (c *checks) takenBack() {
	for r := range c.claimedTooEarly {
		cn, ok := one[*ciliumv2.CiliumNode](c.w.server, ciliumNodes, r.node)
		if ok && cn.Spec.IPAM.Pool[r.ip].Owner == r.owner && c.hasOther(r.ip, r.owner) {
			c.violate("no hijack: %s on %s stays with %s, who got it as it went, while another pod runs with it", r.ip, r.node, r.owner)
		}
	}
}
