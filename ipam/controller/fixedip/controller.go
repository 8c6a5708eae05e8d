// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/barrier"
	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/controller/internal/requeue"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/controller/release"
	"fixedip.io/fixedip/ipam/core/agentview"
	"fixedip.io/fixedip/ipam/core/reclaim"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

const (
	// whileInFlight is how long an identity waits that is being released.
	whileInFlight = 200 * time.Millisecond
	// parallelFinishes bounds the finalizers that are removed at once. It is the dearest of the writes that a deleted
	// workload costs, and no address waits for it, while those of the next node do. whileFinishing is how long others
	// wait.
	parallelFinishes = 4
	whileFinishing   = 100 * time.Millisecond
	// whileUnproved is how long an action waits at least whose evidence was not enough: most often for a pod without an
	// address.
	whileUnproved = 5 * time.Second
)

// Options are what a Controller needs.
type Options struct {
	Gatherer  *gather.Gatherer
	Batches   *release.Batches
	Writer    *ciliumpool.Writer
	Cached    client.Reader
	Live      client.Client
	Workloads gather.Workloads
	Events    events.EventRecorder
	Clock     clock.Clock
	// PoolsSeen reports whether the ledger has all pools that existed at the start, and Ready whether everything else
	// that existed then is known: before that nothing can be decided.
	PoolsSeen toolscache.InformerSynced
	Ready     []toolscache.InformerSynced
	// ResyncPeriod is how often an identity is looked at without an event.
	ResyncPeriod time.Duration
	// Agents answers what has to be proved.
	Agents Agents
	// Identities and Slots have what the ledger reports: identities, and workloads with slots.
	Identities, Slots *source.Feed
}

// Agents asks Cilium agents: see barrier.Service.
type Agents interface {
	Ask(node, question string, notify func()) (evidence agentview.Evidence, answered time.Time)
	Forget(node, question string)
}

var _ Agents = &barrier.Service{}

// Controller reconciles FixedIPs.
type Controller struct {
	Options
	idle idleTimes
	// finishing has an item for each finalizer that is being removed.
	finishing chan struct{}
}

// New returns a Controller.
func New(o Options) *Controller {
	return &Controller{Options: o, finishing: make(chan struct{}, parallelFinishes)}
}

// Setup adds the controller to a manager.
func (c *Controller) Setup(mgr manager.Manager) error {
	return builder.ControllerManagedBy(mgr).
		Named("fixedip").
		For(&v1alpha1.FixedIP{}, builder.WithPredicates(source.BesideLedger)).
		WatchesRawSource(c.Identities.Resynced(source.Resync{
			Clock: c.Clock, Period: c.ResyncPeriod, Ready: c.Ready,
			All: func() []string { return source.Identities(c.Gatherer.Ledger) },
		})).
		WatchesRawSource(c.Slots.Source(c.PoolsSeen, c.allSlots)).
		Watches(&corev1.Pod{}, newDeletedFirst(c.ofPod), builder.WithPredicates(source.AfterStart)).
		WithOptions(source.Workers(32)).
		Complete(c)
}

func (c *Controller) cached() gather.Reader {
	return gather.Cached{API: c.Cached, Workloads: c.Workloads}
}

func (c *Controller) live() gather.Reader {
	return gather.Live{API: c.Live, Workloads: c.Workloads}
}

// Reconcile performs the next action for one identity, or for each slot of a workload.
func (c *Controller) Reconcile(ctx context.Context, req reconcile.Request) (result reconcile.Result, err error) {
	if strings.Contains(req.Name, "/") {
		result, err = c.reconcileSlots(ctx, req)
	} else {
		result, err = c.reconcileIdentity(ctx, req)
	}
	if err == nil {
		metrics.Reconciled("fixedip", c.Clock.Now())
		// A request that came first once (see deletedFirst) is not urgent the next time.
		result.Priority = ptr.To(0)
	}
	return result, err
}

func (c *Controller) reconcileIdentity(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if c.Batches.InFlight(req.NamespacedName) {
		// The watches may show the pool without the address, and not yet that the FixedIP is deleted.
		return reconcile.Result{RequeueAfter: whileInFlight}, nil
	}
	s, ok, err := c.Gatherer.Identity(ctx, c.cached(), req.NamespacedName)
	if err != nil {
		return requeue.WhenKnown(ctx, err)
	}
	if !ok {
		c.idle.forget(req.String())
		if s.Record != nil && s.Record.Spec.Slot {
			c.Slots.Add(c.ofSlot(s.Record)...)
		}
		return reconcile.Result{}, nil
	}
	s.Idle = c.idle.look(req.String(), s.Record != nil, s.Pod, s.Now)
	a := reclaim.Decide(s)
	if node := release.Node(s, a); node != "" {
		c.Batches.Add(node, req.NamespacedName)
		return reconcile.Result{}, nil
	}
	if a.Type.Destroys() || a.Type == reclaim.Allocate {
		if s, ok, err = c.Gatherer.Identity(ctx, c.live(), req.NamespacedName); err != nil || !ok {
			return requeue.WhenKnown(ctx, err)
		}
		a = reclaim.Decide(s)
	}
	switch err := c.perform(ctx, req, req.NamespacedName, s, a); {
	case errors.Is(err, requeue.ErrSuperseded), apierrors.IsConflict(err):
		klog.FromContext(ctx).V(3).Info("Action superseded", "action", a.Type, "rule", a.Rule, "err", err)
		return reconcile.Result{RequeueAfter: requeue.AfterConflict}, nil
	case errors.Is(err, errBusy):
		return reconcile.Result{RequeueAfter: whileFinishing}, nil
	case errors.Is(err, errUnproved):
		klog.FromContext(ctx).V(2).Info("Action waits", "action", a.Type, "err", err)
		return requeue.BeforeResync(c.lookAgain(err), c.ResyncPeriod), nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("%s of %s: %w", a.Type, req, err)
	case a.Type == reclaim.FenceTarget:
		// The cooldown entry names no pod, so that no watch requests the identity, and it is removed when it is due.
		return reconcile.Result{RequeueAfter: requeue.AfterConflict}, nil
	case a.At.IsZero():
		return reconcile.Result{}, nil
	}
	return requeue.BeforeResync(a.At.Sub(c.Clock.Now()), c.ResyncPeriod), nil
}

// reconcileSlots performs the next action for each slot of a workload.
func (c *Controller) reconcileSlots(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	states, err := c.Gatherer.Slots(ctx, c.cached(), req.NamespacedName)
	if err != nil {
		return requeue.WhenKnown(ctx, err)
	}
	actions := decideAll(states)
	for _, a := range actions {
		if a.Type.Destroys() || a.Type == reclaim.Allocate {
			if states, err = c.Gatherer.Slots(ctx, c.live(), req.NamespacedName); err != nil {
				return requeue.WhenKnown(ctx, err)
			}
			actions = decideAll(states)
			break
		}
	}
	after := c.ResyncPeriod
	var failed []error
	for i, a := range actions {
		switch err := c.performForSlot(ctx, req, states[i], a); {
		case errors.Is(err, requeue.ErrSuperseded), apierrors.IsConflict(err):
			klog.FromContext(ctx).V(3).Info("Action superseded", "action", a.Type, "rule", a.Rule, "pod", states[i].Holder, "err", err)
			after = min(after, requeue.AfterConflict)
		case errors.Is(err, errBusy):
			after = min(after, whileFinishing)
		case errors.Is(err, errUnproved):
			klog.FromContext(ctx).V(2).Info("Action waits", "action", a.Type, "pod", states[i].Holder, "err", err)
			after = min(after, c.lookAgain(err))
		case err != nil:
			failed = append(failed, fmt.Errorf("%s of the slot of %s, held by pod %s: %w", a.Type, req, states[i].Holder, err))
		}
		if !a.At.IsZero() {
			after = min(after, max(requeue.AfterConflict, a.At.Sub(c.Clock.Now())))
		}
	}
	if len(failed) > 0 || len(states) == 0 {
		return reconcile.Result{}, errors.Join(failed...)
	}
	return reconcile.Result{RequeueAfter: after}, nil
}

// requeue queues a request again.
func (c *Controller) requeue(req reconcile.Request) {
	if strings.Contains(req.Name, "/") {
		c.Slots.Add(req)
	} else {
		c.Identities.Add(req)
	}
}

func decideAll(states []reclaim.State) []reclaim.Action {
	actions := make([]reclaim.Action, len(states))
	for i, s := range states {
		actions[i] = reclaim.Decide(s)
	}
	return actions
}
