// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

func (s *scan) checkPools() {
	// subnetOf contains the node of each NodeSubnet. Key: the CIDR.
	subnetOf := map[string]string{}
	for _, n := range s.NodeSubnets {
		subnetOf[n.Spec.CIDR] = n.Spec.NodeName
	}
	for _, n := range s.nodes {
		object := "CiliumNode " + n.Name
		if len(n.Malformed) > 0 {
			s.add(Malformed, object, "correct or remove these elements with kubectl edit ciliumnode "+n.Name, nil, "%s cannot be read", strings.Join(slices.Sorted(slices.Values(n.Malformed)), ", "))
		}
		if len(n.PodCIDRs) == 0 {
			s.add(NoSubnet, object, "look at the events of the Node: they name the reason, for example that no subnet is left", nil, "The node has no subnet, so its agent does not start")
		}
		if other, ok := s.Pools.OverlapsWith(n.Name); ok && n.Name < other {
			s.add(OverlappingSubnets, object, pool.OverlapHelp, nil, "A subnet of the node overlaps one of node %s; no fixed IP in these subnets is assigned and the pools are not refilled until the overlap ends", other)
		}
		// In a cluster without any NodeSubnet, the controller has not run yet: no subnet is reported.
		for _, subnet := range n.Subnets {
			if node, known := subnetOf[subnet.String()]; len(s.NodeSubnets) > 0 && (!known || node != n.Name) {
				is := "no NodeSubnet has it"
				if known {
					is = "its NodeSubnet names " + cmp.Or(node, "no node")
				}
				s.add(UnknownSubnet, object, "check that a fixedip-controller is the leader: it creates a missing NodeSubnet, and corrects one that names no node or a node that is gone; remove the subnet from spec.ipam.podCIDRs of the CiliumNode only if its NodeSubnet names another node that exists", nil, "The node has the subnet %s, but %s", subnet, is)
			}
		}
		s.checkEntries(n, object)
		s.checkHandshakes(n, object)
	}
}

func (s *scan) checkEntries(n pool.NodePool, object string) {
	for _, a := range slices.SortedFunc(maps.Keys(n.Entries), netip.Addr.Compare) {
		e := n.Entries[a]
		if why := malformedText(e, n.Resources[a]); why != "" {
			s.add(Malformed, object, s.malformedHelp(n, a), s.rewrite(n, a), "The entry of %s cannot be read: %s", a, why)
		}
		if offers := s.Pools.Offering(a); e.Allocatable() && len(offers) > 1 && offers[0] == n.Name {
			s.add(SharedEntry, object, "remove the entry from the pool of the node on which no pod uses the address", nil, "The pools of nodes %s offer %s", strings.Join(offers, " and "), a)
		}
		switch user, used := n.Used[a]; {
		case e.Kind == pool.Owned && used && pool.IsPodKey(user) && user != e.Owner() && s.pods[user] != nil:
			s.add(OtherUser, object, "delete the pod that has no reservation; its replacement gets another address", nil, "The agent has given %s to pod %s, but the entry belongs to pod %s", a, user, e.Owner())
		case e.Kind == pool.Owned && e.Purpose == pool.ForWorkload && !used && s.pods[e.Owner()] == nil && len(s.fixedIPs[e.Owner()]) == 0:
			// Only entries for pods of workloads are reported. An entry without a purpose is a reservation that a user has
			// written.
			s.add(LeakedEntry, object, "wait for the controller, which releases the address if the workload does not exist; if the entry stays, run kubectl fixedip check --fix, which releases nothing while the workload exists", &Repair{Pod: e.Owner(), ReleaseOn: n.Name, Address: a, Workload: e.Workload()}, "The entry of %s belongs to pod %s, which does not exist and has no FixedIP", a, e.Owner())
		case e.Kind == pool.Cooldown && !used && e.Since() != 0 && s.Now.Sub(e.SinceTime()) > s.stuckAfter():
			s.add(StuckRelease, object, "check that a fixedip-controller is the leader, and look at the log of the agent of the node: the cooldown ends when the agent has acknowledged it", nil, "The cooldown of %s has lasted since %s", a, e.SinceTime().UTC().Format(time.RFC3339))
		}
	}
}

// entryOf returns the first node, by name, whose pool has an entry from which its agent may allocate the address, and that entry.
// found is false if there is none.
func (s *scan) entryOf(a netip.Addr) (node string, e pool.Entry, found bool) {
	for _, name := range s.Pools.Offering(a) {
		n, _ := s.Pools.Node(name)
		return name, n.Entries[a], true
	}
	return "", pool.Entry{}, false
}

// homeOf returns the home node of the address, and false if there is none or if its subnets overlap those of another node.
func (s *scan) homeOf(a netip.Addr) (string, bool) { return s.Pools.Home(a) }

// list returns addresses as text, sorted.
func list(addrs []netip.Addr) string {
	addrs = slices.Clone(addrs)
	slices.SortFunc(addrs, netip.Addr.Compare)
	return address.Join(addrs)
}
