// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// AdoptableIPs returns the IPs that a pod runs with and will have for a while. It returns none while that is not sure.
func AdoptableIPs(pod *corev1.Pod, ipv4Only bool) []netip.Addr {
	if !podutil.Runs(pod) {
		return nil
	}
	return slices.DeleteFunc(podutil.IPs(pod), func(a netip.Addr) bool { return ipv4Only && address.Of(a) != address.IPv4 })
}

// MissingReserved returns the IPs that are reserved for an identity and that its pod runs without, in families that it
// has: they are not given up for the IPs that the pod has now. node is where their entries are; it is empty if they are
// in no pool. reserved are the IPs of the FixedIP.
func MissingReserved(held []ledger.NodeAddresses, reserved []reservation.Address, has []netip.Addr) (node string, missing []netip.Addr) {
	lacks := func(a netip.Addr) bool {
		return !slices.Contains(has, a) && slices.ContainsFunc(has, func(b netip.Addr) bool { return address.Of(a) == address.Of(b) })
	}
	for _, h := range held {
		for _, a := range h.Addrs {
			if lacks(a) {
				node, missing = h.Node, append(missing, a)
			}
		}
	}
	for _, k := range reserved {
		if lacks(k.Addr) && !slices.Contains(missing, k.Addr) {
			missing = append(missing, k.Addr)
		}
	}
	return node, missing
}

// WhyNotKept returns why a pod can't keep the IPs that it runs with on a node; nil: it can. The caller has seen the pod
// run with them, after which no other pod can have them until it is gone. dynamic is whether a dynamic entry may become
// the pod's own: that is adoption, the one exception to "a fixed address is never a dynamic entry". An IP in cooldown that
// was released from the pod itself is the pod's: its agent had not seen the release.
func WhyNotKept(n pool.NodePool, id identity.Identity, ips []netip.Addr, dynamic bool) *pool.Blocker {
	for _, a := range ips {
		entry, listed := n.Entries[a]
		switch user, used := n.Used[a]; {
		case listed && entry.OwnedBy(id.Key()):
		case used && user != "" && user != id.Key():
			return &pool.Blocker{Addr: a, Node: n.Name, Reason: pool.InUseByPod, Who: user, Asks: id.Key()}
		case listed && !(dynamic && entry.Kind == pool.Dynamic) && !entry.CoolsDownFrom(id.Key()):
			return entry.Blocker(n.Name, a, id.Key())
		case !n.Home(a):
			return &pool.Blocker{Addr: a, Node: n.Name, Reason: pool.SubnetNotFound, Asks: id.Key(), Subnets: n.Subnets}
		}
	}
	return nil
}

// RestoreReleased returns the edits that give a pod, which was bound to the node because of an entry that was then
// released from its name, that entry back: one of each family, at home on the node, released last. The agent gives the
// pod no other IP once it has seen the entry. No other pod can have had the IP in between. may reports whether the pod
// may have an IP.
func RestoreReleased(n pool.NodePool, id identity.Identity, may func(netip.Addr) bool) []pool.EntryChange {
	var edits []pool.EntryChange
	for _, f := range address.Families {
		if _, has := n.HasEntry(id.Key(), f); has {
			continue
		}
		var released []netip.Addr
		for a, e := range n.Entries {
			if address.Of(a) == f && e.CoolsDownFrom(id.Key()) && n.Home(a) && !n.IsReleasing(a) && may(a) && (!n.InUse(a) || n.Used[a] == id.Key()) {
				released = append(released, a)
			}
		}
		if len(released) == 0 {
			continue
		}
		latest := slices.MaxFunc(released, func(a, b netip.Addr) int {
			return cmp.Or(cmp.Compare(n.Entries[a].Since, n.Entries[b].Since), b.Compare(a))
		})
		edits = append(edits, n.Set(latest, id.Entry()))
	}
	return edits
}
