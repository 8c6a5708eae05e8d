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
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/request"
	"fixedip.io/fixedip/ipam/store/workloads"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// Plan is the decision of Find about a pod. Only lacked changes afterwards, so that parallel calls of Fits may share a Plan.
type Plan struct {
	// Unreserved is true if the pod has no fixed address. Such a pod needs a pool entry on strict nodes only.
	Unreserved bool
	// Nodes contains the only nodes that may take the pod; nil: all.
	Nodes sets.Set[string]

	// exempt is true if the pod uses the host network, and so needs no address.
	exempt bool
	// blocked contains the nodes that cannot take the unreserved pod, because their pools have an entry for the pod's name.
	blocked []blockedNode
	// optedOut is true if the unreserved pod could have had a fixed address under its name, and opted out.
	optedOut bool

	// id is the identity of the pod. It has no Owner if the pod is unreserved.
	id          identity.Identity
	uid         types.UID
	reservation reservation
	// failover is Migrate or Reassign if the node of the reservation cannot take the pod and the plan has other nodes;
	// otherwise failover is empty. home is the only node of the plan if the pod may go only to the home node of its addresses
	// (see homeNodeIfMoved); otherwise home is empty.
	failover v1alpha1.Failover
	home     string
	// candidates is true in a plan with which Fits accepts the nodes that may inherit the subnet of an orphaned pod.
	candidates bool
	// searching is true if the pod has to take over one of slots.
	searching bool
	slots     []freeSlot
	// requested contains the addresses that the pod requests. They count only for a first placement and for Reassign.
	requested request.Requested
	// lacked is set by Fits if a node has no free address for the pod, or cannot carry its addresses.
	lacked atomic.Bool
}

// wakeOn returns a WakeOn for changes of the pod's entries and of its FixedIP.
func (p *Plan) wakeOn() requeue.WakeOn { return requeue.On(metrics.Owner, p.id.Key()) }

// moves reports whether binding the pod to the node moves its addresses there, or completes a migration to the node.
func (p *Plan) moves(node string) bool {
	r := p.reservation
	return r.node != "" && (r.moving && r.node == node || p.failover == v1alpha1.Migrate && r.node != node)
}

// ownedByPrefix returns the beginning of the sentence that explains why the node of the reservation cannot take the pod.
func (p *Plan) ownedByPrefix() string {
	return fmt.Sprintf("its %s %s to node %s, which ", addressText(p.reservation.addrs), verb(p.reservation.addrs, "belongs", "belong"), p.reservation.node)
}

// addressText returns the text for addresses in messages: "address A", or "addresses A, B".
func addressText(addrs []netip.Addr) string {
	return verb(addrs, "address ", "addresses ") + address.Join(addrs)
}

// ipText returns the text for addresses in messages: "IP A", or "IPs A, B".
func ipText(addrs []netip.Addr) string { return verb(addrs, "IP ", "IPs ") + address.Join(addrs) }

// verb returns singular if there is one address, and plural otherwise.
func verb(addrs []netip.Addr, singular, plural string) string {
	if len(addrs) == 1 {
		return singular
	}
	return plural
}

// Find returns the plan for a pod. The error is a *Refusal if a change may help the pod. Find changes no state except that
// of the pod in the Binder: whether the pod searches for a slot, is orphaned, has had a plan with nodes other than that of
// its reservation, or may get such a plan next.
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
		// No node has an empty name, so the plan has no node.
		p.Nodes = sets.New("")
		return p, nil
	}
	if r.node == "" {
		if id.Slot {
			return b.findSlot(p, pod)
		}
		return b.findFirst(p, pod)
	}
	if len(r.unexpected) > 0 && b.policyOf(pod, p) != v1alpha1.Reassign {
		return nil, refuse(p.wakeOn(), "the pool of node %s has %[2]s for the pod's name, in addition to the addresses of its FixedIP or in place of them; the pod is placed after the controller has released %[2]s", r.node, ipText(r.unexpected))
	}
	if refusal := b.unrecordedMove(p); refusal != nil {
		return nil, refusal
	}
	if !r.moving {
		// After an interrupted migration, the pool of the node does not have the addresses yet. Bind checks whether
		// they are in use.
		if refusal := b.usedByOthers(pod, r.node, r.addrs); refusal != nil {
			return nil, refusal
		}
	}
	p.Nodes = sets.New(r.node)
	unavailable, remedy := b.nodeUnavailable(p)
	if !b.widens(pod, r.node) && unavailable == "" {
		return p, nil
	}
	policy := b.policyOf(pod, p)
	whyNot, home := b.whyNotElsewhere(p, policy)
	switch {
	case whyNot == "":
		return b.widenSearch(p, pod, policy, home)
	case unavailable != "":
		return nil, &Refusal{Reason: p.ownedByPrefix() + unavailable + remedy + whyNot, WakeOn: b.wakeOnOwnNode(p)}
	}
	return p, nil
}

// Skip reports whether Fits accepts every node.
func (b *Binder) Skip(p *Plan) bool {
	return p.exempt || p.Unreserved && len(p.blocked) == 0 && b.strictNodes.Load() == 0
}

// Fits returns nil if the node can take the pod. A pod with a reservation needs the node that has its addresses, or a
// node to which the addresses can move. A pod that gets new addresses needs a free address in each family, or a free
// slot. Otherwise Fits returns a *Refusal, or ErrNotReady. It may set lacked, and has no other side effect. Preemption
// does not help a refused pod: an evicted pod keeps its fixed address, and the address of an evicted unreserved pod stays
// dynamic or, on a strict node, is in cooldown first.
func (b *Binder) Fits(p *Plan, node *corev1.Node) error {
	switch {
	case p.Unreserved:
		return b.fitsUnreserved(p, node)
	case p.candidates:
		return b.fitsCandidate(node)
	case p.Orphaned():
		return refuse(requeue.WakeOn{}, "node(s) didn't have the subnet of %s of the pod (last on node %s)", ipText(p.reservation.addrs), p.reservation.lost)
	}
	switch r := &p.reservation; {
	case r.node == "", p.failover == v1alpha1.Reassign && r.node != node.Name:
		if r.hasEntries(node.Name) {
			// An earlier try has claimed addresses there.
			return nil
		}
	case r.node == node.Name && !r.moving:
		return b.fitsAwayFromHome(p, node.Name)
	case r.node == node.Name, p.failover == v1alpha1.Migrate && (p.home == "" || p.home == node.Name):
		if err := b.Cache.Ledger.Carries(node.Name, p.id.Key(), r.addrs); err != nil {
			p.lacked.Store(true)
			return &Refusal{Reason: "node(s) couldn't carry the pod's address: " + err.Error()}
		}
		return b.fitsAwayFromHome(p, node.Name)
	default:
		return refuse(requeue.WakeOn{}, "node(s) couldn't give the pod %s, which %s to node %s", ipText(r.addrs), verb(r.addrs, "belongs", "belong"), r.node)
	}
	if p.searching {
		return p.fitsSlot(node.Name)
	}
	return b.fitsRequested(p, node.Name)
}

// fitsAwayFromHome returns a *Refusal if the node is strict and is not the home of the pod's addresses, and the pod has no
// address of one of the families: the agent of a strict node has no address for the pod in that family. A pod gets an
// additional address only on the home node of its other address, because addresses with different home nodes cannot move
// together.
func (b *Binder) fitsAwayFromHome(p *Plan, node string) error {
	addrs := p.reservation.addrs
	if b.strictNodes.Load() == 0 || b.atHome(node, addrs) || !b.onStrictNode(node) {
		return nil
	}
	if missing := b.missing(addrs); len(missing) > 0 {
		return refuse(requeue.WakeOn{}, "node(s) were strict, and the pod has no fixed address of family %s, which the pod gets only on the home node of its address", address.JoinFamilies(missing))
	}
	return nil
}

// missing returns the families that the profile uses and in which addrs has no address. A family is missing, for example, if
// it was added to the cluster after the pod had got its address.
func (b *Binder) missing(addrs []netip.Addr) []address.Family {
	return slices.DeleteFunc(slices.Clone(b.families), func(f address.Family) bool {
		return slices.ContainsFunc(addrs, func(a netip.Addr) bool { return address.Of(a) == f })
	})
}

// atHome reports whether the node is the home of all addresses.
func (b *Binder) atHome(node string, addrs []netip.Addr) bool {
	n, ok := b.Cache.Ledger.Node(node)
	return ok && !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !n.Home(a) })
}

// Scores reports whether Score matters for the choice of a node: for a pod that has no reservation yet, and for Reassign.
// It returns false for unreserved pods, and for plans of ForCandidates.
func (b *Binder) Scores(p *Plan) bool {
	return !p.Unreserved && !p.candidates && (p.reservation.node == "" || p.failover == v1alpha1.Reassign)
}

// Score returns the share of a node's addresses that are free, from 0 to 1, in the family with the smaller share. It returns
// 1 for a node on which an earlier try has claimed addresses.
func (b *Binder) Score(p *Plan, node string) float64 {
	if p.reservation.hasEntries(node) {
		return 1
	}
	share := 1.0
	for _, f := range b.families {
		share = min(share, b.Cache.Ledger.FreeShare(node, f))
	}
	return share
}

// requests reports whether the plan has requested addresses.
func (p *Plan) requests() bool { return len(p.requested.Families()) > 0 }

// requestOf returns the addresses that a pod requests; the zero value if it requests none. The workload has to be known,
// because its annotations may request addresses, and because it defines the first ordinal. Errors are shown in the events of
// the pod.
func (b *Binder) requestOf(pod *corev1.Pod, id identity.Identity) (request.Requested, error) {
	workload, err := b.workloadOf(id)
	if err != nil {
		return request.Requested{}, err
	}
	requested, _, err := request.Of(pod, *workload, id)
	return requested, err
}

// workloadOf returns the workload of an identity, or an error if the workload is not known or another workload has its name.
// Errors are shown in the events of the pod.
func (b *Binder) workloadOf(id identity.Identity) (*identity.Workload, error) {
	if id.IsBarePod() {
		return &identity.Workload{GroupKind: id.Owner.GroupKind(), Namespace: id.Namespace, Name: id.Owner.Name, UID: id.Owner.UID}, nil
	}
	workload, err := b.Cache.Workloads.Get(id.Owner.GroupKind(), id.Namespace, id.Owner.Name)
	switch {
	case errors.Is(err, workloads.ErrUnknown):
		return nil, fmt.Errorf("its %s %s/%s, which may request addresses, has not been seen by the scheduler yet; the pod waits until the scheduler sees it; if the pod keeps waiting, check that the scheduler may list and watch all objects of that kind", id.Owner.Kind, id.Namespace, id.Owner.Name)
	case err != nil:
		return nil, fmt.Errorf("read %s %s/%s from the cache: %w", id.Owner.Kind, id.Namespace, id.Owner.Name, err)
	case workload == nil || workload.UID != id.Owner.UID:
		return nil, fmt.Errorf("its %s %s/%s, which may request addresses, was deleted, or has not been seen by the scheduler yet; the pod waits until the scheduler sees it", id.Owner.Kind, id.Namespace, id.Owner.Name)
	}
	return workload, nil
}

// findRequested restricts the plan to the nodes whose subnets contain the addresses that the pod requests. If the pod
// requests none, the plan keeps all nodes.
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
			return nil, refuse(wake, "requests %s, but the scheduler gives pods no %[2]s addresses; remove them from the annotation, or, if the Cilium agents assign %[2]s addresses, add %[2]s to ipFamilies in the configuration of fixedip", requested, f)
		}
		if a, single := requested.Single(f); single {
			if blocker := b.Cache.Ledger.Blocker(p.id.Key(), a); blocker != nil {
				wake := b.wakeOnFreeAddress(p)
				if blocker.Reason == pool.SubnetOverlap {
					// The overlap may end with a change of a subnet that does not contain the address.
					wake = wake.AndAnySubnet()
				}
				return nil, refuse(wake, "requests %s (%s): %s", a, requested.Source, blocker.Message())
			}
		}
	}
	serving := b.Cache.Ledger.NodesServing(requested.Addresses)
	existing := slices.DeleteFunc(slices.Clone(serving), func(name string) bool { return b.node(name) == nil })
	switch {
	case len(serving) == 0 && len(requested.Families()) > 1:
		return nil, refuse(b.wakeOnFreeAddress(p).AndAnySubnet(), "requests %s, but no node can give a pod addresses of both families of this list; request addresses from the subnets of one node, and check that these subnets overlap those of no other node", requested)
	case len(serving) == 0:
		return nil, refuse(b.wakeOnFreeAddress(p).AndAnySubnet(), "requests %s, but no node can give a pod an address of this list; request addresses that pods may have in the subnets of a node, and check that these subnets overlap those of no other node", requested)
	case len(existing) == 0:
		// The queueing hint for new nodes requeues the pod (see MayUse), unless the new node gets the subnet later.
		return nil, refuse(wake.AndAnySubnet(), "requests %s, but node %s, which has such addresses in its subnets, does not exist; the pod waits until a node with such addresses exists", requested, serving[0])
	}
	p.Nodes = sets.New(existing...)
	return p, nil
}

// fitsRequested returns nil if the node has a free address in each family. In a family in which the pod requests addresses,
// one of the requested addresses has to be free.
func (b *Binder) fitsRequested(p *Plan, node string) error {
	for _, f := range b.families {
		requests := len(p.requested.Ranges(f)) > 0
		if requests && b.Cache.Ledger.CanAllocate(node, []address.Family{f}, p.requested.Addresses) || !requests && b.Cache.Ledger.HasAvailable(node, f) {
			continue
		}
		p.lacked.Store(true)
		switch {
		case b.Cache.Ledger.Unreported(node):
			return refuse(requeue.WakeOn{}, "node(s) had a Cilium agent that has not reported yet which addresses its pods use")
		case requests:
			return refuse(requeue.WakeOn{}, "node(s) had none of the requested %s addresses available: %s", f, p.requested)
		case p.Unreserved:
			return refuse(requeue.WakeOn{}, "strict node(s) had no %s address available for the pod", f)
		default:
			return refuse(requeue.WakeOn{}, "node(s) had no %s address available for a pod with a fixed address", f)
		}
	}
	return nil
}

// wakeOnFreeAddress returns the causes that help a pod that needs new addresses: its entries or its FixedIP change, an
// address becomes free, or, for a pod of a workload with slots, a slot becomes free. If the pod requests addresses, no other
// free address helps. If the pod searches for a slot, no free address helps. In both cases, a change of the workload helps.
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
			// The address may be in no subnet yet.
			wake = wake.AndHome(a)
		}
	}
	return wake.And(metrics.Workload, p.id.Resource())
}
