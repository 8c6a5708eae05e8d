// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/plugins/apis/config"
	"fixedip.io/fixedip/plugins/fixedip/cache"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// ErrNotReady is the error of Find while the cache is not complete. Nothing is decided from a part of the cluster.
var ErrNotReady = errors.New("not all CiliumNodes and FixedIPs have been listed since the scheduler started; check that their CRDs are installed, and that the scheduler may list and watch them")

var _ Interface = &Binder{}

// Shared is what the profiles of a scheduler have in common.
type Shared struct {
	Cache *cache.Cache
	// Client reads and writes pods.
	Client kubernetes.Interface
	Nodes  corelisters.NodeLister
	Pods   corelisters.PodLister

	slots        slotWaiters
	predecessors predecessorClaims
}

// Binder is the Interface for one profile.
type Binder struct {
	*Shared
	snapshot     Snapshot
	families     []address.Family
	claimTimeout time.Duration
	// failover is the policy for workloads without one of their own.
	failover v1alpha1.Failover
	// movable: an address may live on another node than its home.
	movable bool
	strict  strictNodes
	tries   failoverTries
}

// New returns the Binder of a profile.
func New(shared *Shared, args *config.FixedIPArgs, snapshot Snapshot, f informers.SharedInformerFactory) (*Binder, error) {
	b := &Binder{
		Shared: shared, snapshot: snapshot,
		claimTimeout: args.ClaimTimeout.Duration, failover: v1alpha1.Failover(args.Failover), movable: args.AllowAddressMigration,
	}
	for _, name := range args.IPFamilies {
		family, err := address.ParseFamily(name)
		if err != nil {
			return nil, fmt.Errorf("ipFamilies: %w", err)
		}
		b.families = append(b.families, family)
	}
	b.strict.selector = labels.Nothing()
	if strict := ptr.Deref(args.StrictNodes, ""); strict != "" {
		selector, err := identity.ParseLabels(strict)
		if err != nil {
			return nil, fmt.Errorf("strictNodes: %w", err)
		}
		b.strict.selector = selector
	}
	if err := followNodes(f.Core().V1().Nodes().Informer(), shared.Cache.Notify); err != nil {
		return nil, err
	}
	if _, err := f.Core().V1().Nodes().Informer().AddEventHandler(b.strict.handler(shared.Cache.Notify)); err != nil {
		return nil, fmt.Errorf("watch nodes: %w", err)
	}
	if _, err := f.Core().V1().Pods().Informer().AddEventHandler(toolscache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		pod, _ := requeue.Deleted[*corev1.Pod](obj)
		b.Remove(pod)
	}}); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	return b, nil
}

// exists reports whether the watch shows the pod.
func (s *Shared) exists(pod *corev1.Pod) bool {
	now, err := s.Pods.Pods(pod.Namespace).Get(pod.Name)
	return err == nil && now.UID == pod.UID
}

// Find plans for a pod.
func (b *Binder) Find(ctx context.Context, pod *corev1.Pod) (*Plan, error) {
	id, fixed, err := identity.Of(pod, b.Cache.Kinds, b.Cache.Workloads.Controller)
	if err != nil {
		refusal := &Refusal{Reason: err.Error()}
		if errors.Is(err, identity.ErrUnseen) {
			refusal.WakeOn.Workload = resourceOf(pod)
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
	if r.node == "" {
		if id.Slot {
			return b.findSlot(p, pod)
		}
		return b.findRequested(p, pod)
	}
	if len(r.unexpected) > 0 && b.policyOf(p) != v1alpha1.Reassign {
		return nil, &Refusal{Reason: fmt.Sprintf("the pool of node %s has IP %s for its name, which its FixedIP does not name and which is being released; the pod is placed when that is done", r.node, address.Join(r.unexpected)),
			WakeOn: requeue.WakeOn{Owner: id.Key()}}
	}
	if !r.moving {
		// The addresses of an interrupted migration are not there yet. Bind checks them.
		if refusal := b.usedByOthers(pod, r.node, r.addrs); refusal != nil {
			return nil, refusal
		}
	}
	stuck := b.nodeUnavailable(p)
	nominated := pod.Status.NominatedNodeName
	if b.tries.take(pod.UID) || stuck != "" || nominated != "" && nominated != r.node && b.tries.has(&b.tries.opened, pod.UID) {
		policy := b.policyOf(p)
		remains, home := b.whyNotElsewhere(p, policy)
		if remains == "" {
			return b.widenSearch(p, pod, policy, home)
		}
		if stuck != "" {
			return nil, &Refusal{Reason: p.ownedByPrefix() + stuck + remains, WakeOn: b.wakeOnRemaining(p)}
		}
	}
	p.narrow(r.node)
	return p, nil
}

// Fits decides whether a node can take the pod: the node that owns its addresses, a node that they can move to, or,
// without a reservation, a node with room in each family. No preemption helps a pod that is refused: a pod that is
// evicted keeps its address.
func (b *Binder) Fits(p *Plan, pod *corev1.Pod, node *corev1.Node) error {
	if p.unreserved {
		return b.fitsUnreserved(p, pod, node)
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
		return b.fitsCarrier(p, node.Name)
	default:
		return &Refusal{Reason: fmt.Sprintf("node(s) didn't own the pod's address %s, which belongs to node %s", address.Join(r.addrs), r.node)}
	}
	if p.searching {
		return p.fitsSlot(node.Name)
	}
	return b.fitsRequested(p, node.Name)
}

// Scores is false for pods without a fixed address, and for those that have theirs.
func (b *Binder) Scores(p *Plan) bool {
	return !p.unreserved && (p.reservation.node == "" || p.failover == v1alpha1.Reassign)
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

// Assume decides the addresses in the ledger.
func (b *Binder) Assume(p *Plan, pod *corev1.Pod, node string) error {
	if p.unreserved {
		return b.assumeUnreserved(pod, node)
	}
	owner := p.id.Key()
	if h, ok := b.heldElsewhere(owner, node, p.reservation.holders); ok {
		return &Refusal{Reason: fmt.Sprintf("node(s) didn't own the pod's address %s, which has appeared on node %s since; it is tried again there", address.Join(h.Addrs), h.Node),
			WakeOn: requeue.WakeOn{Owner: owner}}
	}
	if at, ok := b.predecessorClaim(pod.UID, owner, node); ok {
		return &Refusal{Reason: fmt.Sprintf("node(s) may be losing the pod's address, which is being claimed on node %s for the former pod of its name; it is tried again when that has ended", at),
			WakeOn: requeue.WakeOn{Owner: owner}}
	}
	var err error
	wake := b.wakeOnRoom(p)
	l, r := b.Cache.Ledger, p.reservation
	claim := ledger.ClaimRequest{Claim: ledger.Claim{Owner: owner, Node: node}, Families: b.families}
	switch {
	case p.searching:
		// assumeSlot makes a request for each slot.
	case p.moves(node):
		wake = requeue.WakeOn{Owner: owner}
		claim.Addrs, claim.Carry = r.addrs, true
	case r.projected && r.node == node:
		wake = requeue.WakeOn{Owner: owner}
		claim.Addrs = r.addrs
	default:
		claim.Asked, claim.Reassign = p.requested.Addresses, p.failover == v1alpha1.Reassign && r.node != node
	}
	if p.searching {
		err = b.assumeSlot(p, pod, node)
	} else {
		_, err = l.Assume(pod.UID, claim)
	}
	if err != nil {
		wake.Nodes = append(wake.Nodes, node)
		// The scheduler writes the number of nodes before it: "1 node(s) ...".
		return &Refusal{Reason: "node(s) couldn't give the pod its address: " + err.Error(), WakeOn: wake}
	}
	b.slots.leave(p.id.Resource(), pod.UID)
	return nil
}

// Forget drops the decision for a pod. A bind that reported failure may have happened, and then the entry in the pool
// is the pod's.
func (b *Binder) Forget(pod *corev1.Pod) {
	claim, _ := b.Cache.Ledger.Claimed(pod.UID)
	if node, grew := b.Cache.Ledger.Forget(pod.UID); grew {
		b.Cache.Notify(requeue.Event{Node: node, Freed: 1})
	}
	if claim.From != "" {
		b.Cache.Notify(requeue.Event{Slots: []string{b.Cache.Ledger.EntryOf(ledger.NodeAddresses{Node: claim.Node, Addrs: claim.Addrs}).Workload}})
	}
	if b.predecessors.ended(claim.Owner) {
		b.Cache.Notify(requeue.Event{Owners: []string{claim.Owner}})
	}
}

// Remove drops all that is remembered of a pod.
func (b *Binder) Remove(pod *corev1.Pod) {
	b.tries.remove(pod.UID)
	if workload, searched := b.slots.removePod(pod.UID); searched {
		b.Cache.Notify(requeue.Event{Slots: []string{workload}})
	}
}

// resourceOf names what controls a pod as pool entries do; empty if nothing does.
func resourceOf(pod *corev1.Pod) string {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return ""
	}
	return identity.Resource(pod.Namespace, schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind(), owner.Name)
}
