// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"fmt"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/request"
)

// Plan is what Find decided about a pod. Nothing but lacked changes afterwards, so that parallel calls of Fits may share
// it.
type Plan struct {
	// unreserved: the pod has no fixed address. It needs a pool entry on strict nodes only.
	unreserved bool
	// exempt: the pod uses the network of its host, and gets no address.
	exempt bool
	// blocked are nodes that cannot take the unreserved pod: their pools have an entry for its name.
	blocked []blockedNode
	// optedOut: the unreserved pod could have had a fixed address under its name, and opted out.
	optedOut bool

	id          identity.Identity
	uid         types.UID
	reservation reservation
	// failover is Migrate or Reassign if the plan has other nodes than that of the reservation, which cannot take the
	// pod. home is the only node of such a plan; empty: all nodes.
	failover v1alpha1.Failover
	home     string
	// searching: the pod takes over one of slots.
	searching bool
	slots     []freeSlot
	// requested are the addresses that the pod asks for. They count only without a reservation.
	requested request.Asked
	// nodes are the only nodes to look at; nil: all.
	nodes sets.Set[string]
	// lacked is set by Fits if a node has no room.
	lacked atomic.Bool
}

// Nodes returns the only nodes to look at; nil: all.
func (p *Plan) Nodes() sets.Set[string] { return p.nodes }

// Skip reports whether Fits accepts every node.
func (p *Plan) Skip(anyStrict bool) bool {
	return p.exempt || p.unreserved && len(p.blocked) == 0 && !anyStrict
}

// Fixed reports whether the pod has a fixed address.
func (p *Plan) Fixed() bool { return !p.unreserved }

func (p *Plan) narrow(nodes ...string) { p.nodes = sets.New(nodes...) }

// moves reports whether a pod that goes to the node takes its addresses there, or completes a migration to it.
func (p *Plan) moves(node string) bool {
	r := p.reservation
	return r.node != "" && (r.moving && r.node == node || p.failover == v1alpha1.Migrate && r.node != node)
}

// ownedByPrefix begins the sentence that says why the pod cannot be placed.
func (p *Plan) ownedByPrefix() string {
	return fmt.Sprintf("its address %s belongs to node %s, which ", address.Join(p.reservation.addrs), p.reservation.node)
}
