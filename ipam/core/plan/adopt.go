// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Adoptable are the addresses of a pod that may be fixed as they are: it has them and will have
// them for a while. There are none while that is not sure.
func Adoptable(pod *corev1.Pod, ipv4Only bool) []netip.Addr {
	if pod.Spec.NodeName == "" || pod.Spec.HostNetwork || pod.DeletionTimestamp != nil ||
		pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	var addrs []netip.Addr
	for _, ip := range pod.Status.PodIPs {
		a, err := address.Parse(ip.IP)
		if err != nil || ipv4Only && address.Of(a) != address.IPv4 {
			continue
		}
		addrs = append(addrs, a)
	}
	return addrs
}

// Strayed names the addresses that an identity keeps already and that its pod runs without: those
// are not given up for the ones that it has now. node is where they are kept; it is empty where they
// are in no pool. kept are the addresses of its record.
func Strayed(held []ledger.Holding, kept []Kept, has []netip.Addr) (node string, addrs []netip.Addr) {
	for _, h := range held {
		for _, a := range h.Addrs {
			if lacks(has, a) {
				node, addrs = h.Node, append(addrs, a)
			}
		}
	}
	for _, k := range kept {
		if lacks(has, k.Addr) && !slices.Contains(addrs, k.Addr) {
			addrs = append(addrs, k.Addr)
		}
	}
	return node, addrs
}

// lacks tells that the addresses have another one of the family in the place of a.
func lacks(has []netip.Addr, a netip.Addr) bool {
	return !slices.Contains(has, a) && slices.ContainsFunc(has, func(b netip.Addr) bool { return address.Of(a) == address.Of(b) })
}

// Adopt makes the edits that give a pod the addresses that it runs with. The caller has seen the pod
// have them at the API server, after which nobody else can until it is gone. One that was taken from the
// pod's name, and rests, the pod has from an agent that did not know yet. An error says which address it
// can't keep, for people.
func Adopt(n pool.Node, id identity.Identity, addrs []netip.Addr, at time.Time) ([]pool.Edit, error) {
	var edits []pool.Edit
	for _, a := range addrs {
		entry, listed := n.Entries[a]
		switch user, used := n.Used[a]; {
		case listed && entry.OwnedBy(id.Key()):
			if !entry.IsUnreserved() {
				continue
			}
			// On a strict node it was given for as long as the pod is there.
		case used && user != "" && user != id.Key():
			return nil, &pool.Blocker{Addr: a, Node: n.Name, Reason: pool.InUseByPod, Who: user, Asks: id.Key()}
		case listed && entry.Kind != pool.Dynamic && !entry.CoolsDownFrom(id.Key()):
			return nil, entry.Blocker(n.Name, a, id.Key())
		case !n.Home(a):
			return nil, &pool.Blocker{Addr: a, Node: n.Name, Reason: pool.SubnetNotFound, Asks: id.Key(), Subnets: n.Subnets}
		}
		edits = append(edits, n.Own(a, id.Entry(), at))
	}
	return edits, nil
}

// GiveBack makes the edits that give a pod, which was bound to the node counting on what was taken from
// its name, addresses of those back: one of each family, which are at home on the node and have rested for
// the shortest time. The agent gives it no other once it has seen them. Nobody else can have had them in
// between. may tells whether the pod may have an address.
func GiveBack(n pool.Node, id identity.Identity, may func(netip.Addr) bool) []pool.Edit {
	var edits []pool.Edit
	for _, f := range address.Families {
		if _, has := n.HasEntry(id.Key(), f); has {
			continue
		}
		var taken []netip.Addr
		for a, e := range n.Entries {
			if address.Of(a) == f && e.CoolsDownFrom(id.Key()) && n.Home(a) && !n.IsReleasing(a) && may(a) && (!n.InUse(a) || n.Used[a] == id.Key()) {
				taken = append(taken, a)
			}
		}
		if len(taken) == 0 {
			continue
		}
		latest := slices.MaxFunc(taken, func(a, b netip.Addr) int {
			return cmp.Or(cmp.Compare(n.Entries[a].Since, n.Entries[b].Since), b.Compare(a))
		})
		edits = append(edits, n.Set(latest, id.Entry()))
	}
	return edits
}
