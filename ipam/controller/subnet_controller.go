// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/subnets"
)

const (
	// successorLabel on a Node names the node whose subnets it takes over.
	successorLabel = "fixedip.io/replaces-node"
	// subnetInterval is the least time between two looks at all records. Whatever happens in
	// between is looked at together.
	subnetInterval = time.Second
	// exhaustedRetry is how long a node waits that could not get a subnet. Nodes that go do not wake
	// those that wait.
	exhaustedRetry = 30 * time.Second
)

// subnetReconciler owns spec.ipam.podCIDRs of CiliumNodes and the condition Homed of FixedIPs. It has
// one request, which looks at all subnets that lost their node; nodes that lack a subnet are given
// one when nodeReconciler comes by.
//
// When a node went is written nowhere but in that condition: the hold time is counted from its
// lastTransitionTime, so that it goes on when the controller is replaced.
type subnetReconciler struct {
	ledger    *ledger.Ledger
	allocator *subnets.Allocator
	cached    client.Reader
	live      client.Client
	events    events.EventRecorder
	clock     clock.Clock
	cfg       Config
	// synced tells whether the ledger has all nodes that stood at the start.
	synced func() bool
	// looked is when all records were last looked at. It paces and decides nothing.
	looked time.Time
	// refused has the nodes that lack a subnet in one family only and could not get it. Key: the name of
	// the node. Value: the time.Time of the refusal. Their pools change all the time, and not each
	// change is worth another try.
	refused sync.Map
}

// allSubnets is the one request.
var allSubnets = reconcile.Request{NamespacedName: types.NamespacedName{Name: "all"}}

func (r *subnetReconciler) setup(ctx context.Context, mgr manager.Manager, nodes *source.Feed) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.FixedIP{}, unhomedIndex, unhomed); err != nil {
		return fmt.Errorf("index FixedIPs without a home: %w", err)
	}
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{allSubnets}
	})
	return builder.ControllerManagedBy(mgr).
		Named("subnet").
		WatchesRawSource(nodes.Source(nil, func() []reconcile.Request { return []reconcile.Request{allSubnets} })).
		Watches(&corev1.Node{}, all, builder.WithPredicates(nodeChanged)).
		Watches(&v1alpha1.FixedIP{}, all, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(source.Workers(1)).
		Complete(r)
}

// Reconcile looks at all subnets that lost their node: it says so on the FixedIPs in them, and gives
// the subnets to others, or the FixedIPs up, when the time has come.
func (r *subnetReconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	now := r.clock.Now()
	if wait := r.looked.Add(subnetInterval).Sub(now); wait > 0 && wait <= subnetInterval {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	if !r.synced() {
		return reconcile.Result{RequeueAfter: subnetInterval}, nil
	}
	r.looked = now
	v, err := r.view(ctx, now)
	if err != nil {
		return reconcile.Result{}, err
	}
	told, err := r.tell(ctx, v)
	if err != nil {
		return reconcile.Result{}, err
	}
	rules := r.cfg.subnetRules()
	next, adopts := now.Add(source.ResyncPeriod), false
	if told {
		next = now.Add(subnetInterval)
	}
	for _, o := range v.orphans {
		heir, at := rules.Adopter(o, v.heirs, now)
		if heir != "" {
			adopts = true
			continue
		}
		kept, when := rules.GivenUp(o, now)
		if err := r.giveUp(ctx, o, kept, v); err != nil {
			return reconcile.Result{}, err
		}
		for _, t := range []time.Time{at, when} {
			if !t.IsZero() && t.Before(next) {
				next = t
			}
		}
	}
	if adopts {
		switch err := r.adopt(ctx, v.heirs); {
		case errors.Is(err, errSuperseded):
			next = now
		case err != nil:
			return reconcile.Result{}, err
		}
	}
	metrics.Reconciled("subnet", now)
	return reconcile.Result{RequeueAfter: max(subnetInterval, next.Sub(now))}, nil
}

// adopt gives orphans to living nodes.
func (r *subnetReconciler) adopt(ctx context.Context, heirs []plan.Heir) error {
	done, err := r.allocator.Adopt(ctx, heirs)
	for _, given := range done {
		r.given(ctx, given.Heir, given.Assignment)
	}
	if errors.Is(err, ciliumpool.ErrChanged) || errors.Is(err, ciliumpool.ErrGone) {
		// Somebody was faster, or the heir is gone, which the watch will show.
		return errSuperseded
	}
	if err != nil {
		return fmt.Errorf("give the subnets of a node that is gone to another: %w", err)
	}
	return nil
}

// assign gives a node the subnets that it lacks and the first entries in them. done: the watch will
// show what became of it.
func (r *subnetReconciler) assign(ctx context.Context, n pool.Node, first func(pool.Node) []pool.Edit) (result reconcile.Result, done bool, err error) {
	if at, ok := r.refused.Load(n.Name); ok && len(n.PodCIDRs) > 0 {
		if wait := exhaustedRetry - r.clock.Since(at.(time.Time)); wait > 0 {
			return reconcile.Result{RequeueAfter: wait}, false, nil
		}
	}
	r.refused.Delete(n.Name)
	var node corev1.Node
	if err := r.cached.Get(ctx, client.ObjectKey{Name: n.Name}, &node); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, false, fmt.Errorf("read node %s: %w", n.Name, err)
	}
	j := plan.Joiner{SuccessorOf: node.Labels[successorLabel]}
	if r.cfg.SubnetSource == FromNode {
		if j.Own, err = nodeutil.PodCIDRs(&node); err != nil {
			r.warn(ctx, n.Name, "MalformedSubnet", "AssignSubnet", "%v", err)
			return reconcile.Result{}, false, nil
		}
		if len(j.Own) == 0 {
			r.warn(ctx, n.Name, "SubnetMissing", "AssignSubnet", "spec.podCIDRs of node %s is empty, which its subnets are to come from; does the kube-controller-manager run with --allocate-node-cidrs?", n.Name)
			return reconcile.Result{}, false, nil
		}
	}
	given, err := r.allocator.Assign(ctx, n, j, first)
	switch {
	case errors.Is(err, ciliumpool.ErrChanged), errors.Is(err, ciliumpool.ErrGone):
		// Somebody was faster, which the watch will show; or a move under way is in the way, which no
		// event of this node tells the end of.
		return reconcile.Result{RequeueAfter: time.Second}, true, nil
	case err != nil:
		return reconcile.Result{}, false, fmt.Errorf("assign subnets to node %s: %w", n.Name, err)
	}
	if len(given.Subnets) > 0 {
		r.given(ctx, n.Name, given)
	}
	if given.Overlap.IsValid() {
		other := r.holderOf(n.Name, given.Overlap)
		r.warn(ctx, n.Name, "SubnetOverlap", "AssignSubnet", "Subnet %s of spec.podCIDRs of node %s overlaps a subnet of node %s; nothing in it is handed out until one of the two is changed", given.Overlap, n.Name, other)
		r.refused.Store(n.Name, r.clock.Now())
		return reconcile.Result{RequeueAfter: exhaustedRetry}, false, nil
	}
	if len(given.Exhausted) > 0 {
		r.refused.Store(n.Name, r.clock.Now())
		r.warn(ctx, n.Name, "SubnetsExhausted", "AssignSubnet", "No %v subnet is left in the cluster pools for node %s; add a CIDR to the controller's cluster-pool flags", given.Exhausted, n.Name)
		return reconcile.Result{RequeueAfter: exhaustedRetry}, len(given.Subnets) > 0, nil
	}
	return reconcile.Result{}, len(given.Subnets) > 0, nil
}

// given tells that a node was given subnets.
func (r *subnetReconciler) given(ctx context.Context, node string, given plan.Assignment) {
	metrics.SubnetsAssigned(given.Origin)
	klog.FromContext(ctx).Info("Subnets assigned", "node", node, "subnets", given.Subnets, "origin", given.Origin, "from", given.From, "kept", len(given.Kept))
	switch given.Origin {
	case plan.Inherited, plan.Adopted:
		r.normal(ctx, node, "SubnetInherited", "AssignSubnet", "Subnets %v, of which node %s had those with the %d kept addresses; that node is gone, and their pods follow", given.Subnets, given.From, len(given.Kept))
	default:
		r.normal(ctx, node, "SubnetAssigned", "AssignSubnet", "Subnets %v, %d kept addresses in them", given.Subnets, len(given.Kept))
	}
}

// lacks tells whether a node has no subnet in some family that it should have one in.
func (r *subnetReconciler) lacks(ctx context.Context, n pool.Node) bool {
	if r.cfg.SubnetSource == ClusterPool {
		return slices.ContainsFunc(r.cfg.ClusterPools, func(p address.ClusterPool) bool { return !n.HasFamily(p.Family()) })
	}
	var node corev1.Node
	if err := r.cached.Get(ctx, client.ObjectKey{Name: n.Name}, &node); err != nil {
		return false
	}
	return len(n.PodCIDRs) == 0 || slices.ContainsFunc(node.Spec.PodCIDRs, func(s string) bool { return !slices.Contains(n.PodCIDRs, s) })
}

func (r *subnetReconciler) holderOf(except string, s netip.Prefix) string {
	for _, n := range r.ledger.Nodes() {
		if n.Name != except && slices.ContainsFunc(n.Subnets, s.Overlaps) {
			return n.Name
		}
	}
	return ""
}

// tell brings the condition Homed of all FixedIPs up to date. told tells whether any was written.
func (r *subnetReconciler) tell(ctx context.Context, v *view) (told bool, err error) {
	byName := func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }
	for _, key := range slices.SortedFunc(maps.Keys(v.homed), byName) {
		record, want := v.records[key], v.homed[key]
		have := meta.FindStatusCondition(record.Status.Conditions, v1alpha1.ConditionHomed)
		if have != nil && have.Status == want.Status && have.Reason == want.Reason {
			continue
		}
		record = record.DeepCopy()
		// SetStatusCondition keeps the time while the status is the same. Here it counts from the
		// change of the reason.
		meta.RemoveStatusCondition(&record.Status.Conditions, v1alpha1.ConditionHomed)
		want.LastTransitionTime = metav1.NewTime(v.world.Now)
		want.ObservedGeneration = record.Generation
		meta.SetStatusCondition(&record.Status.Conditions, want)
		switch err := r.live.Status().Update(ctx, record); {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			// It was written meanwhile, and is looked at again.
		case err != nil:
			return told, fmt.Errorf("write condition %s of FixedIP %s: %w", v1alpha1.ConditionHomed, key, err)
		case want.Status == metav1.ConditionFalse:
			r.events.Eventf(record, nil, corev1.EventTypeWarning, want.Reason, "LookForSubnet", "%s", want.Message)
		}
		told = true
	}
	return told, nil
}

// giveUp deletes FixedIPs of a node that is gone.
func (r *subnetReconciler) giveUp(ctx context.Context, o plan.Orphan, kept []plan.Kept, v *view) error {
	if len(kept) == 0 {
		return nil
	}
	// What is given up can't be had back: the caches don't suffice.
	for _, obj := range []client.Object{&corev1.Node{}, &ciliumv2.CiliumNode{}} {
		switch err := r.live.Get(ctx, client.ObjectKey{Name: o.Node}, obj); {
		case err == nil:
			return nil
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("look whether node %s is gone: %w", o.Node, err)
		}
	}
	for _, k := range kept {
		record := v.records[k.Record]
		if record.DeletionTimestamp != nil {
			continue
		}
		err := r.live.Delete(ctx, record, client.Preconditions{UID: &record.UID, ResourceVersion: &record.ResourceVersion})
		switch {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			// The other family of the same record, or somebody wrote it meanwhile.
		case err != nil:
			return fmt.Errorf("give FixedIP %s up: %w", k.Record, err)
		default:
			r.events.Eventf(record, nil, corev1.EventTypeNormal, "GivenUp", "DeleteRecord", "Node %s is gone for %v, and --orphaned-subnet-policy is %s: address %v goes back, and the pod gets another", o.Node, r.cfg.SubnetHold, plan.Free, record.Spec.IPs)
		}
	}
	return nil
}

func (r *subnetReconciler) warn(ctx context.Context, node, reason, action, note string, args ...any) {
	r.events.Eventf(r.about(ctx, node), nil, corev1.EventTypeWarning, reason, action, note, args...)
}

func (r *subnetReconciler) normal(ctx context.Context, node, reason, action, note string, args ...any) {
	r.events.Eventf(r.about(ctx, node), nil, corev1.EventTypeNormal, reason, action, note, args...)
}

// about is what events about a node's subnets are shown on: the Node, which people describe, and the
// CiliumNode where there is none.
func (r *subnetReconciler) about(ctx context.Context, name string) client.Object {
	var node corev1.Node
	if err := r.cached.Get(ctx, client.ObjectKey{Name: name}, &node); err == nil {
		node.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
		return &node
	}
	n, _ := r.ledger.Node(name)
	n.Name = name
	return ciliumNode(n)
}
