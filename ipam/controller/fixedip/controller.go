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
	"sync/atomic"
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
	// whileInFlight is how long an identity waits that is being released.
	whileInFlight = 200 * time.Millisecond
	// parallelFinishes bounds the finalizers that are removed at once. It is the dearest of the writes that a deleted
	// workload costs, and no address waits for it, while those of the next node do. whileFinishing is how long others
	// wait.
	parallelFinishes = 4
	whileFinishing   = 100 * time.Millisecond
	// whileRefused is how long an identity waits whose FixedIP is refused: no event reports that a quota has room again.
	whileRefused = 30 * time.Second
	// whileUnknown is how long an identity waits whose kind of workload is not known: its watch has just begun, or its
	// API is not installed.
	whileUnknown = 5 * time.Second
)

// Controller reconciles FixedIPs.
type Controller struct {
	*gather.Gatherer
	Batches *release.Batches
	Writer  *ciliumpool.Writer
	// PoolsSeen reports whether the ledger has all pools that existed at the start, and Ready whether everything else
	// that existed then is known: before that nothing can be decided.
	PoolsSeen func() bool
	Ready     func() bool
	// ResyncPeriod is how often an identity is looked at without an event.
	ResyncPeriod time.Duration
	Allocator    *allocate.Allocator
	// IdentityRequests and SlotRequests have what the ledger reports: identities, and workloads with slots.
	IdentityRequests, SlotRequests *source.Requests

	// idle has since when FixedIPs have no pod that is bound to a node. It serves the delay of reclaim.Gap alone: a
	// replica that takes over counts from its own first look. Key: namespace/name. Value: a time.
	idle sync.Map
	// finishing counts the finalizers that are being removed.
	finishing atomic.Int32
}

// Setup adds the controller to a manager.
func (c *Controller) Setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("fixedip").
		For(&v1alpha1.FixedIP{}, builder.WithPredicates(source.BesideLedger)).
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
		// A request that came first once (see deletedFirst) is not urgent the next time.
		result.Priority = ptr.To(0)
	}
	return result, err
}

func (c *Controller) reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if c.Batches.InFlight(req.NamespacedName) {
		// The watches may show the pool without the address, and not yet that the FixedIP is deleted.
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
	if slices.ContainsFunc(actions, func(a reclaim.Action) bool { return a.Type.Destroys() || a.Type.Allocates() }) {
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
		// The resync looks at identities, and not at workloads.
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: after}, nil
}

// whenKnown returns a later look for an identity whose workload is not known yet, and any other error as it is.
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

// identity returns the state of an identity; none if there is no such identity.
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
	if ok {
		return []reclaim.State{s}, nil
	}
	if s.Record != nil && s.Record.Spec.Slot {
		c.SlotRequests.Add(c.ofSlot(s.Record)...)
	}
	return nil, nil
}

// step performs an action, and returns after which time the next one is due without an event; the resync period if no
// such time is known.
func (c *Controller) step(ctx context.Context, req ctrl.Request, s reclaim.State, a reclaim.Action) (after time.Duration, err error) {
	log := klog.FromContext(ctx).WithValues("action", a.Type, "rule", a.Rule, "pod", s.Holder)
	err = c.perform(ctx, req, s, a)
	if errors.Is(err, gather.ErrAsked) {
		// The answer queues the request.
		err = nil
	}
	var notProved *gather.NotProvedError
	switch {
	case errors.Is(err, gather.ErrSuperseded), apierrors.IsConflict(err):
		log.V(3).Info("Action superseded", "err", err)
		return source.AfterConflict, nil
	case errors.Is(err, errBusy):
		return whileFinishing, nil
	case errors.Is(err, errRefused):
		log.Info("Action refused, will be tried again", "err", err)
		return whileRefused, nil
	case errors.As(err, &notProved):
		log.V(2).Info("Action waits", "err", err)
		return notProved.RetryAfter(c.Clock.Now()), nil
	case err != nil:
		return c.ResyncPeriod, fmt.Errorf("%s of %s, held by pod %s: %w", a.Type, req, s.Holder, err)
	case a.Type == reclaim.FenceTarget, a.Type == reclaim.Withdraw:
		// The cooldown entry names no pod, so that no watch requests the identity, and it is removed when it is due.
		return source.AfterConflict, nil
	case a.At.IsZero():
		return c.ResyncPeriod, nil
	}
	return max(source.AfterConflict, a.At.Sub(c.Clock.Now())), nil
}

// SlotRequest returns the requests for those of some workloads, named as in pool entries, whose kinds have slots.
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

// ofPod returns the requests for the identity of a pod and for the workload whose slot it holds.
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
	entries := len(held) + len(c.Ledger.Away(key)) + len(c.Ledger.Arriving(key))
	if err == nil && fixed || entries > 0 || c.recorded(ctx, pod) {
		requests = append(requests, source.ForOwner(key)...)
	}
	return requests
}

// recorded reports whether a pod has a FixedIP: that of a pod without a workload may lack its entry.
func (c *Controller) recorded(ctx context.Context, pod *corev1.Pod) bool {
	var record v1alpha1.FixedIP
	return c.Cached.Get(ctx, client.ObjectKeyFromObject(pod), &record, client.UnsafeDisableDeepCopy) == nil
}

// OfWorkload returns the requests for every identity of a workload, recorded or only claimed.
func (c *Controller) OfWorkload(ctx context.Context, w identity.Workload) []ctrl.Request {
	var requests []ctrl.Request
	var records v1alpha1.FixedIPList
	if err := c.Cached.List(ctx, &records, index.OfWorkload(w.Resource()), client.UnsafeDisableDeepCopy); err != nil {
		klog.FromContext(ctx).Error(err, "FixedIPs not listed from the cache; the next resync looks at them", "kind", w.Kind, "workload", klog.KRef(w.Namespace, w.Name))
	}
	for _, record := range records.Items {
		requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&record)})
	}
	return append(requests, source.ForOwner(c.Ledger.OwnersOf(w.Namespace, identity.Label(w.GroupKind), w.Name)...)...)
}

// OfNode returns the requests for the identities whose addresses have their home on a node that appeared or has other
// subnets, and that have no entry there: their entries can be written now. At the start all identities are queued
// anyway.
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

// deletePriority is the priority of an identity whose pod was just deleted: its address may be released from then on.
// Others wait at 0, among them up to a thousand finalizers of a workload that was deleted.
const deletePriority = 100

// deletedFirst is a handler whose requests for deleted objects come before all others.
type deletedFirst struct {
	handler.EventHandler
	of handler.MapFunc
}

// Delete queues the identity of a deleted pod.
func (h deletedFirst) Delete(ctx context.Context, e event.DeleteEvent, q source.Queue) {
	source.AddWithPriority(q, deletePriority, h.of(ctx, e.Object)...)
}
