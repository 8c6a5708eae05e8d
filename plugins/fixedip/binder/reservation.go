// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/plugins/fixedip/cache"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// reservation is where the addresses of an identity are. The zero reservation is none: a first placement.
type reservation struct {
	node  string
	addrs []netip.Addr
	// projected: the addresses are in the FixedIP and in no pool, so that exactly these have to be claimed.
	projected bool
	// moving: the home of the addresses says that they are on the node, whose pool does not say so yet: a migration
	// that was interrupted.
	moving bool
	// holders are the nodes whose pools gave the identity an address when this was found. More nodes than node have
	// claims that were never used.
	holders []string
	// unexpected are addresses that the FixedIP does not name, although it names others of the family: the agent would
	// choose one of them.
	unexpected []netip.Addr
	// recorded: a FixedIP of just the pod's workload names all of the addresses.
	recorded bool
	// hasFixedIP tells whether there is a FixedIP, and failover is its policy.
	hasFixedIP bool
	failover   v1alpha1.Failover
	// movableFor is the pod that may take the addresses to another node: see v1alpha1.FixedIPStatus.
	movableFor types.UID
}

func (r *reservation) holds(node string) bool { return slices.Contains(r.holders, node) }

// reservationOf finds the reservation of an identity. The pools come first: the pool of its home decides about an
// address, and a claim may have no FixedIP yet. The error may be a *Refusal.
func (b *Binder) reservationOf(ctx context.Context, id identity.Identity) (reservation, error) {
	fip, err := b.Cache.FixedIP(ctx, id.Namespace, id.PodName)
	if err != nil {
		return reservation{}, err
	}
	if fip != nil && (id.Slot || fip.Spec.Slot) {
		// A slot is not named after its pod. It is found through its workload.
		fip = nil
	}
	wake := requeue.On(metrics.Owner, id.Key())
	held := b.Cache.Ledger.Held(id.Key())
	for _, h := range held {
		if kind, name, ok := b.Cache.Ledger.EntryOf(h).WorkloadRef(); ok && (kind != id.Owner.Label() || name != id.Owner.Name) {
			return reservation{}, refuse(wake, "its name has IP %s on node %s, which is reserved for %s %s, and it belongs to %s %s; the pod is placed when that IP is released",
				address.Join(h.Addrs), h.Node, kind, name, id.Owner.Kind, id.Owner.Name)
		}
	}
	away := b.Cache.Ledger.Away(id.Key())
	if fip == nil {
		return b.fromPools(held, away, "", nil), nil
	}
	if fip.DeletionTimestamp != nil {
		return reservation{}, refuse(wake, "its former address (%v) is being released; it gets a new one when FixedIP %s is gone", fip.Spec.IPs, fip.Name)
	}
	if o := identity.OwnerOf(fip); o.GroupKind() != id.Owner.GroupKind() || o.Name != id.Owner.Name {
		return reservation{}, refuse(wake, "its name has an address (%v) that is kept for %s %s, and it belongs to %s %s; delete FixedIP %s to give that address up",
			fip.Spec.IPs, o.Kind, o.Name, id.Owner.Kind, id.Owner.Name, fip.Name)
	}
	var r reservation
	if len(held)+len(away) > 0 {
		r = b.fromPools(held, away, fip.Spec.NodeName, fip.Spec.IPs)
		r.unexpected = address.Besides(r.addrs, fip.Spec.IPs)
	} else if r, err = b.fromFixedIP(fip); err != nil {
		return reservation{}, err
	}
	r.recorded = len(r.addrs) > 0 && fip.Spec.Owner.UID == id.Owner.UID && containsAll(address.ParseAll(fip.Spec.IPs), r.addrs)
	r.hasFixedIP, r.failover, r.movableFor = true, fip.Spec.Failover, fip.Status.MovableFor
	return r, nil
}

// fromPools chooses among the nodes on which the pools have addresses of an identity. In the order of their weight: a
// node on which all addresses of the FixedIP are, one to which they were migrated, the preferred node, an entry that a
// person wrote, and the first. There are several if a scheduler died between claim and bind, or during a migration.
func (b *Binder) fromPools(held []ledger.NodeAddresses, away []ledger.RemoteAddresses, preferred string, ips []string) reservation {
	var choice []reservation
	var holders, byHand []string
	for _, h := range held {
		choice = append(choice, reservation{node: h.Node, addrs: h.Addrs})
		holders = append(holders, h.Node)
		if _, _, claimed := b.Cache.Ledger.EntryOf(h).WorkloadRef(); !claimed {
			byHand = append(byHand, h.Node)
		}
	}
	for _, a := range away {
		if !slices.ContainsFunc(choice, func(r reservation) bool { return r.node == a.At && containsAll(r.addrs, a.Addrs) }) {
			choice = append(choice, reservation{node: a.At, addrs: a.Addrs, moving: true})
		}
	}
	weight := func(r reservation) (sum int) {
		for i, counts := range []bool{
			slices.Contains(byHand, r.node),
			r.node == preferred,
			slices.ContainsFunc(away, func(a ledger.RemoteAddresses) bool { return a.At == r.node }),
			len(ips) > 0 && containsAll(r.addrs, address.ParseAll(ips)),
		} {
			if counts {
				sum += 1 << i
			}
		}
		return sum
	}
	if len(choice) == 0 {
		return reservation{}
	}
	chosen := slices.MaxFunc(choice, func(x, y reservation) int { return weight(x) - weight(y) })
	chosen.holders = holders
	return chosen
}

// fromFixedIP places a reservation that is in no pool at the home of its addresses.
func (b *Binder) fromFixedIP(fip *v1alpha1.FixedIP) (reservation, error) {
	r := reservation{projected: true}
	wake := requeue.On(metrics.Owner, cache.KeyOf(fip)).AndHome(address.ParseAll(fip.Spec.IPs)...)
	for _, ip := range fip.Spec.IPs {
		a, err := address.Parse(ip)
		if err != nil {
			return reservation{}, refuse(wake, "FixedIP %s: spec.ips: %v", fip.Name, err)
		}
		home, ok := b.Cache.Ledger.Home(a)
		if !ok {
			was := ""
			if fip.Spec.NodeName != "" {
				was = ", and was kept on node " + fip.Spec.NodeName
			}
			return reservation{}, refuse(wake, "its address %s (FixedIP %s) is in no node's subnet%s; it waits for a node that has it", a, fip.Name, was)
		}
		if r.node != "" && r.node != home {
			return reservation{}, refuse(wake, "its addresses %v (FixedIP %s) are in the subnets of two nodes, %s and %s; delete the FixedIP and ask for addresses of one node", fip.Spec.IPs, fip.Name, r.node, home)
		}
		r.node, r.addrs = home, append(r.addrs, a)
	}
	return r, nil
}

func containsAll(addrs, wanted []netip.Addr) bool {
	return !slices.ContainsFunc(wanted, func(a netip.Addr) bool { return !slices.Contains(addrs, a) })
}
