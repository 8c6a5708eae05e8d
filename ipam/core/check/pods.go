// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
)

func (s *scan) checkFixedIPs() {
	// first contains the first FixedIP that reserves an address, "namespace/name". Key: the address.
	first := map[netip.Addr]string{}
	for i := range s.FixedIPs {
		f := &s.FixedIPs[i]
		name := f.Namespace + "/" + f.Name
		object := "FixedIP " + name
		if f.DeletionTimestamp != nil {
			if age := s.Now.Sub(f.DeletionTimestamp.Time); age > s.stuckAfter() && s.pods[pool.OwnerKey(f.Namespace, f.Spec.PodName)] == nil {
				s.add(StuckRelease, object, "look at the events of the FixedIP: they name the reason why the release is blocked", nil, "The FixedIP has been in deletion since %s, and its pod does not exist", f.DeletionTimestamp.UTC().Format(time.RFC3339))
			}
			continue
		}
		pod := pool.OwnerKey(f.Namespace, f.Spec.PodName)
		for _, a := range address.ParseAll(f.Spec.IPs) {
			if other, taken := first[a]; taken {
				s.add(SharedReservation, object, "delete the FixedIP whose pod does not run with the address", nil, "FixedIP %s reserves %s too", other, a)
				continue
			}
			first[a] = name
			switch node, e, exists := s.entryOf(a); {
			case exists && e.Owner() != "" && e.Owner() != pod:
				s.add(OtherOwner, object, "delete the FixedIP and then its pod: the next pod gets another address", nil, "The entry of %s in the pool of node %s belongs to %s", a, node, e.Owner())
			case exists && e.Owner() == pod:
			default:
				if home, ok := s.homeOf(a); ok {
					s.add(MissingEntry, object, "look at the condition Allocated of the FixedIP: it names the reason why no pool has the entry", nil, "No entry gives %s to pod %s; the home of the address is node %s", a, pod, home)
				} else {
					s.add(MissingSubnet, object, "look at the condition SubnetAvailable of the FixedIP: it names the subnet or the nodes, and what helps", nil, "No pool decides about %s, because no node has its subnet or the subnets of two nodes overlap; pod %s cannot be placed until exactly one node has the subnet", a, pod)
				}
			}
		}
	}
}

func (s *scan) checkPods() {
	// users contains the pods that hold an address. Key: the address. Value: the pods, "namespace/name".
	users := map[netip.Addr][]string{}
	for _, key := range slices.Sorted(maps.Keys(s.pods)) {
		pod := s.pods[key]
		if pod.Spec.NodeName == "" || !podutil.HoldsIPs(pod) {
			continue
		}
		// A pod that is being deleted holds its addresses until it has ended.
		for _, a := range podutil.IPs(pod) {
			users[a] = append(users[a], key)
		}
		if !podutil.Runs(pod) || identity.OptsOut(pod) {
			continue
		}
		for _, f := range s.fixedIPs[key] {
			var missing []netip.Addr
			for _, a := range address.ParseAll(f.Spec.IPs) {
				if podutil.RunsWithOther(pod, a) {
					missing = append(missing, a)
				}
			}
			if len(missing) == 0 || f.DeletionTimestamp != nil {
				continue
			}
			help, repair := "look at the condition AsReserved of the FixedIP; check --fix does not evict the pod, because the pod is a bare pod, or because the pool of its node has no entry that gives the pod the address", (*Repair)(nil)
			if metav1.GetControllerOfNoCopy(pod) != nil && s.hasEntries(pod, missing) {
				help = "evict the pod: the next pod gets the reserved address; check --fix evicts it if its mismatch policy is Restart"
				repair = &Repair{Evict: true, Pod: key, UID: pod.UID, Workload: identity.OwnerOf(f).Resource(f.Namespace)}
			}
			s.add(WrongAddress, "Pod "+key, help, repair, "The pod runs with %s, but its FixedIP reserves %s", address.Join(podutil.IPs(pod)), list(missing))
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(users), netip.Addr.Compare) {
		for _, second := range users[a][1:] {
			s.add(SharedAddress, "Pod "+second, "delete the pod for which no FixedIP reserves the address", nil, "Pod %s runs with %s too", users[a][0], a)
		}
	}
}

// hasEntries reports whether the pool of the pod's node has entries that give all the addresses to the pod. The next pod with
// that name, or the next pod of the slot, then gets the addresses on that node.
func (s *scan) hasEntries(pod *corev1.Pod, addrs []netip.Addr) bool {
	n, _ := s.Pools.Node(pod.Spec.NodeName)
	return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !n.Entries[a].OwnedBy(pool.OwnerKey(pod.Namespace, pod.Name)) })
}

func (s *scan) checkEndpoints() {
	if len(s.Endpoints) == 0 {
		// Cilium may run without CiliumEndpoints.
		return
	}
	endpoints := map[string]Endpoint{}
	for _, e := range s.Endpoints {
		endpoints[e.Pod] = e
	}
	for key, pod := range s.pods {
		if !podutil.Runs(pod) || len(s.fixedIPs[key]) == 0 {
			continue
		}
		endpoint, exists := endpoints[key]
		addrs := endpoint.Addrs
		if !exists {
			s.add(MissingEndpoint, "Pod "+key, "look at the log of the agent of node "+pod.Spec.NodeName+": it creates CiliumEndpoints", nil, "The pod has no CiliumEndpoint, so other nodes may not reach it")
			continue
		}
		for _, a := range podutil.IPs(pod) {
			if len(addrs) > 0 && !slices.Contains(addrs, a) {
				s.add(WrongEndpoint, "CiliumEndpoint "+key, "delete the CiliumEndpoint: the agent creates it again", &Repair{DeleteEndpoint: true, Pod: key, UID: endpoint.UID, ResourceVersion: endpoint.ResourceVersion}, "The CiliumEndpoint has %s, but its pod runs with %s", list(addrs), address.Join(podutil.IPs(pod)))
				break
			}
		}
	}
}
