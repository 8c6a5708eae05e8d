// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"net/netip"
	"slices"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Blocker returns why the pod owner can't claim an address, wherever its home is; nil if it can, or has it. An address that
// the agent reports as in use is not available, not even to a pod of the name that it reports.
func (l *Ledger) Blocker(owner string, a netip.Addr) *pool.Blocker {
	l.mu.RLock()
	defer l.mu.RUnlock()
	name, subnet, ok := l.home(a)
	if !ok {
		return &pool.Blocker{Addr: a, Reason: pool.SubnetNotFound, Asks: owner}
	}
	n, _ := l.node(name)
	if n.overlapsNode != "" {
		return &pool.Blocker{Addr: a, Node: name, Reason: pool.SubnetOverlap, Who: n.overlapsNode, Asks: owner}
	}
	if !address.Usable(subnet, a) {
		return &pool.Blocker{Addr: a, Node: name, Reason: pool.SubnetEdge, Asks: owner}
	}
	if n.pool.Entries[a].OwnedBy(owner) {
		return nil
	}
	if b := l.blocker(n, a, owner, ""); b != nil {
		return b
	}
	if user, used := n.pool.Used[a]; used {
		// The former pod of the name has it.
		return &pool.Blocker{Addr: a, Node: name, Reason: pool.InUseByPod, Who: user, Asks: owner}
	}
	return nil
}

// blocker returns why owner can't claim an address on a node; nil if it can, or has it and no other claim has. from is the
// owner whose entries the claim takes over; empty if there is none.
func (l *Ledger) blocker(n *node, a netip.Addr, owner, from string) *pool.Blocker {
	_, exists := n.pool.Entries[a]
	takesOver := func(e pool.Entry) bool { return from != "" && e.OwnedBy(from) }
	b := &pool.Blocker{Addr: a, Node: n.pool.Name, Asks: owner}
	if !n.pool.Home(a) {
		b.Reason, b.Subnets = pool.SubnetNotFound, n.pool.Subnets
		return b
	}
	by, assumed := n.assumed[a]
	reservation, reserved := l.reserved.first(a)
	poolBlocker := n.pool.Blocker(a, owner, takesOver)
	switch {
	case assumed:
		b.Reason, b.Who = pool.ClaimInFlight, l.claims[by].Owner
	case poolBlocker != nil && poolBlocker.Reason != pool.InUseByPod:
		return poolBlocker
	case reserved && reservation.Owner != owner && reservation.Owner != from && !exists:
		b.Reason, b.Who = pool.ReservedByOtherFixedIP, reservation.Record
	case poolBlocker != nil:
		return poolBlocker
	case n.pool.IsReleasing(a) && !n.pool.Entries[a].OwnedBy(owner):
		b.Reason = pool.Releasing
	default:
		return nil
	}
	return b
}

// claimable returns a node that claims can be made on; with carry the addresses need not be the node's own. The error is
// for the pod's events.
func (l *Ledger) claimable(nodeName string, carry bool) (*node, error) {
	n, ok := l.node(nodeName)
	switch {
	case !ok:
		return nil, fmt.Errorf("node %s has no CiliumNode yet; check that the Cilium agent runs there", nodeName)
	case n.overlapsNode != "" && !carry:
		return nil, fmt.Errorf("the subnets of node %s overlap those of node %s; no address in them is claimed until one of the two is changed", nodeName, n.overlapsNode)
	}
	return n, nil
}

// mayMove returns why the addresses of an owner can't have a node as their home or carrier: one of them is at home there
// and belongs to another pod. foreign are those of the addresses that are at home on another node.
func (n *node) mayMove(owner string, addrs []netip.Addr) (foreign []netip.Addr, err error) {
	for _, a := range addrs {
		if !n.pool.Home(a) {
			foreign = append(foreign, a)
			continue
		}
		if n.overlapsNode != "" {
			return nil, &pool.Blocker{Addr: a, Node: n.pool.Name, Reason: pool.SubnetOverlap, Who: n.overlapsNode, Asks: owner}
		}
		e, exists := n.pool.Entries[a]
		if exists && e.Kind != pool.Cooldown && e.NamesPod() != owner {
			return nil, e.Blocker(n.pool.Name, a, owner)
		}
	}
	return foreign, nil
}

// HomeOf returns the one home of an owner's addresses. The error, for the pod's events, says why they can't be moved.
func (l *Ledger) HomeOf(owner string, addrs []netip.Addr) (string, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	home := ""
	for _, a := range addrs {
		name, _, ok := l.home(a)
		if !ok {
			return "", &pool.Blocker{Addr: a, Reason: pool.SubnetNotFound, Asks: owner}
		}
		if home != "" && home != name {
			return "", fmt.Errorf("its addresses are in the subnets of two nodes, %s and %s, and can't be moved together", home, name)
		}
		home = name
		n, _ := l.node(name)
		if _, err := n.mayMove(owner, []netip.Addr{a}); err != nil {
			return "", err
		}
	}
	return home, nil
}

// Carries returns why a node can't have the addresses of an owner, wherever their home is; nil if it can. The error is for
// the pod's events.
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
	foreign, err := n.mayMove(owner, addrs)
	if err != nil {
		return err
	}
	if b := n.pool.OtherAddressOf(owner, slices.Clone(addrs)); b != nil {
		return b
	}
	if b := n.pool.Carries(owner, foreign); b != nil {
		return b
	}
	return nil
}
