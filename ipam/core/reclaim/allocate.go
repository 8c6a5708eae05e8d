// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Precedes reports which of two FixedIPs that name the same address has it: the one whose entry exists, or else the
// older one. Two such FixedIPs are a user's mistake, and one of them has to wait.
func Precedes(a, b *v1alpha1.FixedIP, holds func(*v1alpha1.FixedIP) bool) bool {
	if x, y := holds(a), holds(b); x != y {
		return x
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Namespace+"/"+a.Name < b.Namespace+"/"+b.Name
}

// allocation returns where the recorded addresses that have no entry in any pool get one: all of them, or none. A
// scheduler would complete what a pod holds in one family with any address of the other. blocker is the obstacle, if
// there is one.
func allocation(s State) (node string, addrs []netip.Addr, blocker *pool.Blocker) {
	for _, h := range s.Homes {
		if holds(s.Held, h.Addr) && (h.Entry == nil || !h.Entry.IsUnreserved()) {
			continue
		}
		if b := blockerAt(s, h); b != nil {
			return "", nil, b
		}
		if node != "" && node != h.Node {
			return "", nil, &pool.Blocker{Addr: h.Addr, Node: h.Node, Reason: pool.AddressesOnDifferentNodes, Who: node, Asks: ownerOf(s)}
		}
		node, addrs = h.Node, append(addrs, h.Addr)
	}
	return node, addrs, nil
}

// blockerAt returns why the entry of an address cannot be written at its home; nil: it can.
func blockerAt(s State, h AddressHome) *pool.Blocker {
	owner := ownerOf(s)
	switch {
	case h.Node == "":
		return &pool.Blocker{Addr: h.Addr, Reason: pool.SubnetNotFound, Asks: owner}
	case h.Rival != "":
		return &pool.Blocker{Addr: h.Addr, Node: h.Node, Reason: pool.ReservedByOtherFixedIP, Who: h.Rival, Asks: owner}
	case h.User != "":
		return &pool.Blocker{Addr: h.Addr, Node: h.Node, Reason: pool.InUseByPod, Who: h.User, Asks: owner}
	case h.Entry == nil:
		return otherAddress(s, h)
	case h.Entry.Kind == pool.Cooldown && RunsOn(s.Pod, h.Node, h.Addr):
		// The address was released, and the pod has it from an agent that did not know yet: no other pod can.
		return otherAddress(s, h)
	case h.Entry.Kind == pool.Dynamic && RunsOn(s.Pod, h.Node, h.Addr):
		// The pod itself has the address: no other pod can.
		return nil
	}
	return h.Entry.Blocker(h.Node, h.Addr, owner)
}

// otherAddress returns the Blocker if the pod has another address of the family at the same home: a pool never gives
// two to one pod.
func otherAddress(s State, h AddressHome) *pool.Blocker {
	held, _ := heldOn(s.Held, h.Node)
	i := slices.IndexFunc(held.Addrs, func(a netip.Addr) bool { return address.Of(a) == address.Of(h.Addr) })
	if i < 0 {
		return nil
	}
	return &pool.Blocker{Addr: h.Addr, Node: h.Node, Reason: pool.OtherAddressAllocated, Who: held.Addrs[i].String(), Asks: ownerOf(s)}
}

// ownerOf returns the pod of the FixedIP as entries name it.
func ownerOf(s State) string { return pool.OwnerKey(s.Record.Namespace, s.Record.Spec.PodName) }

// RunsOn reports whether a pod runs on a node with an address and is not being deleted.
func RunsOn(pod *corev1.Pod, node string, a netip.Addr) bool {
	return pod != nil && pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning && boundTo(pod) == node && podutil.RunsWith(pod, a)
}

// AllocateEntries returns the edits that give a pod its recorded addresses in the pool of their home: all of them, or
// none and an error that matches pool.ErrTaken. own reports whether the pod itself runs with an address, whose entry
// may then be a dynamic one or in its cooldown.
func AllocateEntries(n pool.NodePool, addrs []netip.Addr, entry pool.Entry, own func(netip.Addr) bool, at time.Time) ([]pool.EntryChange, error) {
	var free []netip.Addr
	var edits []pool.EntryChange
	for _, a := range addrs {
		e, exists := n.Entries[a]
		user, used := n.Used[a]
		cooling := e.Kind == pool.Cooldown
		switch {
		case e.IsUnreserved() && e.OwnedBy(entry.Owner):
			// On a strict node it was written for as long as the pod exists.
			edits = append(edits, n.Set(a, entry))
		case (exists && e.Kind == pool.Dynamic || cooling && n.OtherAddressOf(entry.Owner, addrs) == nil) && own(a) && (!used || user == entry.Owner):
			edits = append(edits, n.Own(a, entry, at))
		default:
			free = append(free, a)
		}
	}
	if len(free) == 0 {
		return edits, nil
	}
	claimed, err := n.Claim(free, entry)
	if err != nil {
		return nil, err
	}
	return append(edits, claimed...), nil
}
