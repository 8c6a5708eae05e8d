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

// isUnreserved reports whether an entry is for an unreserved pod. Such an entry is removed with the pod.
func isUnreserved(raw ipamtypes.AllocationIP) bool {
	e, _ := ciliumpool.DecodeEntry(raw)
	return e.IsUnreserved()
}

// atRest checks the world at rest: every pod runs with the addresses reserved for it, or waits (see podAtRest), and nothing is
// left of deleted objects (promises 3, 4 and 5 of docs/project/proof.md).
func (c *checks) atRest() {
	w := c.w
	c.endpointsAtRest()
	// byPod contains the FixedIPs. Key: namespace/name of the pod.
	byPod := map[string]*v1alpha1.FixedIP{}
	for _, r := range all[*v1alpha1.FixedIP](w.server, fixedIPs) {
		byPod[r.Namespace+"/"+r.Spec.PodName] = r
		// A FixedIP that a user has deleted stays until its pod is deleted.
		if _, pod := one[*corev1.Pod](w.server, pods, r.Namespace+"/"+r.Spec.PodName); r.DeletionTimestamp != nil && !pod {
			c.violate("no leak: the deletion of FixedIP %s does not end although its pod does not exist", r.Name)
		}
	}
	for _, pod := range all[*corev1.Pod](w.server, pods) {
		c.podAtRest(pod, byPod[keyOf(pod)])
	}
	for _, cn := range all[*ciliumv2.CiliumNode](w.server, ciliumNodes) {
		for ip, e := range cn.Spec.IPAM.Pool {
			switch {
			case e.Owner == "fixedip.io/cooldown" && (c.inUse(ip) || c.inPodStatus(ip)):
				// An unreserved pod got the address from an agent that had not seen the entry yet, or the status of a pod
				// still contains the address after a reboot. The address stays in cooldown until the pod is deleted or has
				// another address.
			case e.Owner == "fixedip.io/move-target" && c.moveIncomplete(byPod[strings.TrimPrefix(e.Resource, "pod=")], strings.TrimPrefix(e.Resource, "pod="), ip, cn.Name):
			case e.Owner == "fixedip.io/moved" && c.mayStayMoved(byPod, ip, e):
			case isMarker(e.Owner):
				c.violate("no leak: the entry of IP %s on node %s still has owner %s (%s)", ip, cn.Name, e.Owner, e.Resource)
			case isPod(e.Owner):
				r := byPod[e.Owner]
				pod, exists := one[*corev1.Pod](w.server, pods, e.Owner)
				// Three kinds of pods keep running with an address that their FixedIP does not name: bare pods, pods that
				// opt out, and pods whose FixedIP a user has created or deleted. See podAtRest. The entry of an unreserved
				// pod is removed with the pod, even if an agent that had not seen the entry has given the pod another
				// address.
				runs := exists && runsWithAny(pod, []string{ip}) &&
					(metav1.GetControllerOfNoCopy(pod) == nil || pod.Annotations[identity.AnnotationEnabled] != "" || r != nil && c.byUser[r.UID])
				if r == nil && !exists && !c.retains(e.Owner) && !c.mayBeSlot(e.Resource) {
					c.violate("no leak: the entry of IP %s on node %s still has owner %s (%s), which has neither a pod nor a FixedIP", ip, cn.Name, e.Owner, e.Resource)
				} else if r != nil && namesFamily(r, ip) && !slices.Contains(r.Spec.IPs, ip) && !runs && !(exists && isUnreserved(e)) {
					c.violate("no leak: the entry of IP %s on node %s still has owner %s, whose FixedIP names only %v", ip, cn.Name, e.Owner, r.Spec.IPs)
				}
			}
		}
		for ip, state := range cn.Status.IPAM.ReleaseIPs {
			c.violate("no leak: the release handshake of IP %s on node %s does not end: state %s", ip, cn.Name, state)
		}
	}
	for key, r := range byPod {
		_, pod := one[*corev1.Pod](w.server, pods, key)
		if r.Spec.AssignedTo == v1alpha1.Slot {
			c.slotAtRest(r, pod)
			continue
		}
		set, exists := one[*appsv1.StatefulSet](w.server, statefulSets, r.Namespace+"/"+r.Spec.Owner.Name)
		// A FixedIP that a user has created stays as long as its workload has never existed: spec.owner has no UID until
		// then. A workload that has opted out counts as deleted, so WhenScaled does not apply to it.
		optedOut := exists && optsOut(set.Spec.Template)
		gone := (!exists && (r.Spec.Owner.UID != "" || !c.byUser[r.UID]) || optedOut) && r.Spec.Reclaim.WhenDeleted == v1alpha1.Delete
		surplus := exists && !optedOut && int(*set.Spec.Replicas) <= ordinal(r.Spec.PodName) && r.Spec.Reclaim.WhenScaled == v1alpha1.Delete
		if !pod && (gone || surplus) {
			c.violate("no leak: FixedIP %s still exists although its workload was deleted, has opted out or was scaled down, and does not retain it", r.Name)
		}
	}
}

// moveIncomplete reports whether a move-target entry on a node may stay at rest: the home entry of the address ip names the
// node as the target of a move, but the pod was deleted before the move was complete, and the next pod with that name
// completes the move. owner is namespace/name of the pod. r is the FixedIP of the pod and has to reserve ip. r is nil if the
// controller saw the pod too late to create a FixedIP. In this case the workload has to retain addresses after a scale-down.
func (c *checks) moveIncomplete(r *v1alpha1.FixedIP, owner, ip, node string) bool {
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

// mayStayMoved reports whether a moved entry of the address ip may stay at rest. Below, the pod and the node are those that the
// entry names. The entry may stay in each of three cases: the FixedIP of the pod names ip; the entry of ip on the node names the
// pod; or the pod does not exist and its workload retains the address.
//
// An entry whose address is about to leave the node belongs to an interrupted move. The scheduler completes or cancels that move
// before it binds the pod, so the entry must not stay after the bind. There is one exception: the pod is bound to the node, and
// its FixedIP is being deleted. The release then began while the node had no CiliumNode, and the entry may stay until the pod is
// deleted.
func (c *checks) mayStayMoved(byPod map[string]*v1alpha1.FixedIP, ip string, raw ipamtypes.AllocationIP) bool {
	e, _ := ciliumpool.DecodeEntry(raw)
	owner := e.Pod()
	pod, exists := one[*corev1.Pod](c.w.server, pods, owner)
	r := byPod[owner]
	if owner == "" {
		return false
	}
	releasing := r != nil && r.DeletionTimestamp != nil && exists && pod.Spec.NodeName == e.Node()
	if e.Leaving && exists && pod.Spec.NodeName != "" && !releasing {
		return false
	}
	if r != nil && slices.Contains(r.Spec.IPs, ip) || !exists && c.retains(owner) {
		return true
	}
	target, ok := one[*ciliumv2.CiliumNode](c.w.server, ciliumNodes, e.Node())
	if !ok {
		return false
	}
	arrived, _ := ciliumpool.DecodeEntry(target.Spec.IPAM.Pool[ip])
	return arrived.NamesPod() == owner
}

// retains reports whether the StatefulSet of a pod exists, has not opted out, and retains the address of the pod after a
// scale-down. owner is namespace/name of the pod.
func (c *checks) retains(owner string) bool {
	name, _, _ := strings.Cut(strings.TrimPrefix(owner, namespace+"/"), "-")
	s, exists := one[*appsv1.StatefulSet](c.w.server, statefulSets, namespace+"/"+name)
	return exists && s.Annotations[identity.AnnotationWhenScaled] != string(v1alpha1.Delete) && !optsOut(s.Spec.Template)
}

// inUse reports whether a pod runs with an address. Forgotten sandboxes do not count.
func (c *checks) inUse(ip string) bool {
	return slices.ContainsFunc(c.w.machines, func(m *machine) bool { return len(m.uses(ip)) > 0 })
}

// namesFamily reports whether a FixedIP has an address of the family of ip.
func namesFamily(r *v1alpha1.FixedIP, ip string) bool {
	return slices.ContainsFunc(r.Spec.IPs, func(has string) bool { return agent.IsIPv6(has) == agent.IsIPv6(ip) })
}

// inPodStatus reports whether the status of a pod that has not ended contains an address. After a reboot, the status of
// a pod that waits for an address on a full node still contains its former address.
func (c *checks) inPodStatus(ip string) bool {
	return slices.ContainsFunc(all[*corev1.Pod](c.w.server, pods), func(pod *corev1.Pod) bool { return !ended(pod) && runsWithAny(pod, []string{ip}) })
}

// staleStatusOnFullNode reports whether the node of a pod is full, and the status of another pod there contains an
// address of the pod since before a reboot. The other pod gets no new address on a full node, so its status does not
// change. The controller then cannot rule out that the other pod uses the address.
func (c *checks) staleStatusOnFullNode(pod *corev1.Pod) bool {
	return c.w.full(pod.Spec.NodeName) && slices.ContainsFunc(all[*corev1.Pod](c.w.server, pods), func(other *corev1.Pod) bool {
		return other.UID != pod.UID && other.Spec.NodeName == pod.Spec.NodeName && !ended(other) &&
			slices.ContainsFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool {
				return runsWithAny(other, []string{ip.IP}) && !c.hasOther(ip.IP, keyOf(pod))
			})
	})
}

// pinnedByOther reports whether a FixedIP that a user has created or deleted reserves an address of this pod for another
// pod. Only a user can decide which of the two pods keeps the address.
func (c *checks) pinnedByOther(pod *corev1.Pod) bool {
	return slices.ContainsFunc(all[*v1alpha1.FixedIP](c.w.server, fixedIPs), func(r *v1alpha1.FixedIP) bool {
		return c.byUser[r.UID] && keyOf(r) != keyOf(pod) && runsWithAny(pod, r.Spec.IPs)
	})
}

// runsWithAny reports whether the status of a pod contains one of the addresses.
func runsWithAny(pod *corev1.Pod, ips []string) bool {
	return slices.ContainsFunc(pod.Status.PodIPs, func(has corev1.PodIP) bool { return slices.Contains(ips, has.IP) })
}

// hasOther reports whether a pod other than key, which is namespace/name, runs with an address. Forgotten sandboxes do not
// count.
func (c *checks) hasOther(ip, key string) bool {
	return slices.ContainsFunc(c.w.machines, func(m *machine) bool {
		return slices.ContainsFunc(m.uses(ip), func(user string) bool { return user != key })
	})
}

// full reports whether the pool of a node is full in one family: half of the addresses have dynamic entries, which is the
// maximum, or all addresses have entries. The default scheduler places pods on such a node too.
func (w *world) full(node string) bool {
	cn, ok := one[*ciliumv2.CiliumNode](w.server, ciliumNodes, node)
	if !ok {
		return false
	}
	return slices.ContainsFunc(w.setup.families(), func(v6 bool) bool {
		size, dynamic, entries := 0, 0, 0
		for _, subnet := range cn.Spec.IPAM.PodCIDRs {
			// No pod gets the first address of a subnet, nor the last one of an IPv4 subnet.
			switch prefix := mustPrefix(subnet); {
			case prefix.Addr().Is6() != v6:
			case v6:
				size += 1<<(128-prefix.Bits()) - 1
			default:
				size += 1<<(32-prefix.Bits()) - 2
			}
		}
		for ip, e := range cn.Spec.IPAM.Pool {
			if agent.IsIPv6(ip) == v6 {
				entries++
				if e.Owner == "" {
					dynamic++
				}
			}
		}
		return size > 0 && (dynamic >= size/2 || entries >= size)
	})
}

// podAtRest checks that a pod runs with its reserved addresses (promise 3 of docs/project/proof.md), unless it waits for an
// address on a full node or only a user can help. r is the FixedIP of the pod; nil if there is none.
func (c *checks) podAtRest(pod *corev1.Pod, r *v1alpha1.FixedIP) {
	key := keyOf(pod)
	if pod.DeletionTimestamp != nil {
		c.violate("rest: the deletion of pod %s does not end", key)
		return
	}
	adopted := c.w.setup.adoption && pod.Labels[adoptLabel] != ""
	fixed := adopted || metav1.GetControllerOfNoCopy(pod) != nil && pod.Annotations[identity.AnnotationEnabled] == ""
	if pod.Spec.NodeName == "" {
		if !c.w.mayWait(pod) {
			c.violate("rest: pod %s is not bound to a node", key)
		}
		return
	}
	// After a reboot the status of a pod contains its former address, but the pod does not necessarily get that address
	// again.
	started := slices.ContainsFunc(c.w.machines, func(m *machine) bool { return slices.Contains(m.uses(pod.Status.PodIP), key) })
	if !started && (!fixed || adopted || c.boundTooLate[pod.UID] || c.needsDynamic(pod.Spec.NodeName, r)) && c.w.full(pod.Spec.NodeName) {
		return
	}
	if len(pod.Status.PodIPs) != len(c.w.setup.families()) {
		c.violate("rest: pod %s on node %s does not have one IP of each family", key, pod.Spec.NodeName)
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
		c.violate("sticky: pod %s runs with IP %s but has no FixedIP", key, pod.Status.PodIP)
		return
	}
	if r.DeletionTimestamp != nil {
		// A user has deleted the FixedIP, which is removed when the pod is deleted.
		return
	}
	if c.byUser[r.UID] && slices.ContainsFunc(r.Spec.IPs, func(ip string) bool { return c.hasOther(ip, key) }) {
		// A user has reserved an address for this pod that another pod has. Only a user can decide which of the two keeps it.
		return
	}
	if metav1.GetControllerOfNoCopy(pod) == nil && meta.IsStatusConditionFalse(r.Status.Conditions, v1alpha1.ConditionAsReserved) {
		// No controller would create the pod again. The product reports the mismatch and does not evict the pod.
		return
	}
	cn, _ := one[*ciliumv2.CiliumNode](c.w.server, ciliumNodes, pod.Spec.NodeName)
	for _, has := range pod.Status.PodIPs {
		if cn != nil && awayWithout(r, ciliumpool.FromCiliumNode(cn), has.IP) {
			continue
		}
		if !slices.Contains(r.Spec.IPs, has.IP) {
			c.violate("sticky: pod %s runs with IP %s, want one of %v, which its FixedIP names", key, has.IP, r.Spec.IPs)
		}
		if cn == nil || cn.Spec.IPAM.Pool[has.IP].Owner != key {
			c.violate("durable: pod %s runs with IP %s, but the pool of node %s has no entry of that IP with the pod as its owner", key, has.IP, pod.Spec.NodeName)
		}
	}
}

// needsDynamic reports whether a pod with the FixedIP r needs the address of a dynamic entry on the node: see awayWithout. No
// FixedIP reserves that address, so on a full node the pod waits like a pod without a fixed address.
func (c *checks) needsDynamic(node string, r *v1alpha1.FixedIP) bool {
	cn, ok := one[*ciliumv2.CiliumNode](c.w.server, ciliumNodes, node)
	return ok && r != nil && slices.ContainsFunc([]string{"0.0.0.0", "::"}, func(ip string) bool {
		return slices.Contains(c.w.setup.families(), agent.IsIPv6(ip)) && awayWithout(r, ciliumpool.FromCiliumNode(cn), ip)
	})
}

// awayWithout reports whether a FixedIP has no address of the family of ip, and n is not the home node of any of its
// addresses. A pod gets a fixed address of a second family only on the home node of the first: otherwise its addresses would
// have two home nodes.
func awayWithout(r *v1alpha1.FixedIP, n pool.NodePool, ip string) bool {
	family := address.Of(netip.MustParseAddr(ip))
	addrs := address.ParseAll(r.Spec.IPs)
	return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return address.Of(a) == family || n.Home(a) })
}
