// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/request"
)

// Claim contains the addresses, at most one of each family, that were chosen for a pod on a node.
type Claim struct {
	// Owner is the pod as pool entries name it: "namespace/name".
	Owner string
	Node  string
	Addrs []netip.Addr
	// From is the former holder of the slot, whose entries the claim takes over; empty: none.
	From string
}

// ClaimRequest is the request that Assume decides.
type ClaimRequest struct {
	// Claim contains the parts of the claim that the caller has decided. If Addrs is not empty, the pod gets exactly
	// these addresses in their families: those of a reservation whose entries are missing, of the slot of From, or of a
	// move (Carry). From must be a pod that has stopped.
	Claim
	// Families are the families in which the pod needs an address. In a family that Addrs does not cover, the pod gets the
	// address of its entry on the node, or else that of its FixedIP, or else a free one: see node.pick. If Carry is true,
	// the pod gets only Addrs.
	Families []address.Family
	// Requested are the addresses that the pod requests. They limit the choice of a free address (see Families) in the
	// families that they contain.
	Requested request.Addresses
	// Reassign is true if the pod gets other addresses than those of its FixedIP: Assume ignores the reservation of the
	// FixedIP.
	Reassign bool
	// Carry is true if Addrs move to the node or were moved there before. Their home may be another node.
	Carry bool
	// Unreserved is true for a pod without a fixed address on a strict node. In a family in which it has no entry on the node,
	// the pod gets the lowest free address, because fixed addresses are taken from the top.
	Unreserved bool
}

// Assume chooses the addresses of a pod on a node, in all families or none, and counts them as claimed until Forget. A pod
// that already has a claim on the node keeps that claim, unless the request contains Addrs or Reassign. Otherwise the
// earlier claim of the pod is forgotten, even if Assume fails.
//
// The error is shown in the events of the pod.
func (l *Ledger) Assume(uid types.UID, r ClaimRequest) (Claim, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c, ok := l.claims[uid]; ok && len(r.Addrs) == 0 && !r.Reassign && c.Node == r.Node && c.Owner == r.Owner {
		return c, nil
	}
	l.forget(uid)
	n, err := l.claimable(r.Node, r.Carry)
	if err != nil {
		return Claim{}, err
	}
	c := r.Claim
	switch {
	case r.Carry:
		c.Addrs, err = slices.Clone(r.Addrs), l.carry(n, r)
	case r.Unreserved:
		c.Addrs, err = chooseUnreserved(n.pool, r.Owner, r.Families, nil, n.claimed)
	default:
		c.Addrs, err = l.choose(n, r)
	}
	if err != nil {
		return Claim{}, err
	}
	slices.SortFunc(c.Addrs, netip.Addr.Compare)
	l.claims[uid] = c
	l.claimsByOwner.add(c.Owner, uid)
	n.assume(uid, c.Addrs)
	return c, nil
}

// choose returns the addresses of a claim that is neither Carry nor Unreserved.
func (l *Ledger) choose(n *node, r ClaimRequest) ([]netip.Addr, error) {
	chosen := slices.Clone(r.Addrs)
	for _, a := range chosen {
		if b := l.blocker(n, a, r.Owner, r.From); b != nil {
			return nil, b
		}
	}
	held := l.owners.on(r.Owner, r.Node)
	for _, f := range r.Families {
		ofFamily := func(a netip.Addr) bool { return address.Of(a) == f }
		if slices.ContainsFunc(chosen, ofFamily) {
			continue
		}
		if i := slices.IndexFunc(held, ofFamily); i >= 0 {
			chosen = append(chosen, held[i])
			continue
		}
		if a, ok := l.reserved.of(r.Owner, f); ok && !r.Reassign {
			if b := l.blocker(n, a, r.Owner, r.From); b != nil {
				return nil, b
			}
			chosen = append(chosen, a)
			continue
		}
		a, ok := n.pick(f, r.Requested)
		switch {
		case ok:
			chosen = append(chosen, a)
		case n.pool.Unreported:
			return nil, errNotReported(r.Node)
		case len(r.Requested.Ranges(f)) > 0:
			return nil, fmt.Errorf("none of the requested %s addresses is free in the subnets of node %s (%s); the pod requests %s", f, r.Node, pool.JoinSubnets(n.pool.Subnets), r.Requested)
		default:
			return nil, fmt.Errorf("the subnets of node %s (%s) have no free %s address", r.Node, pool.JoinSubnets(n.pool.Subnets), f)
		}
	}
	return chosen, nil
}

// errNotReported returns the error of a claim on a node whose agent has not reported, so that no address is known to be
// free.
func errNotReported(node string) error {
	return pool.Taken("the Cilium agent of node %s has not reported yet which addresses its pods use, so that no address there is known to be free; check the cilium pod of the node", node)
}

// carry returns an error if the addresses of a Carry request can't be claimed on a node.
func (l *Ledger) carry(n *node, r ClaimRequest) error {
	if err := n.carries(r.Owner, r.Addrs); err != nil {
		return fmt.Errorf("node %s can't carry IP %s: %w", r.Node, address.Join(r.Addrs), err)
	}
	for _, a := range r.Addrs {
		if by, assumed := n.assumed[a]; assumed {
			return &pool.Blocker{Addr: a, Node: r.Node, Reason: pool.ClaimInFlight, Who: l.claims[by].Owner, Requester: r.Owner}
		}
	}
	return nil
}

// Claimed returns the claim in flight of a pod; false if there is none.
func (l *Ledger) Claimed(uid types.UID) (Claim, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	c, ok := l.claims[uid]
	return c, ok
}

// ClaimedOnOtherNode returns a node other than nodeName on which a pod with the name owner and another UID than uid has a
// claim in flight. ok is false if there is none.
func (l *Ledger) ClaimedOnOtherNode(uid types.UID, owner, nodeName string) (node string, ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, other := range l.claimsByOwner[owner] {
		if c := l.claims[other]; other != uid && c.Node != nodeName {
			return c.Node, true
		}
	}
	return "", false
}

// IsClaimed reports whether the pool of the claim's node already has entries of the claim's owner for all addresses of the
// claim.
func (l *Ledger) IsClaimed(c Claim) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(without(c.Addrs, l.owners.on(c.Owner, c.Node))) == 0
}

// Forget removes the claim of a pod from the claims in flight. If the claim was written, its entries in the pool count
// instead. nodeName is the node of the claim; empty: there was no claim. grew reports whether more addresses of the node
// can be chosen now.
func (l *Ledger) Forget(uid types.UID) (nodeName string, grew bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.forget(uid)
}

func (l *Ledger) forget(uid types.UID) (nodeName string, grew bool) {
	c, ok := l.claims[uid]
	if !ok {
		return "", false
	}
	delete(l.claims, uid)
	l.claimsByOwner.remove(c.Owner, uid)
	n, known := l.node(c.Node)
	if !known {
		return c.Node, false
	}
	before := n.choosable()
	maps.DeleteFunc(n.assumed, func(_ netip.Addr, by types.UID) bool { return by == uid })
	n.count()
	for _, other := range l.claimsByOwner[c.Owner] {
		// A pod and the next pod of its name may both have a claim for the address of the same entry.
		if o := l.claims[other]; o.Node == c.Node {
			n.assume(other, o.Addrs)
		}
	}
	return c.Node, n.freedSince(before) > 0
}

// chooseUnreserved returns an address in each family for a pod without a fixed address: that of its entry on the node, or
// else the first unused address in prefer, or else the address that pool.NodePool.Lowest returns.
func chooseUnreserved(n pool.NodePool, owner string, families []address.Family, prefer []netip.Addr, taken func(netip.Addr) bool) ([]netip.Addr, error) {
	var chosen []netip.Addr
	for _, f := range families {
		a, ok := n.HasEntry(owner, f)
		if !ok && n.Unreported {
			return nil, errNotReported(n.Name)
		}
		if !ok {
			i := slices.IndexFunc(prefer, func(a netip.Addr) bool { return address.Of(a) == f && n.Unused(a) })
			if ok = i >= 0; ok {
				a = prefer[i]
			}
		}
		if !ok {
			a, ok = n.Lowest(f, taken)
		}
		if !ok {
			return nil, pool.Taken("node %s is strict, so that each of its pods needs a pool entry, and its subnets (%s) have no free %s address", n.Name, pool.JoinSubnets(n.Subnets), f)
		}
		chosen = append(chosen, a)
	}
	return chosen, nil
}

// ClaimUnreserved returns the edits that write the claim of a pod without a fixed address into a pool that may be newer
// than that of the ledger. If an address of the claim has been taken in the meantime, ClaimUnreserved replaces it with a free
// address that is neither reserved by a FixedIP nor claimed by another pod. If there is no such
// address, it returns no edits and an error that matches pool.ErrTaken. It returns the same before the agent has reported, unless
// the pod has its entries already.
func (l *Ledger) ClaimUnreserved(n pool.NodePool, c Claim, entry pool.Entry) ([]pool.EntryChange, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	others := func(a netip.Addr) bool {
		if _, reserved := l.reserved.first(a); reserved {
			return true
		}
		known, ok := l.node(n.Name)
		if !ok {
			return false
		}
		by, assumed := known.assumed[a]
		return assumed && l.claims[by].Owner != c.Owner
	}
	var families []address.Family
	for _, a := range c.Addrs {
		families = append(families, address.Of(a))
	}
	chosen, err := chooseUnreserved(n, c.Owner, families, c.Addrs, others)
	var edits []pool.EntryChange
	for _, a := range chosen {
		if !n.Entries[a].OwnedBy(c.Owner) {
			edits = append(edits, n.Set(a, entry))
		}
	}
	return edits, err
}

// Blocker returns the reason why the pod owner can't claim an address at the home node of the address; nil if the pod
// can claim it, or if the pod owns the entry of the address already. Even such an entry does not count if the subnets
// of the home overlap those of another node, or if no pod can have the address (SubnetEdge). Without an owned entry of the
// pod, an address that the agent reports as used is not available, even if the agent reports it for owner: a former pod
// of that name uses it.
func (l *Ledger) Blocker(owner string, a netip.Addr) *pool.Blocker {
	l.mu.RLock()
	defer l.mu.RUnlock()
	name, ok := l.nodeOf(a)
	if !ok {
		return &pool.Blocker{Addr: a, Reason: pool.SubnetNotFound, NoSubnet: true, Requester: owner}
	}
	n, _ := l.node(name)
	if n.overlapsNode != "" {
		return &pool.Blocker{Addr: a, Node: name, Reason: pool.SubnetOverlap, Who: n.overlapsNode, Requester: owner}
	}
	if !n.pool.Usable(a) {
		return &pool.Blocker{Addr: a, Node: name, Reason: pool.SubnetEdge, Requester: owner}
	}
	if n.pool.Entries[a].OwnedBy(owner) {
		return nil
	}
	if b := l.blocker(n, a, owner, ""); b != nil {
		return b
	}
	if user, used := n.pool.Used[a]; used {
		return &pool.Blocker{Addr: a, Node: name, Reason: pool.InUseByPod, Who: user, Requester: owner}
	}
	return nil
}

// blocker returns the reason why owner can't claim an address on a node; nil if owner can claim it. An address in a claim in
// flight is not available, even if its entry belongs to owner. from is the owner whose entries the claim takes over; empty:
// none.
func (l *Ledger) blocker(n *node, a netip.Addr, owner, from string) *pool.Blocker {
	_, exists := n.pool.Entries[a]
	takesOver := func(e pool.Entry) bool { return from != "" && e.OwnedBy(from) }
	b := &pool.Blocker{Addr: a, Node: n.pool.Name, Requester: owner}
	if !n.pool.Home(a) {
		b.Reason, b.Subnets = pool.SubnetNotFound, n.pool.Subnets
		return b
	}
	by, assumed := n.assumed[a]
	reservation, reserved := l.reserved.first(a)
	poolBlocker := n.pool.ClaimBlocker(a, owner, takesOver)
	switch {
	case assumed:
		b.Reason, b.Who = pool.ClaimInFlight, l.claims[by].Owner
	case poolBlocker != nil && poolBlocker.Reason != pool.InUseByPod && poolBlocker.Reason != pool.Releasing:
		return poolBlocker
	case reserved && reservation.Owner != owner && reservation.Owner != from && !exists:
		b.Reason, b.Who = pool.ReservedByOtherFixedIP, reservation.Record
	default:
		return poolBlocker
	}
	return b
}

// claimable returns a node, or an error for the events of the pod if no claim can be made there: the node has no CiliumNode,
// or its subnets overlap those of another node. carry skips the second check, because moved addresses may have another home.
func (l *Ledger) claimable(nodeName string, carry bool) (*node, error) {
	n, ok := l.node(nodeName)
	switch {
	case !ok:
		return nil, fmt.Errorf("node %s has no CiliumNode; check that the Cilium agent runs there", nodeName)
	case n.overlapsNode != "" && !carry:
		return nil, fmt.Errorf("the subnets of node %s overlap those of node %s; no IP in them is assigned until spec.ipam.podCIDRs of the two CiliumNodes no longer overlap", nodeName, n.overlapsNode)
	}
	return n, nil
}

// mayMove returns those of an owner's addresses that are in no subnet of n. It returns an error if an address is in a subnet
// of n and can't be moved: the subnets of n overlap those of another node, or the entry of the address in the pool of n is
// neither a Cooldown entry nor one that names the owner.
func (n *node) mayMove(owner string, addrs []netip.Addr) (remote []netip.Addr, err error) {
	for _, a := range addrs {
		if !n.pool.Home(a) {
			remote = append(remote, a)
			continue
		}
		if n.overlapsNode != "" {
			return nil, &pool.Blocker{Addr: a, Node: n.pool.Name, Reason: pool.SubnetOverlap, Who: n.overlapsNode, Requester: owner}
		}
		e, exists := n.pool.Entries[a]
		if exists && e.Kind != pool.Cooldown && e.NamesPod() != owner {
			return nil, e.Blocker(n.pool.Name, a, owner)
		}
	}
	return remote, nil
}

// HomeOf returns the common home node of an owner's addresses. It returns an error, for the events of the pod, if the
// addresses can't be moved: they have no common home, or mayMove of the home returns an error.
func (l *Ledger) HomeOf(owner string, addrs []netip.Addr) (string, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	home := ""
	for _, a := range addrs {
		name, ok := l.nodeOf(a)
		if !ok {
			return "", &pool.Blocker{Addr: a, Reason: pool.SubnetNotFound, NoSubnet: true, Requester: owner}
		}
		if home != "" && home != name {
			return "", fmt.Errorf("the pod's addresses are in the subnets of two nodes, %s and %s, and can't be moved together", home, name)
		}
		home = name
		n, _ := l.node(name)
		if _, err := n.mayMove(owner, []netip.Addr{a}); err != nil {
			return "", err
		}
	}
	return home, nil
}

// Carries returns an error, for the events of the pod, if the pool of a node can't have the addresses of an owner, whether
// or not the node is their home.
func (l *Ledger) Carries(name, owner string, addrs []netip.Addr) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	n, err := l.claimable(name, true)
	if err != nil {
		return err
	}
	return n.carries(owner, addrs)
}

func (n *node) carries(owner string, addrs []netip.Addr) error {
	remote, err := n.mayMove(owner, addrs)
	if err != nil {
		return err
	}
	if b := n.pool.OtherAddressOf(owner, slices.Clone(addrs)); b != nil {
		return b
	}
	if b := n.pool.Carries(owner, remote); b != nil {
		return b
	}
	return nil
}
