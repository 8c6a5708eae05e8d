// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/requeue"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/request"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/workloads"
)

// verifyReconciler owns the condition Mismatch of FixedIPs, and the first owner of a pool entry that
// a pod has got in place of its claim. It restarts pods, within the bounds of its restarter. A
// request names a pod: that of an identity, or the holder of a slot.
//
// Whatever plan.Verify finds in the caches is found once more at the API server before anything is
// written.
type verifyReconciler struct {
	ledger    *ledger.Ledger
	writer    *ciliumpool.Writer
	cached    client.Reader
	live      client.Client
	kinds     identity.Kinds
	adoption  identity.Adoption
	workloads workloadStore
	events    events.EventRecorder
	clock     clock.Clock
	cfg       VerifyConfig
	restarter *restarter
}

func (p *parts) newVerifyReconciler() *verifyReconciler {
	return &verifyReconciler{
		ledger: p.ledger, writer: p.writer, cached: p.cached, live: p.live,
		kinds: p.kinds, adoption: p.cfg.Adoption, workloads: p.workloads, events: p.events, clock: p.clock, cfg: p.cfg.Verify,
		restarter: p.restarter,
	}
}

func (r *verifyReconciler) setup(mgr manager.Manager, feed *source.Feed, owners *workloads.Store, ready []toolscache.InformerSynced) error {
	err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.FixedIP{}, restartingIndex, restarting)
	if err != nil {
		return fmt.Errorf("index FixedIPs by restart: %w", err)
	}
	// A workload may have changed its mind about restarts.
	owners.Tell(func(before, after *identity.Workload) {
		if before == nil || after == nil || maps.Equal(before.Annotations, after.Annotations) {
			return
		}
		for _, owner := range r.ledger.OwnersOf(after.Namespace, identity.Label(after.GroupKind), after.Name) {
			feed.Add(source.Request(owner)...)
		}
	})
	b := builder.ControllerManagedBy(mgr).
		Named("verify").
		Watches(&v1alpha1.FixedIP{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, obj client.Object) []reconcile.Request {
			return source.Request(holderOf(obj.(*v1alpha1.FixedIP)))
		}), builder.WithPredicates(source.BesideLedger)).
		WatchesRawSource(feed.Resynced(source.Resync{
			Clock: r.clock, Period: source.ResyncPeriod,
			All:   func() []string { return source.Identities(r.ledger) },
			Ready: ready,
		})).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.kept), builder.WithPredicates(source.AfterStart))
	if r.cfg.Endpoints {
		b = b.Watches(&ciliumv2.CiliumEndpoint{}, handler.EnqueueRequestsFromMapFunc(r.kept), builder.WithPredicates(source.AfterStart))
	}
	return b.WithOptions(source.Workers(4)).Complete(r)
}

// kept asks for the identity of a pod, or of its CiliumEndpoint, if anything is kept for it.
func (r *verifyReconciler) kept(ctx context.Context, obj client.Object) []reconcile.Request {
	key := client.ObjectKeyFromObject(obj)
	if len(r.ledger.Held(pool.OwnerKey(key.Namespace, key.Name))) == 0 {
		var record v1alpha1.FixedIP
		if err := r.cached.Get(ctx, key, &record, client.UnsafeDisableDeepCopy); err != nil {
			return nil
		}
	}
	return []reconcile.Request{{NamespacedName: key}}
}

// Reconcile verifies one identity.
func (r *verifyReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	o, again, err := r.observe(ctx, r.cached, req.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	v := plan.Verify(o)
	if v.Step != plan.Pass {
		if o, again, err = r.observe(ctx, r.live, req.NamespacedName); err != nil {
			return reconcile.Result{}, err
		}
		v = plan.Verify(o)
	}
	var later time.Duration
	switch v.Step {
	case plan.Pass:
		if plan.AsReserved(o) {
			// Restarted or not, it takes no part in the budget any more.
			r.restarter.done(client.ObjectKeyFromObject(o.Record))
		}
	case plan.AdoptAddress:
		later, err = r.adopt(ctx, req.NamespacedName, o, v.Addrs)
	case plan.TellMismatch:
		err = r.tell(ctx, o, v.Condition)
	case plan.RestartPod:
		later, err = r.restart(ctx, o, v.Condition)
	case plan.TellPod:
		r.events.Eventf(o.Pod, nil, corev1.EventTypeWarning, v.Condition.Reason, "Verify", "%s", v.Condition.Message)
	}
	if errors.Is(err, errSuperseded) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		klog.FromContext(ctx).V(3).Info("Step superseded", "step", v.Step, "err", err)
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("%s pod %s: %w", v.Step, req, err)
	}
	if o.Pod == nil || (o.Record == nil && len(o.Held) == 0) {
		return reconcile.Result{}, nil
	}
	next := later
	for _, at := range []time.Time{v.At, again} {
		if after := max(time.Second, at.Sub(r.clock.Now())); !at.IsZero() && (next == 0 || after < next) {
			next = after
		}
	}
	if next == 0 {
		return reconcile.Result{}, nil
	}
	return requeue.BeforeResync(next, source.ResyncPeriod), nil
}

// observe gathers what is known of a pod from a reader: the caches, or the API server. again is when
// a pod that is young now will be old enough to be judged.
func (r *verifyReconciler) observe(ctx context.Context, from client.Reader, key types.NamespacedName) (o plan.Observed, again time.Time, err error) {
	o = plan.Observed{
		Held:     r.ledger.Held(pool.OwnerKey(key.Namespace, key.Name)),
		Endpoint: true,
		Patience: plan.Patience{Address: r.cfg.RestartAfter, Endpoint: r.cfg.EndpointPatience},
		Now:      r.clock.Now(),
	}
	slots, isSlot := r.slotsOf(o.Held)
	names := []string{key.Name}
	if isSlot {
		names = slotNames(slots.Name, o.Held)
	}
	if o.Record, err = readFirst(ctx, from, key.Namespace, names); err != nil || o.Record == nil && len(o.Held) == 0 {
		return o, again, err
	}
	var pod corev1.Pod
	switch err := from.Get(ctx, key, &pod); {
	case apierrors.IsNotFound(err):
		return o, again, nil
	case err != nil:
		return o, again, fmt.Errorf("read pod %s: %w", key, err)
	}
	owner := metav1.GetControllerOfNoCopy(&pod)
	if identity.OptsOut(pod.Annotations) {
		return o, again, nil
	}
	if owner == nil {
		if r.keptForItself(o, key) {
			o.Pod, o.Alone = &pod, true
			o.Endpoint, again, err = r.hasEndpoint(ctx, &pod)
		}
		return o, again, err
	}
	of := workloadKey{schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind(), owner.Name}
	if isSlot && of.GroupKind == identity.ReplicaSets {
		// The names of its pods are given once, so that the holder is who has the name.
		of = slots
	}
	if !r.keptFor(o, of) {
		// A pod that only has the name: what is kept is not kept for it.
		return o, again, nil
	}
	o.Pod = &pod
	var annotations map[string]string
	switch workload, err := r.workloads.Get(of.GroupKind, key.Namespace, of.Name); {
	case err != nil:
		return o, again, err
	case workload != nil:
		annotations = workload.Annotations
	}
	o.Asked = request.Asks(pod.Annotations, annotations)
	if o.Policy, err = identity.MismatchPolicy(annotations, pod.Annotations, identity.OnMismatch(r.cfg.OnMismatch)); err != nil {
		r.events.Eventf(&pod, nil, corev1.EventTypeWarning, "InvalidAnnotation", "ReadPolicy", "%v; a mismatch is only reported", err)
	}
	if _, o.Ours = r.adoption.Placed(&pod, r.kinds); o.Ours {
		if o.Returns, err = r.returns(ctx, from, &pod, o.Held); err != nil {
			return o, again, err
		}
	}
	o.Endpoint, again, err = r.hasEndpoint(ctx, &pod)
	return o, again, err
}

// hasEndpoint tells whether a pod has the CiliumEndpoint that is owed to it: a young pod is owed
// none, nor is one on a node whose agent has made none for others.
func (r *verifyReconciler) hasEndpoint(ctx context.Context, pod *corev1.Pod) (has bool, again time.Time, err error) {
	if !r.cfg.Endpoints || !podutil.Runs(pod) {
		return true, again, nil
	}
	var e ciliumv2.CiliumEndpoint
	switch err := r.cached.Get(ctx, client.ObjectKeyFromObject(pod), &e, client.UnsafeDisableDeepCopy); {
	case err == nil:
		return true, again, nil
	case !apierrors.IsNotFound(err):
		return true, again, fmt.Errorf("read CiliumEndpoint %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if old := youth(pod, r.cfg.EndpointPatience); r.clock.Now().Before(old) {
		return true, old, nil
	}
	made, err := endpointsOn(ctx, r.cached, pod.Status.HostIP)
	return !made, again, err
}

// tell writes the condition Mismatch and says the same in events.
func (r *verifyReconciler) tell(ctx context.Context, o plan.Observed, c metav1.Condition) error {
	record := o.Record.DeepCopy()
	record.Status.Conditions = plan.WithCondition(record.Status.Conditions, c)
	// Update carries the resourceVersion that was read.
	if err := r.live.Status().Update(ctx, record); err != nil {
		return fmt.Errorf("write condition %s of FixedIP %s/%s: %w", c.Type, record.Namespace, record.Name, err)
	}
	klog.FromContext(ctx).Info("Verified", "reason", c.Reason, "message", c.Message)
	if c.Status == metav1.ConditionFalse {
		r.restarter.done(client.ObjectKeyFromObject(record))
		r.events.Eventf(record, o.Pod, corev1.EventTypeNormal, c.Reason, "Verify", "%s", c.Message)
		return nil
	}
	if c.Reason != plan.ReasonRestarting && c.Reason != plan.ReasonRestartBlocked {
		metrics.Mismatch(c.Reason)
	}
	r.events.Eventf(o.Pod, record, corev1.EventTypeWarning, c.Reason, "Verify", "%s", c.Message)
	r.events.Eventf(record, o.Pod, corev1.EventTypeWarning, c.Reason, "Verify", "%s", c.Message)
	return nil
}

// restart evicts the pod and tells how that went. The next holder of a slot has another name: it is the
// record that was restarted so many times.
func (r *verifyReconciler) restart(ctx context.Context, o plan.Observed, evicted metav1.Condition) (later time.Duration, err error) {
	later, err = r.restarter.restart(ctx, client.ObjectKeyFromObject(o.Record), o.Pod)
	switch {
	case errors.Is(err, errBlocked):
		blocked := evicted
		blocked.Reason = plan.ReasonRestartBlocked
		blocked.Message += "; it can't be restarted now: " + err.Error()
		return blockedRetry, r.tellOnce(ctx, o, blocked)
	case err != nil || later > 0:
		return later, err
	}
	evicted.Message += "; it was evicted to start again"
	return 0, r.tell(ctx, o, evicted)
}

func (r *verifyReconciler) tellOnce(ctx context.Context, o plan.Observed, c metav1.Condition) error {
	for _, have := range o.Record.Status.Conditions {
		if have.Type == c.Type && have.Reason == c.Reason && have.Message == c.Message {
			return nil
		}
	}
	return r.tell(ctx, o, c)
}
