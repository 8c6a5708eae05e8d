// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/allocate"
	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/controller/release"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/workloads"
)

const (
	// whileInFlight is the time until the next reconcile of an identity whose release is in flight.
	whileInFlight = 200 * time.Millisecond
	// parallelFinishes is the maximum number of finalizers that are removed at the same time. These writes are the most
	// expensive ones for a deleted workload and would delay the releases on other nodes. No release waits for them.
	parallelFinishes = 4
	// whileFinishing is the time until the next try of a request that waits in line to remove a finalizer. Usually the request
	// is queued earlier: see finishes.
	whileFinishing = 15 * time.Second
	// whileRefused is the time until the next try to create a FixedIP that was refused: no event reports that a quota has
	// room again.
	whileRefused = 30 * time.Second
	// whileUnknown is the time until the next reconcile if the state of the workload is not known: its watch has just begun, or
	// its API is not installed.
	whileUnknown = 5 * time.Second
)

// Controller reconciles FixedIPs.
type Controller struct {
	*gather.Gatherer
	Batches *release.Batches
	Writer  *ciliumpool.Writer
	// PoolsSeen reports whether the ledger has all pools that existed at the start. Ready reports whether all pools,
	// FixedIPs and StatefulSets that existed at the start are known; the resync begins then.
	PoolsSeen func() bool
	Ready     func() bool
	// ResyncPeriod is the interval at which each identity is reconciled without an event.
	ResyncPeriod time.Duration
	Allocator    *allocate.Allocator
	// IdentityRequests receives the identities whose entries or FixedIPs have changed in the ledger, and SlotRequests the
	// workloads whose slots have changed.
	IdentityRequests, SlotRequests *source.Requests

	// idle stores the time since which a FixedIP has had no bound pod, for the delay of reclaim.Gap only. After a change of the
	// leader, this is the time at which the new leader first reconciles the FixedIP. Key: namespace/name. Value: a time.Time.
	idle sync.Map
	// replaced stores the versions of FixedIPs that the cache still shows although this controller has replaced them.
	replaced  replaced
	finishing finishes
}

// Setup adds the controller to a manager.
func (c *Controller) Setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("fixedip").
		For(&v1alpha1.FixedIP{}, builder.WithPredicates(source.NotReservations)).
		WatchesRawSource(c.IdentityRequests.Resynced(source.Resync{
			Clock: c.Clock, Period: c.ResyncPeriod, Ready: c.Ready,
			All: func() []string { return source.Identities(c.Ledger) },
		})).
		WatchesRawSource(c.SlotRequests.Source(c.PoolsSeen, func() []ctrl.Request { return SlotRequest(c.Kinds, c.Ledger.Workloads()...) })).
		Watches(&corev1.Pod{}, deletedFirst{handler.EnqueueRequestsFromMapFunc(c.ofPod), c.ofPod}, builder.WithPredicates(source.AfterStart)).
		WithOptions(source.Workers(32)).
		Complete(c)
}

// Reconcile performs the next action for one identity, or for each slot of a workload.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	result, err := c.reconcile(ctx, req)
	if err == nil {
		metrics.Reconciled("fixedip", c.Clock.Now())
		// The priority of a deleted pod (see deletedFirst) applies once.
		result.Priority = ptr.To(0)
	}
	return result, err
}

func (c *Controller) reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if c.Batches.InFlight(req.NamespacedName) {
		// The watches may already show the pool without the address, but not yet the deletion of the FixedIP.
		return ctrl.Result{RequeueAfter: whileInFlight}, nil
	}
	states, actions, err := c.decide(ctx, c.FromCaches(), req)
	if err != nil {
		return whenKnown(ctx, err)
	}
	for i, a := range actions {
		if node := release.Node(states[i], a); node != "" {
			c.Batches.Add(node, req.NamespacedName)
			return ctrl.Result{}, nil
		}
	}
	if slices.ContainsFunc(actions, func(a reclaim.Action) bool { return a.Type.IsDestructive() || a.Type.Allocates() }) {
		if states, actions, err = c.decide(ctx, c.FromAPIServer(), req); err != nil {
			return whenKnown(ctx, err)
		}
	}
	after := c.ResyncPeriod
	var failed []error
	for i, a := range actions {
		next, err := c.step(ctx, req, states[i], a)
		after = min(after, next)
		failed = append(failed, err)
	}
	err = errors.Join(failed...)
	if err != nil || len(states) == 0 || !isWorkload(req) && after == c.ResyncPeriod {
		// The resync queues the identity again after ResyncPeriod. It queues no workloads.
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: after}, nil
}

// whenKnown returns a requeue after whileUnknown if the error matches workloads.ErrUnknown, and otherwise the error
// unchanged.
func whenKnown(ctx context.Context, err error) (ctrl.Result, error) {
	if errors.Is(err, workloads.ErrUnknown) {
		klog.FromContext(ctx).V(3).Info("The workload is not known yet", "err", err)
		return ctrl.Result{RequeueAfter: whileUnknown}, nil
	}
	return ctrl.Result{}, err
}

// isWorkload reports whether a request is for the slots of a workload.
func isWorkload(req ctrl.Request) bool { return strings.Contains(req.Name, "/") }

// decide returns the state and the next action of an identity, or of each slot of a workload.
func (c *Controller) decide(ctx context.Context, from gather.Reader, req ctrl.Request) (states []reclaim.State, actions []reclaim.Action, err error) {
	if isWorkload(req) {
		states, err = c.Slots(ctx, from, req.NamespacedName)
	} else {
		states, err = c.identity(ctx, from, req)
	}
	for _, s := range states {
		actions = append(actions, reclaim.Decide(s))
	}
	return states, actions, err
}

// identity returns the state of an identity; nil if there is none. If the request names the FixedIP of a slot, identity queues
// the workload of the slot instead.
func (c *Controller) identity(ctx context.Context, from gather.Reader, req ctrl.Request) ([]reclaim.State, error) {
	s, ok, err := c.Identity(ctx, from, req.NamespacedName)
	switch {
	case err != nil:
		return nil, err
	case !ok || s.Record == nil || s.Pod != nil && s.Pod.Spec.NodeName != "":
		c.idle.Delete(req.String())
	default:
		since, _ := c.idle.LoadOrStore(req.String(), s.Now)
		s.Idle = since.(time.Time)
	}
	if s.Record == nil {
		c.replaced.forget(req.String())
	}
	if ok {
		return []reclaim.State{s}, nil
	}
	if s.Record != nil && s.Record.Spec.AssignedTo == v1alpha1.Slot {
		c.SlotRequests.Add(c.ofSlot(s.Record)...)
	}
	return nil, nil
}

// step performs an action. after is the time until the next reconcile without an event; ResyncPeriod if no shorter time is
// known.
func (c *Controller) step(ctx context.Context, req ctrl.Request, s reclaim.State, a reclaim.Action) (after time.Duration, err error) {
	log := klog.FromContext(ctx).WithValues("action", a.Type, "rule", a.Rule, "pod", s.Holder)
	if c.replaced.has(s.Record, s.Now) {
		// The event of the write queues the request.
		return source.AfterConflict, nil
	}
	err = c.perform(ctx, req, s, a)
	if errors.Is(err, gather.ErrAsked) {
		// The answer of the agent queues the request again.
		err = nil
	}
	var notProved *gather.NotProvedError
	switch {
	case errors.Is(err, gather.ErrSuperseded), apierrors.IsConflict(err):
		log.V(3).Info("State changed since the decision; retrying", "err", err)
		return source.AfterConflict, nil
	case errors.Is(err, errBusy):
		return whileFinishing, nil
	case errors.Is(err, errRefused):
		log.Info("Action refused; retrying", "err", err)
		return whileRefused, nil
	case errors.As(err, &notProved):
		log.V(2).Info("Evidence is not sufficient for the action; retrying", "reason", notProved.Why)
		return notProved.RetryAfter(c.Clock.Now()), nil
	case err != nil:
		return c.ResyncPeriod, fmt.Errorf("perform action %s for %s (holder: %q): %w", a.Type, req, s.Holder, err)
	case a.Type == reclaim.FenceTarget, a.Type == reclaim.Withdraw:
		// The new cooldown entry names no pod, so that no watch event queues the identity. The next action has to be decided
		// before the entry is removed at the end of the cooldown.
		return source.AfterConflict, nil
	case a.At.IsZero():
		return c.ResyncPeriod, nil
	}
	return max(source.AfterConflict, a.At.Sub(c.Clock.Now())), nil
}

// SlotRequest returns requests for those of the workloads whose pods have slots. resources are the names of the workloads in
// pool entries: "namespace/Kind/name".
func SlotRequest(kinds identity.Kinds, resources ...string) []ctrl.Request {
	var requests []ctrl.Request
	for _, resource := range resources {
		namespace, name, _ := strings.Cut(resource, "/")
		label, _, ok := strings.Cut(name, "/")
		if kind, known := kinds.Labelled(label); ok && known && kind.Identity == identity.Slot {
			requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKey{Namespace: namespace, Name: name}})
		}
	}
	return requests
}

// ofSlot returns the request for the workload of a slot.
func (c *Controller) ofSlot(record *v1alpha1.FixedIP) []ctrl.Request {
	o := identity.OwnerOf(record)
	return SlotRequest(c.Kinds, identity.Resource(record.Namespace, o.GroupKind(), o.Name))
}

// ofPod returns the requests for the identity of a pod and for the workload whose slot the pod holds.
func (c *Controller) ofPod(ctx context.Context, obj client.Object) []ctrl.Request {
	pod := obj.(*corev1.Pod)
	key := pool.OwnerKey(pod.Namespace, pod.Name)
	held := c.Ledger.Held(key)
	var requests []ctrl.Request
	for _, h := range held {
		if label, name, ok := c.Ledger.EntryOf(h).WorkloadRef(); ok {
			requests = append(requests, SlotRequest(c.Kinds, pool.WorkloadKey(pod.Namespace, label, name))...)
		}
	}
	_, fixed, err := identity.Of(pod, c.Kinds, identity.NoControllers)
	entries := len(held) + len(c.Ledger.Moved(key)) + len(c.Ledger.MoveTargets(key))
	if err == nil && fixed || entries > 0 || c.recorded(ctx, pod) {
		requests = append(requests, source.ForOwner(key)...)
	}
	return requests
}

// recorded reports whether the cache has a FixedIP with the name of a pod. A bare pod may have a FixedIP and no entry.
func (c *Controller) recorded(ctx context.Context, pod *corev1.Pod) bool {
	var record v1alpha1.FixedIP
	return c.Cached.Get(ctx, client.ObjectKeyFromObject(pod), &record, client.UnsafeDisableDeepCopy) == nil
}

// OfWorkload returns requests for all identities of a workload: those with a FixedIP and those with only a claim.
func (c *Controller) OfWorkload(ctx context.Context, w identity.Workload) []ctrl.Request {
	var requests []ctrl.Request
	var records v1alpha1.FixedIPList
	if err := c.Cached.List(ctx, &records, index.OfWorkload(w.Resource()), client.UnsafeDisableDeepCopy); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to list FixedIPs from the cache; the next resync retries", "kind", w.Kind, "workload", klog.KRef(w.Namespace, w.Name))
	}
	for _, record := range records.Items {
		requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&record)})
	}
	return append(requests, source.ForOwner(c.Ledger.OwnersOf(w.Namespace, identity.Label(w.GroupKind), w.Name)...)...)
}

// OfNode returns requests for the identities with a reserved address whose home is the node, but for which the pool of the
// node has no owned entry: the entry can be written if the node has just appeared or got other subnets, or if its agent has
// just reported or released an address. OfNode returns nil until PoolsSeen returns true, because the resync queues all
// identities at the start.
func (c *Controller) OfNode(node string) []ctrl.Request {
	n, ok := c.Ledger.Node(node)
	if !ok || c.PoolsSeen == nil || !c.PoolsSeen() || len(n.Subnets) == 0 {
		return nil
	}
	var requests []ctrl.Request
	for _, k := range c.Ledger.ReservationsIn(n.Subnets...) {
		if slices.ContainsFunc(k.Addrs, func(a netip.Addr) bool { return n.Home(a) && !n.Entries[a].OwnedBy(k.Owner) }) {
			requests = append(requests, source.ForOwner(k.Record)...)
		}
	}
	return requests
}

// deletePriority is the priority of the request for a deleted pod, whose address can be released. The requests of other
// events have priority 0; if a workload is deleted, these may include the requests for hundreds of FixedIPs.
const deletePriority = 100

// deletedFirst is a handler that queues the requests for deleted objects before all other requests.
type deletedFirst struct {
	handler.EventHandler
	of handler.MapFunc
}

// Delete queues the identity of a deleted pod, and the workload whose slot the pod held, with deletePriority.
func (h deletedFirst) Delete(ctx context.Context, e event.DeleteEvent, q source.Queue) {
	source.AddWithPriority(q, deletePriority, h.of(ctx, e.Object)...)
}
