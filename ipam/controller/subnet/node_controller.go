// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	queues "fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/subnets"
)

const (
	// joinWorkers is how many nodes are given subnets at once.
	joinWorkers = 4
	// passInterval is the least time between two looks at all orphans. What happens in between is looked at together.
	passInterval = time.Second
	// changedRetry is how long a node waits after another write was faster.
	changedRetry = time.Second
	// exhaustedRetry is how long a node waits that could not get a subnet. Nodes that go do not wake those that wait.
	exhaustedRetry = 30 * time.Second
)

// Controller runs the reconcilers of the package.
type Controller struct {
	*Assigner
	Events events.EventRecorder
	// Resync is how often all orphans are looked at without an event.
	Resync time.Duration
	// Synced reports whether the ledger has all CiliumNodes and FixedIPs that existed at the start.
	Synced func() bool
	// AddNodes asks for nodes by name.
	AddNodes func(nodes ...string)

	// started: the subnets that nodes had before this process led are claimed. No new one is claimed before.
	started atomic.Bool
}

// All is the one request of the reconciler that looks at all orphans.
var All = reconcile.Request{NamespacedName: types.NamespacedName{Name: "all"}}

// NodeRequest asks for the subnets of one node.
func NodeRequest(node string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: node}}
}

// Setup adds the reconcilers to a manager. nodes and all are the sources of the ledger's changes for the two.
func (c *Controller) Setup(ctx context.Context, mgr manager.Manager, nodes, all source.Source) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.FixedIP{}, unavailableIndex, unavailable); err != nil {
		return fmt.Errorf("index the FixedIPs whose subnet has no node: %w", err)
	}
	of := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		if ns, ok := o.(*v1alpha1.NodeSubnet); ok {
			if ns.Spec.NodeName == "" {
				return nil
			}
			return []reconcile.Request{NodeRequest(ns.Spec.NodeName)}
		}
		return []reconcile.Request{NodeRequest(o.GetName())}
	})
	err := builder.ControllerManagedBy(mgr).
		Named("subnet").
		WatchesRawSource(nodes).
		Watches(&corev1.Node{}, of, builder.WithPredicates(nodeChanged)).
		Watches(&v1alpha1.NodeSubnet{}, of).
		WithOptions(queues.Workers(joinWorkers)).
		Complete(reconcile.Func(c.reconcileNode))
	if err != nil {
		return fmt.Errorf("set up the controller of the subnets of nodes: %w", err)
	}
	once := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{All}
	})
	err = builder.ControllerManagedBy(mgr).
		Named("orphan").
		WatchesRawSource(all).
		Watches(&corev1.Node{}, once, builder.WithPredicates(nodeChanged)).
		Watches(&v1alpha1.NodeSubnet{}, once).
		Watches(&v1alpha1.FixedIP{}, once, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(queues.Workers(1)).
		Complete(&orphanReconciler{Controller: c})
	if err != nil {
		return fmt.Errorf("set up the controller of orphaned subnets: %w", err)
	}
	return nil
}

// nodeChanged passes the changes of Nodes that matter to subnets, and not their heartbeats.
var nodeChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, after := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
	a, b := subnetplan.ConstraintsOf(before), subnetplan.ConstraintsOf(after)
	return nodeutil.IsSchedulable(before) != nodeutil.IsSchedulable(after) || before.Labels[successorLabel] != after.Labels[successorLabel] ||
		!slices.Equal(before.Spec.PodCIDRs, after.Spec.PodCIDRs) || !subnetplan.SameConstraints(&a, &b)
}}

// reconcileNode gives a node the subnets that it lacks, and brings the status of its NodeSubnets up to date.
func (c *Controller) reconcileNode(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if !c.started.Load() {
		return reconcile.Result{RequeueAfter: passInterval}, nil
	}
	n, ok := c.Ledger.Node(req.Name)
	if !ok {
		return reconcile.Result{}, nil
	}
	node, err := index.Node(ctx, c.Cached, n.Name)
	if err == nil && node == nil {
		node, err = index.Node(ctx, c.API, n.Name)
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if c.FromNode && c.reportMissing(node, n) {
		return reconcile.Result{}, nil
	}
	given, err := c.Assign(ctx, n, node)
	switch {
	case errors.Is(err, ciliumpool.ErrChanged), errors.Is(err, ciliumpool.ErrGone), errors.Is(err, subnets.ErrChanged), errors.Is(err, subnets.ErrTaken):
		// Another write was faster, which the watch will show, or a move that is under way is in the way, whose end
		// no event of this node reports.
		klog.FromContext(ctx).V(2).Info("Subnets not assigned, will be tried again", "err", err)
		return reconcile.Result{RequeueAfter: changedRetry}, nil
	case errors.Is(err, errOverlap):
		c.warn(n, node, "SubnetOverlap", "%v; the node gets its subnets when one of the two NodeSubnets is deleted", err)
		return reconcile.Result{RequeueAfter: exhaustedRetry}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("assign subnets to node %s: %w", n.Name, err)
	}
	if len(given.Subnets) > 0 {
		c.reportAssigned(ctx, n, node, given)
	}
	if given.Overlap.IsValid() {
		c.warn(n, node, "SubnetOverlap", "Subnet %s of spec.podCIDRs of node %s overlaps a subnet of node %s; nothing in it is handed out until one of the two is changed", given.Overlap, n.Name, given.With)
		return reconcile.Result{RequeueAfter: exhaustedRetry}, nil
	}
	if len(given.Exhausted) > 0 {
		c.warn(n, node, "SubnetsExhausted", "No %v subnet is left in the cluster pools for node %s; add a CIDR to the controller's cluster-pool flags", given.Exhausted, n.Name)
		return reconcile.Result{RequeueAfter: exhaustedRetry}, c.report(ctx, n, node)
	}
	n.Subnets = slices.Concat(n.Subnets, given.Subnets)
	return reconcile.Result{}, c.report(ctx, n, node)
}

// reportMissing reports a Node that has no subnets of its own although they are to come from there.
func (c *Controller) reportMissing(node *corev1.Node, n pool.NodePool) (missing bool) {
	if node == nil {
		return false
	}
	switch brought, err := nodeutil.PodCIDRs(node); {
	case err != nil:
		c.warn(n, node, "MalformedSubnet", "%v", err)
		return true
	case len(brought) == 0 && len(n.PodCIDRs) == 0:
		c.warn(n, node, "SubnetMissing", "spec.podCIDRs of node %s is empty, which its subnets are to come from; does the kube-controller-manager run with --allocate-node-cidrs?", n.Name)
		return true
	}
	return false
}

// reportAssigned reports that a node was given subnets.
func (c *Controller) reportAssigned(ctx context.Context, n pool.NodePool, node *corev1.Node, given Assignment) {
	metrics.SubnetsAssigned(given.Origin)
	klog.FromContext(ctx).Info("Subnets assigned", "node", n.Name, "subnets", given.Subnets, "origin", given.Origin, "from", given.From, "reserved", given.Reserved)
	reason, note := "SubnetAssigned", fmt.Sprintf("Subnets %v, %d reserved addresses in them", given.Subnets, given.Reserved)
	if given.Origin == subnetplan.Inherited || given.Origin == subnetplan.Adopted {
		reason, note = "SubnetInherited", fmt.Sprintf("Subnets %v, of which node %s had those with the %d reserved addresses; that node is gone, and their pods follow", given.Subnets, given.From, given.Reserved)
	}
	c.Events.Eventf(about(n, node), nil, corev1.EventTypeNormal, reason, "AssignSubnet", "%s", note)
}

// report brings the status of the NodeSubnets up to date whose subnets the node has.
func (c *Controller) report(ctx context.Context, n pool.NodePool, node *corev1.Node) error {
	list, err := c.Store.List(ctx)
	if err != nil {
		return err
	}
	all := subnetplan.FromNodeSubnets(list)
	for i := range list {
		ns := &list[i]
		s, ok := subnetplan.FromNodeSubnet(ns)
		if !ok || s.Node != n.Name || !slices.Contains(n.Subnets, s.CIDR) {
			continue
		}
		part := s.Previous != "" && !s.OrphanedSince.IsZero() && slices.ContainsFunc(all, func(o subnetplan.Subnet) bool { return o.Node == s.Previous })
		want := status(ns, node, part, c.Clock.Now())
		if sameStatus(ns.Status, want) {
			continue
		}
		if err := c.Store.UpdateStatus(ctx, ns, want); err != nil && !errors.Is(err, subnets.ErrChanged) {
			return err
		}
	}
	return nil
}

func (c *Controller) warn(n pool.NodePool, node *corev1.Node, reason, note string, args ...any) {
	c.Events.Eventf(about(n, node), nil, corev1.EventTypeWarning, reason, "AssignSubnet", note, args...)
}

// about returns the object that events about a node's subnets are recorded on: the Node, which people describe, or the
// CiliumNode if there is no Node.
func about(n pool.NodePool, node *corev1.Node) client.Object {
	if node == nil {
		return ciliumpool.Reference(n)
	}
	node = node.DeepCopy()
	node.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	return node
}
