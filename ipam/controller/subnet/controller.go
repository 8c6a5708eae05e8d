// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

const (
	// joinWorkers is the number of workers that assign subnets to nodes.
	joinWorkers = 4
	// passInterval is the minimum time between two passes over all orphaned subnets. One pass handles all events in
	// between.
	passInterval = time.Second
	// changedRetry is the time until the next try to assign subnets to a node after a conflict with another write.
	changedRetry = time.Second
	// exhaustedRetry is the time until the next try for a node that could not get a subnet. The deletion of another node
	// causes no event for such a node.
	exhaustedRetry = 30 * time.Second
)

// replacesNodeLabel is the label of a Node whose value is the name of the node that this Node replaces.
const replacesNodeLabel = "fixedip.io/replaces-node"

// Controller assigns subnets to nodes, and decides about orphaned subnets. Assign and Take are safe for concurrent use, also
// by several processes.
type Controller struct {
	Pools *ciliumpool.Client
	// Writer cancels moves of addresses to other nodes.
	Writer *ciliumpool.Writer
	// Ledger is updated from the watches of CiliumNodes and FixedIPs.
	Ledger *ledger.Ledger
	// API reads from and writes to the API server, Cached reads from the caches.
	API    client.Client
	Cached client.Reader
	Rules  subnetplan.Rules
	// FromNode is true if Kubernetes assigns the subnets, in Node.spec.podCIDRs.
	FromNode bool
	// StrictNodes selects the nodes whose pools have no dynamic entries.
	StrictNodes labels.Selector
	// Adoption contains the names of our scheduler's profiles, and says whether IPv6 addresses of running pods become fixed.
	Adoption identity.Adoption
	Kinds    identity.Kinds
	// FirstEntries returns the edits that complete the new pool n. n already has the entries of reserved addresses
	// and of addresses in use.
	FirstEntries func(ctx context.Context, n pool.NodePool) ([]pool.EntryChange, error)
	Events       events.EventRecorder
	Clock        clock.PassiveClock
	// Resync is the maximum time between two passes over all orphaned subnets.
	Resync time.Duration
	// Synced reports whether the ledger has all CiliumNodes and FixedIPs that existed at the start.
	Synced func() bool
	// Nodes receives requests for the nodes that may lack subnets. Orphans receives the request All, which starts a
	// pass over all orphaned subnets.
	Nodes, Orphans *source.Requests

	// started is true once start has recorded the existing subnets of all CiliumNodes in NodeSubnets. Until then,
	// reconcileNode assigns no subnet.
	started atomic.Bool
	// lastPass is the time of the last pass over all orphaned subnets, and lastRelease the time of the last attempt
	// to release subnets. They only limit the rate.
	lastPass, lastRelease time.Time

	mu sync.Mutex
	// volumes contains the volumes of waiting pods; nil until the first read. Key: the UID of the pod. Value: podVolumes.
	volumes *lru.Cache
	// recent contains the subnets that this process has recently tried to claim: the caches may not show their NodeSubnets
	// yet. Value: the time of the try.
	recent map[netip.Prefix]time.Time

	// listed is the list of all NodeSubnets. Each node needs it, and it rarely changes.
	listed listCache
	// live shares the lists of all NodeSubnets at the API server between concurrent claims.
	live sharedRead[[]subnetplan.Subnet]
}

// All is the only request of the reconciler of orphaned subnets, which handles all of them in one pass.
var All = source.ForName("all")

// Setup adds the reconcilers to a manager. No node is reconciled before seen reports true.
func (c *Controller) Setup(ctx context.Context, mgr ctrl.Manager, seen func() bool) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.FixedIP{}, unavailableIndex, unavailable); err != nil {
		return fmt.Errorf("index FixedIPs by condition SubnetAvailable: %w", err)
	}
	if err := c.listed.follow(ctx, mgr.GetCache(), c.nodeSubnetChanged); err != nil {
		return err
	}
	err := ctrl.NewControllerManagedBy(mgr).
		Named("subnet").
		// This source has no initial requests: start enqueues all nodes during the first pass over all orphaned
		// subnets.
		WatchesRawSource(c.Nodes.Source(seen, func() []ctrl.Request { return nil })).
		Watches(&corev1.Node{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(nodeChanged)).
		WithOptions(source.Workers(joinWorkers)).
		Complete(reconcile.Func(c.reconcileNode))
	if err != nil {
		return fmt.Errorf("set up the controller of the subnets of nodes: %w", err)
	}
	once := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []ctrl.Request {
		return []ctrl.Request{All}
	})
	err = ctrl.NewControllerManagedBy(mgr).
		Named("orphan").
		WatchesRawSource(c.Orphans.Source(nil, func() []ctrl.Request { return []ctrl.Request{All} })).
		Watches(&corev1.Node{}, once, builder.WithPredicates(nodeChanged)).
		Watches(&v1alpha1.FixedIP{}, once, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Pod{}, once, builder.WithPredicates(nominated)).
		WithOptions(source.Workers(1)).
		Complete(reconcile.Func(c.reconcileOrphans))
	if err != nil {
		return fmt.Errorf("set up the controller of orphaned subnets: %w", err)
	}
	return nil
}

// nodeSubnetChanged queues the nodes that a NodeSubnet named before and after an event, and a pass over all orphaned subnets.
// One of before and after may be nil.
func (c *Controller) nodeSubnetChanged(before, after *v1alpha1.NodeSubnet) {
	for _, ns := range []*v1alpha1.NodeSubnet{before, after} {
		if ns != nil && ns.Spec.NodeName != "" {
			c.Nodes.Add(source.ForName(ns.Spec.NodeName))
		}
	}
	c.Orphans.Add(All)
}

// nodeChanged selects the updates of Nodes that can change the assignment of subnets. It leaves out heartbeats.
var nodeChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, after := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
	return nodeutil.IsSchedulable(before) != nodeutil.IsSchedulable(after) || before.Labels[replacesNodeLabel] != after.Labels[replacesNodeLabel] ||
		!slices.Equal(before.Spec.PodCIDRs, after.Spec.PodCIDRs) || !equality.Semantic.DeepEqual(subnetplan.ConstraintsOf(before), subnetplan.ConstraintsOf(after))
}}

// nominated selects the updates of unbound pods that change the nominated node: that node may inherit an orphaned subnet.
var nominated = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*corev1.Pod), e.ObjectNew.(*corev1.Pod)
		return after.Spec.NodeName == "" && before.Status.NominatedNodeName != after.Status.NominatedNodeName
	},
	DeleteFunc: func(event.DeleteEvent) bool { return false },
}

// reconcileNode assigns to a node the subnets that it lacks, and brings the status of its NodeSubnets up to date.
func (c *Controller) reconcileNode(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if !c.started.Load() {
		return ctrl.Result{RequeueAfter: passInterval}, nil
	}
	n, ok := c.Ledger.Node(req.Name)
	if !ok {
		return ctrl.Result{}, nil
	}
	node, err := index.Node(ctx, c.Cached, n.Name, c.API)
	if err != nil {
		return ctrl.Result{}, err
	}
	given, err := c.Assign(ctx, n, node)
	var found *problem
	switch {
	case errors.Is(err, ciliumpool.ErrChanged), errors.Is(err, ciliumpool.ErrGone), errors.Is(err, ErrChanged), errors.Is(err, errTaken):
		// Another write was faster, and the watch will show that write; or the move of an address is not complete yet, and no
		// event of this node reports the end of the move.
		klog.FromContext(ctx).V(2).Info("Failed to assign subnets; retrying", "err", err)
		return ctrl.Result{RequeueAfter: changedRetry}, nil
	case errors.As(err, &found):
		c.Events.Eventf(about(n, node), nil, corev1.EventTypeWarning, found.reason, "AssignSubnet", "%v", err)
		return ctrl.Result{RequeueAfter: exhaustedRetry}, c.report(ctx, n, node)
	case err != nil:
		return ctrl.Result{}, fmt.Errorf("assign subnets to node %s: %w", n.Name, err)
	}
	if len(given.Subnets) > 0 {
		c.reportAssigned(ctx, n, node, given)
	}
	if len(given.Exhausted) > 0 {
		c.Events.Eventf(about(n, node), nil, corev1.EventTypeWarning, "SubnetsExhausted", "AssignSubnet", "The cluster pools have no free subnet for node %s (%s); the controller retries; add a CIDR to subnets.clusterPools in the configuration", n.Name, address.JoinFamilies(given.Exhausted))
		return ctrl.Result{RequeueAfter: exhaustedRetry}, c.report(ctx, n, node)
	}
	n.Subnets = slices.Concat(n.Subnets, given.Subnets)
	return ctrl.Result{}, c.report(ctx, n, node)
}

// reportAssigned reports an assignment of subnets in the metric, the log and an event.
func (c *Controller) reportAssigned(ctx context.Context, n pool.NodePool, node *corev1.Node, given Assignment) {
	metrics.SubnetsAssigned(given.Origin)
	klog.FromContext(ctx).Info("Subnets assigned", "node", n.Name, "subnets", given.Subnets, "origin", given.Origin, "from", given.From, "reserved", given.Reserved)
	reason, from, pods := "SubnetAssigned", "", ""
	if given.Origin == subnetplan.ByNewNode || given.Origin == subnetplan.ByExistingNode {
		reason, from = "SubnetInherited", ", including some that had no node yet"
		if given.From != "" {
			from = ", including subnets of node " + given.From + ", which is gone"
		}
		pods = "; pods with such an IP are placed on this node, unless the IP has moved to another node"
	}
	note := fmt.Sprintf("Assigned subnets: %s%s; IPs reserved in them: %d%s", pool.JoinSubnets(given.Subnets), from, given.Reserved, pods)
	c.Events.Eventf(about(n, node), nil, corev1.EventTypeNormal, reason, "AssignSubnet", "%s", note)
}

// report updates the status of the NodeSubnets that name the node and whose subnets the node has.
func (c *Controller) report(ctx context.Context, n pool.NodePool, node *corev1.Node) error {
	list, err := c.List(ctx)
	if err != nil {
		return err
	}
	for _, s := range list {
		if s.Node != n.Name || !slices.Contains(n.Subnets, s.CIDR) {
			continue
		}
		want := s.Object.Status.DeepCopy()
		// OrphanedSince stays set until no NodeSubnet with a reserved address names the previous node any more.
		if s.Previous == "" || !slices.ContainsFunc(list, func(o subnetplan.Subnet) bool {
			return o.Node == s.Previous && len(c.Ledger.ReservationsIn(o.CIDR)) > 0
		}) {
			want.OrphanedSince, want.GracePeriodEnd = nil, nil
		}
		if node != nil {
			want.NodeConstraints = ptr.To(subnetplan.ConstraintsOf(node))
		}
		c.setConditionsOf(want, s, metav1.ConditionTrue, v1alpha1.ReasonAssigned, fmt.Sprintf("node %s has the subnet", s.Node))
		if equality.Semantic.DeepEqual(s.Object.Status, *want) {
			continue
		}
		if err := c.updateStatus(ctx, s, *want); err != nil && !errors.Is(err, ErrChanged) {
			return err
		}
	}
	return nil
}

// setConditionsOf sets the conditions of a NodeSubnet: Assigned as the arguments say, and Ready to the same. But if Assigned
// is True and the subnets of the node overlap those of another node, Ready is False.
func (c *Controller) setConditionsOf(s *v1alpha1.NodeSubnetStatus, subnet subnetplan.Subnet, status metav1.ConditionStatus, reason, message string) {
	set := func(kind string, status metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: subnet.Object.Generation,
			LastTransitionTime: metav1.NewTime(c.Clock.Now().Truncate(time.Second)),
		})
	}
	set(v1alpha1.ConditionAssigned, status, reason, message)
	if other, overlap := c.Ledger.OverlapsWith(subnet.Node); overlap && status == metav1.ConditionTrue {
		status, reason, message = metav1.ConditionFalse, v1alpha1.ReasonSubnetOverlap, overlapOf(subnet.Node, other)+"; "+pool.OverlapHelp
	}
	set(v1alpha1.ConditionReady, status, reason, message)
}

// about returns the object on which events about the subnets of a node are recorded: the Node, which users describe with
// kubectl, or the CiliumNode if there is no Node.
func about(n pool.NodePool, node *corev1.Node) client.Object {
	if node == nil {
		return ciliumpool.Reference(n)
	}
	node = node.DeepCopy()
	node.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	return node
}
