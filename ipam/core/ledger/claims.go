// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/request"
)

// AssumeFrom decides an address in each family for a pod on a node and keeps it until Forget. What
// the pools already give to the pod there stays, and so does what its FixedIP keeps for it. In a
// family in which addresses are asked for it takes one of them, and otherwise any: the highest that
// is free, or else the one that rests longest. A pod that has a claim keeps it when asked again for
// the same node; on another node the claim is decided anew.
//
// The error is written for people: it is shown in the pod's events.
func (l *Ledger) AssumeFrom(uid types.UID, owner, nodeName string, families []address.Family, asked request.Addresses) (Claim, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c, ok := l.claims[uid]; ok && c.Node == nodeName && c.Owner == owner {
		return c, nil
	}
	l.forget(uid)
	return l.assume(uid, Claim{Owner: owner, Node: nodeName}, families, asked, true)
}

// AssumeAnew decides as AssumeFrom does, whatever a FixedIP keeps for the pod: it is to have other
// addresses.
func (l *Ledger) AssumeAnew(uid types.UID, owner, nodeName string, families []address.Family, asked request.Addresses) (Claim, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(uid)
	return l.assume(uid, Claim{Owner: owner, Node: nodeName}, families, asked, false)
}

// AssumeExact decides the given addresses for a pod: those of a reservation whose entries are not
// in the pool. In a family that they leave out it decides as AssumeFrom does, so that both are
// claimed or none.
func (l *Ledger) AssumeExact(uid types.UID, owner, nodeName string, families []address.Family, addrs []netip.Addr) (Claim, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(uid)
	return l.assume(uid, Claim{Owner: owner, Node: nodeName, Addrs: slices.Clone(addrs)}, families, request.Addresses{}, true)
}

// assume completes a claim, which may name addresses already, and takes it in. kept: what a FixedIP
// keeps for the pod comes before anything else.
func (l *Ledger) assume(uid types.UID, c Claim, families []address.Family, asked request.Addresses, kept bool) (Claim, error) {
	n, err := l.claimable(c.Node)
	if err != nil {
		return Claim{}, err
	}
	for _, a := range c.Addrs {
		if b := l.blocker(n, a, c.Owner, c.From); b != nil {
			return Claim{}, b
		}
	}
	held := l.owners.on(c.Owner, c.Node)
	for _, f := range families {
		ofFamily := func(a netip.Addr) bool { return address.Of(a) == f }
		if slices.ContainsFunc(c.Addrs, ofFamily) {
			continue
		}
		if i := slices.IndexFunc(held, ofFamily); i >= 0 {
			c.Addrs = append(c.Addrs, held[i])
			continue
		}
		if a, ok := l.kept.of(c.Owner, f); ok && kept {
			if b := l.blocker(n, a, c.Owner, c.From); b != nil {
				return Claim{}, b
			}
			c.Addrs = append(c.Addrs, a)
			continue
		}
		a, ok := n.pickFrom(f, asked)
		switch {
		case ok:
			c.Addrs = append(c.Addrs, a)
		case len(asked.Ranges(f)) > 0:
			return Claim{}, fmt.Errorf("none of the addresses asked for (%s) is free in the subnets of node %s (%s)", asked, c.Node, pool.JoinSubnets(n.pool.Subnets))
		default:
			return Claim{}, fmt.Errorf("no free %s address is left in the subnets of node %s (%s)", f, c.Node, pool.JoinSubnets(n.pool.Subnets))
		}
	}
	slices.SortFunc(c.Addrs, netip.Addr.Compare)
	l.take(n, uid, c)
	return c, nil
}

// take records a claim that has been decided on a node.
func (l *Ledger) take(n *node, uid types.UID, c Claim) {
	l.claims[uid] = c
	l.claimants[c.Owner] = append(l.claimants[c.Owner], uid)
	n.assume(uid, c.Addrs)
}

// Claimed is the claim in flight of a pod.
func (l *Ledger) Claimed(uid types.UID) (Claim, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	c, ok := l.claims[uid]
	return c, ok
}

// ClaimedElsewhere is another node on which another pod of the owner's name has a claim in flight.
func (l *Ledger) ClaimedElsewhere(uid types.UID, owner, nodeName string) (node string, ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, other := range l.claimants[owner] {
		if c := l.claims[other]; other != uid && c.Node != nodeName {
			return c.Node, true
		}
	}
	return "", false
}

// IsClaimed tells whether the pools already give all addresses of the claim to its pod.
func (l *Ledger) IsClaimed(c Claim) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	held := l.owners.on(c.Owner, c.Node)
	for _, a := range c.Addrs {
		if !slices.Contains(held, a) {
			return false
		}
	}
	return true
}

// Forget gives the claim of a pod back, whether or not it was written meanwhile: an entry that
// stands is found again as what its owner holds. grew tells whether the node has more room for it.
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
	others := slices.DeleteFunc(l.claimants[c.Owner], func(other types.UID) bool { return other == uid })
	if len(others) == 0 {
		delete(l.claimants, c.Owner)
	} else {
		l.claimants[c.Owner] = others
	}
	n, known := l.node(c.Node)
	if !known {
		return c.Node, false
	}
	before := n.rooms()
	n.forget(uid)
	for _, other := range others {
		// A pod and the next pod of its name may both have a claim for what the pool gives to the name.
		if o := l.claims[other]; o.Node == c.Node {
			n.assume(other, o.Addrs)
		}
	}
	return c.Node, n.grewSince(before)
}
