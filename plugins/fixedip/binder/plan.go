// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/request"
	"fixedip.io/fixedip/ipam/store/workloads"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// Plan is what Find decided about a pod. Nothing but lacked changes afterwards, so that parallel calls of Fits may share
// it.
type Plan struct {
	// Unreserved: the pod has no fixed address. It needs a pool entry on strict nodes only.
	Unreserved bool
	// Nodes are the only nodes to look at; nil: all.
	Nodes sets.Set[string]

	// exempt: the pod uses the network of its host, and gets no address.
	exempt bool
	// blocked are nodes that cannot take the unreserved pod: their pools have an entry for its name.
	blocked []blockedNode
	// optedOut: the unreserved pod could have had a fixed address under its name, and opted out.
	optedOut bool

	// id is the identity of the pod. That of an unreserved pod has no Owner.
	id          identity.Identity
	uid         types.UID
	reservation reservation
	// failover is Migrate or Reassign if the plan has other nodes than that of the reservation, which cannot take the
	// pod. home is the only node of such a plan; empty: all nodes.
	failover v1alpha1.Failover
	home     string
	// candidates: the plan of an orphaned pod accepts the nodes that may inherit the subnet of its address.
	candidates bool
	// searching: the pod takes over one of slots.
	searching bool
	slots     []freeSlot
	// requested are the addresses that the pod asks for. They count only without a reservation.
	requested request.Requested
	// lacked is set by Fits if a node has no room.
	lacked atomic.Bool
}

// wakeOn returns a WakeOn of the pod's entries and its FixedIP.
func (p *Plan) wakeOn() requeue.WakeOn { return requeue.On(metrics.Owner, p.id.Key()) }

// moves reports whether a pod that goes to the node takes its addresses there, or completes a migration to it.
func (p *Plan) moves(node string) bool {
	r := p.reservation
	return r.node != "" && (r.moving && r.node == node || p.failover == v1alpha1.Migrate && r.node != node)
}

// ownedByPrefix begins the sentence that says why the pod cannot be placed.
func (p *Plan) ownedByPrefix() string {
	return fmt.Sprintf("its address %s belongs to node %s, which ", address.Join(p.reservation.addrs), p.reservation.node)
}

// Find plans for a pod. It has no side effect but that a pod may become one that searches for a slot.
func (b *Binder) Find(ctx context.Context, pod *corev1.Pod) (*Plan, error) {
	id, fixed, err := identity.Of(pod, b.Cache.Kinds, b.Cache.Workloads.Controller)
	if err != nil {
		refusal := &Refusal{Reason: err.Error()}
		if errors.Is(err, identity.ErrUnseen) {
			refusal.WakeOn = b.wakeOnWorkload(pod)
		}
		return nil, refusal
	}
	if !fixed {
		return b.findUnreserved(ctx, pod)
	}
	if _, err := identity.WantsMAC(pod); err != nil {
		return nil, &Refusal{Reason: err.Error()}
	}
	if !b.Cache.Ready() {
		return nil, ErrNotReady
	}
	r, err := b.reservationOf(ctx, id)
	if err != nil {
		return nil, err
	}
	p := &Plan{id: id, uid: pod.UID, reservation: r}
	b.noteOrphaned(pod, p.Orphaned())
	if p.Orphaned() {
		// No node has the name "".
		p.Nodes = sets.New("")
		return p, nil
	}
	if r.node == "" {
		if id.Slot {
			return b.findSlot(p, pod)
		}
		return b.findFirst(p, pod)
	}
	if len(r.unexpected) > 0 && b.policyOf(p) != v1alpha1.Reassign {
		return nil, refuse(p.wakeOn(), "the pool of node %s has IP %s for its name, which its FixedIP does not name and which is being released; the pod is placed when that is done", r.node, address.Join(r.unexpected))
	}
	if !r.moving {
		// The addresses of an interrupted migration are not there yet. Bind checks them.
		if refusal := b.usedByOthers(pod, r.node, r.addrs); refusal != nil {
			return nil, refusal
		}
	}
	p.Nodes = sets.New(r.node)
	stuck := b.nodeUnavailable(p)
	if !b.widens(pod, r.node) && stuck == "" {
		return p, nil
	}
	policy := b.policyOf(p)
	remains, home := b.whyNotElsewhere(p, policy)
	switch {
	case remains == "":
		return b.widenSearch(p, pod, policy, home)
	case stuck != "":
		return nil, &Refusal{Reason: p.ownedByPrefix() + stuck + remains, WakeOn: b.wakeOnRemaining(p)}
	}
	return p, nil
}

// Skip reports whether Fits accepts every node.
func (b *Binder) Skip(p *Plan) bool {
	return p.exempt || p.Unreserved && len(p.blocked) == 0 && b.strictNodes.Load() == 0
}

// Fits decides whether a node can take the pod: the node that owns its addresses, a node that they can move to, or,
// without a reservation, a node with room in each family. It returns a *Refusal if the node cannot, and has no side
// effect. No preemption helps a pod that is refused: a pod that is evicted keeps its address.
func (b *Binder) Fits(p *Plan, node *corev1.Node) error {
	switch {
	case p.Unreserved:
		return b.fitsUnreserved(p, node)
	case p.candidates:
		return b.fitsCandidate(node)
	case p.Orphaned():
		return refuse(requeue.WakeOn{}, "node(s) didn't have the subnet of the pod's address %s, whose node %s is gone", address.Join(p.reservation.addrs), p.reservation.lost)
	}
	switch r := &p.reservation; {
	case r.node == "", p.failover == v1alpha1.Reassign && r.node != node.Name:
		if r.holds(node.Name) {
			// An earlier try has claimed addresses there.
			return nil
		}
	case r.node == node.Name && !r.moving:
		return nil
	case r.node == node.Name, p.failover == v1alpha1.Migrate && (p.home == "" || p.home == node.Name):
		if err := b.Cache.Ledger.Carries(node.Name, p.id.Key(), r.addrs); err != nil {
			p.lacked.Store(true)
			return &Refusal{Reason: "node(s) couldn't carry the pod's address: " + err.Error()}
		}
		if missing := b.missing(r.addrs); len(missing) > 0 && !b.atHome(node.Name, r.addrs) && b.onStrictNode(node.Name) {
			// The agent would not start the pod.
			return refuse(requeue.WakeOn{}, "node(s) were strict, and the pod has no fixed address of family %v, which it gets at home only", missing)
		}
		return nil
	default:
		return refuse(requeue.WakeOn{}, "node(s) didn't own the pod's address %s, which belongs to node %s", address.Join(r.addrs), r.node)
	}
	if p.searching {
		return p.fitsSlot(node.Name)
	}
	return b.fitsRequested(p, node.Name)
}

// missing returns the families of the cluster in which there is no address: the cluster has got them since.
func (b *Binder) missing(addrs []netip.Addr) []address.Family {
	return slices.DeleteFunc(slices.Clone(b.families), func(f address.Family) bool {
		return slices.ContainsFunc(addrs, func(a netip.Addr) bool { return address.Of(a) == f })
	})
}

// atHome reports whether the addresses are in the subnets of a node.
func (b *Binder) atHome(node string, addrs []netip.Addr) bool {
	n, ok := b.Cache.Ledger.Node(node)
	return ok && !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !n.Home(a) })
}

// Scores reports whether the free addresses of nodes matter: not for pods without a fixed address, nor for those that
// have theirs.
func (b *Binder) Scores(p *Plan) bool {
	return !p.Unreserved && !p.candidates && (p.reservation.node == "" || p.failover == v1alpha1.Reassign)
}

// Score returns the share of a node's addresses that are free, in the family with fewer. A node on which an earlier try
// has claimed addresses comes first.
func (b *Binder) Score(p *Plan, node string) float64 {
	if p.reservation.holds(node) {
		return 1
	}
	share := 1.0
	for _, f := range b.families {
		share = min(share, b.Cache.Ledger.FreeShare(node, f))
	}
	return share
}

// requests reports whether the pod asks for addresses. That counts only for a first placement: an identity keeps what
// it has.
func (p *Plan) requests() bool { return len(p.requested.Families()) > 0 }

// requestOf returns the addresses that a pod asks for; zero: none. The workload has to be known: it may have the
// annotation, and says where ordinals start. Errors are for people.
func (b *Binder) requestOf(pod *corev1.Pod, id identity.Identity) (request.Requested, error) {
	workload, err := b.workloadOf(id)
	if err != nil {
		return request.Requested{}, err
	}
	requested, _, err := request.Of(pod, *workload, id.Slot || id.IsBarePod())
	return requested, err
}

// workloadOf returns the workload of an identity, and no other workload of its name. Errors are for people.
func (b *Binder) workloadOf(id identity.Identity) (*identity.Workload, error) {
	if id.IsBarePod() {
		return &identity.Workload{GroupKind: id.Owner.GroupKind(), Namespace: id.Namespace, Name: id.Owner.Name, UID: id.Owner.UID}, nil
	}
	workload, err := b.Cache.Workloads.Get(id.Owner.GroupKind(), id.Namespace, id.Owner.Name)
	switch {
	case errors.Is(err, workloads.ErrUnknown):
		return nil, fmt.Errorf("its %s %s/%s, which may ask for addresses, has not been seen by the scheduler yet; see whether it may list and watch all of that kind", id.Owner.Kind, id.Namespace, id.Owner.Name)
	case err != nil:
		return nil, fmt.Errorf("read %s %s/%s from the cache: %w", id.Owner.Kind, id.Namespace, id.Owner.Name, err)
	case workload == nil || workload.UID != id.Owner.UID:
		return nil, fmt.Errorf("its %s %s/%s, which may ask for addresses, has not been seen by the scheduler yet; it waits for that", id.Owner.Kind, id.Namespace, id.Owner.Name)
	}
	return workload, nil
}

// findRequested plans a first placement with the nodes whose subnets have what the pod asks for; with all nodes if it
// asks for nothing.
func (b *Binder) findRequested(p *Plan, pod *corev1.Pod) (*Plan, error) {
	wake := p.wakeOn().And(metrics.Workload, p.id.Resource())
	requested, err := b.requestOf(pod, p.id)
	if err != nil {
		return nil, &Refusal{Reason: err.Error(), WakeOn: wake}
	}
	p.requested = requested
	if !p.requests() {
		return p, nil
	}
	for _, f := range requested.Families() {
		if !slices.Contains(b.families, f) {
			return nil, refuse(wake, "asks for %s, but the scheduler gives pods no %s addresses; leave them out or add %s to its ipFamilies", requested, f, f)
		}
		if a, single := requested.Single(f); single {
			if blocker := b.Cache.Ledger.Blocker(p.id.Key(), a); blocker != nil {
				return nil, refuse(b.wakeOnFreeAddress(p), "asks for %s (%s): %s", a, requested.Source, blocker.Message())
			}
		}
	}
	reach := b.Cache.Ledger.NodesServing(requested.Addresses)
	existing := slices.DeleteFunc(slices.Clone(reach), func(name string) bool { return b.node(name) == nil })
	switch {
	case len(reach) == 0 && len(requested.Families()) > 1:
		return nil, refuse(b.wakeOnFreeAddress(p), "asks for %s, but no node has addresses of each family among them in its subnets; ask for addresses of one node", requested)
	case len(reach) == 0:
		return nil, refuse(b.wakeOnFreeAddress(p), "asks for %s, which is in no node's subnet; ask for addresses that are", requested)
	case len(existing) == 0:
		// MayUse wakes it.
		return nil, refuse(wake, "asks for %s, which is in the subnets of node %s, which does not exist; it waits for that node to come back", requested, reach[0])
	}
	p.Nodes = sets.New(existing...)
	return p, nil
}

// fitsRequested accepts a node that has a free address in each family, and in those that the pod asks for one of these.
func (b *Binder) fitsRequested(p *Plan, node string) error {
	for _, f := range b.families {
		asks := len(p.requested.Ranges(f)) > 0
		if asks && b.Cache.Ledger.CanAllocate(node, []address.Family{f}, p.requested.Addresses) || !asks && b.Cache.Ledger.HasAvailable(node, f) {
			continue
		}
		p.lacked.Store(true)
		switch {
		case b.Cache.Ledger.Unreported(node):
			return refuse(requeue.WakeOn{}, "node(s) whose Cilium agent has not reported yet which addresses its pods use")
		case asks:
			return refuse(requeue.WakeOn{}, "node(s) had none of the addresses free that the pod asks for: %s", p.requested)
		case p.Unreserved:
			return refuse(requeue.WakeOn{}, "strict node(s) had no free %s address for the pod in their subnets", f)
		default:
			return refuse(requeue.WakeOn{}, "node(s) had no free %s address for a fixed pod in their subnets", f)
		}
	}
	return nil
}

// wakeOnFreeAddress returns what helps a pod without a reservation: an address, of those that it asks for, becomes free. A pod
// of a workload with slots is also helped by a free slot, and by that alone if it searches for one.
func (b *Binder) wakeOnFreeAddress(p *Plan) requeue.WakeOn {
	wake := p.wakeOn()
	if p.id.Slot {
		wake = wake.And(metrics.Slot, p.id.Resource())
	}
	if wake.Searching = p.searching; p.searching {
		return wake.And(metrics.Workload, p.id.Resource())
	}
	wake.FreeAddress = &requeue.FreeAddress{Requested: p.requested.Addresses, Strict: p.Unreserved}
	if !p.requests() {
		return wake
	}
	for _, f := range p.requested.Families() {
		if a, single := p.requested.Single(f); single {
			// The address may be in no subnet.
			wake = wake.AndHome(a)
		}
	}
	return wake.And(metrics.Workload, p.id.Resource())
}
