// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/handler"
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

// Agents asks Cilium agents: see barrier.Service.
type Agents interface {
	Ask(node, question string, notify func()) (evidence agentview.Evidence, answered time.Time)
	Forget(node, question string)
}

var _ Agents = &barrier.Service{}

// Controller reconciles FixedIPs.
type Controller struct {
	*gather.Gatherer
	Batches *release.Batches
	Writer  *ciliumpool.Writer
	// PoolsSeen reports whether the ledger has all pools that existed at the start, and Ready whether everything else
	// that existed then is known: before that nothing can be decided.
	PoolsSeen toolscache.InformerSynced
	Ready     []toolscache.InformerSynced
	// ResyncPeriod is how often an identity is looked at without an event.
	ResyncPeriod time.Duration
	// Agents answers what has to be proved.
	Agents Agents
	// IdentityFeed and SlotFeed have what the ledger reports: identities, and workloads with slots.
	IdentityFeed, SlotFeed *source.Feed

	// idle has since when FixedIPs have no pod that is bound to a node. It serves the delay of reclaim.Gap alone: a
	// replica that takes over counts from its own first look. Key: namespace/name. Value: a time.
	idle sync.Map
	// finishing counts the finalizers that are being removed.
	finishing atomic.Int32
}

// Setup adds the controller to a manager.
func (c *Controller) Setup(mgr manager.Manager) error {
	return builder.ControllerManagedBy(mgr).
		Named("fixedip").
		For(&v1alpha1.FixedIP{}, builder.WithPredicates(source.BesideLedger)).
		WatchesRawSource(c.IdentityFeed.Resynced(source.Resync{
			Clock: c.Clock, Period: c.ResyncPeriod, Ready: c.Ready,
			All: func() []string { return source.Identities(c.Ledger) },
		})).
		WatchesRawSource(c.SlotFeed.Source(c.PoolsSeen, c.allSlots)).
		Watches(&corev1.Pod{}, deletedFirst{handler.EnqueueRequestsFromMapFunc(c.ofPod), c.ofPod}, builder.WithPredicates(source.AfterStart)).
		WithOptions(source.Workers(32)).
		Complete(c)
}

// Reconcile performs the next action for one identity, or for each slot of a workload.
func (c *Controller) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	result, err := c.reconcile(ctx, req)
	if err == nil {
		metrics.Reconciled("fixedip", c.Clock.Now())
		// A request that came first once (see deletedFirst) is not urgent the next time.
		result.Priority = ptr.To(0)
	}
	return result, err
}

func (c *Controller) reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if c.Batches.InFlight(req.NamespacedName) {
		// The watches may show the pool without the address, and not yet that the FixedIP is deleted.
		return reconcile.Result{RequeueAfter: whileInFlight}, nil
	}
	states, actions, err := c.decide(ctx, c.FromCaches(), req)
	if err != nil {
		return requeue.WhenKnown(ctx, err)
	}
	for i, a := range actions {
		if node := release.Node(states[i], a); node != "" {
			c.Batches.Add(node, req.NamespacedName)
			return reconcile.Result{}, nil
		}
	}
	if slices.ContainsFunc(actions, func(a reclaim.Action) bool { return a.Type.Destroys() || a.Type == reclaim.Allocate }) {
		if states, actions, err = c.decide(ctx, c.FromAPIServer(), req); err != nil {
			return requeue.WhenKnown(ctx, err)
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
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: after}, nil
}

// isWorkload reports whether a request is for the slots of a workload.
func isWorkload(req reconcile.Request) bool { return strings.Contains(req.Name, "/") }

// decide returns the state and the next action of an identity, or of each slot of a workload.
func (c *Controller) decide(ctx context.Context, from gather.Reader, req reconcile.Request) (states []reclaim.State, actions []reclaim.Action, err error) {
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
func (c *Controller) identity(ctx context.Context, from gather.Reader, req reconcile.Request) ([]reclaim.State, error) {
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
		c.SlotFeed.Add(c.ofSlot(s.Record)...)
	}
	return nil, nil
}

// step performs an action, and returns after which time the next one is due without an event; the resync period if no
// such time is known.
func (c *Controller) step(ctx context.Context, req reconcile.Request, s reclaim.State, a reclaim.Action) (after time.Duration, err error) {
	log := klog.FromContext(ctx).WithValues("action", a.Type, "rule", a.Rule, "pod", s.Holder)
	switch err := c.perform(ctx, req, s, a); {
	case errors.Is(err, requeue.ErrSuperseded), apierrors.IsConflict(err):
		log.V(3).Info("Action superseded", "err", err)
		return requeue.AfterConflict, nil
	case errors.Is(err, errBusy):
		return whileFinishing, nil
	case errors.Is(err, errUnproved):
		log.V(2).Info("Action waits", "err", err)
		return c.lookAgain(err), nil
	case err != nil:
		return c.ResyncPeriod, fmt.Errorf("%s of %s, held by pod %s: %w", a.Type, req, s.Holder, err)
	case a.Type == reclaim.FenceTarget:
		// The cooldown entry names no pod, so that no watch requests the identity, and it is removed when it is due.
		return requeue.AfterConflict, nil
	case a.At.IsZero():
		return c.ResyncPeriod, nil
	}
	return max(requeue.AfterConflict, a.At.Sub(c.Clock.Now())), nil
}

// requeue queues a request again.
func (c *Controller) requeue(req reconcile.Request) {
	if isWorkload(req) {
		c.SlotFeed.Add(req)
	} else {
		c.IdentityFeed.Add(req)
	}
}
