// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

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
	"fixedip.io/fixedip/ipam/controller/internal/evict"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/requeue"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/conformance"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/workloads"
)

// Workloads knows workloads from their watches. It returns nil for one that does not exist.
type Workloads interface {
	Get(gk schema.GroupKind, namespace, name string) (*identity.Workload, error)
}

// Endpoints knows the pods that have no CiliumEndpoint.
type Endpoints interface {
	// Missing reports whether a pod has had none for longer than its agent needs, by the cache.
	Missing(pod *corev1.Pod) bool
	// Confirm reports the same by live objects. blocker is why the pod is not to be evicted for it; empty: nothing
	// prevents it.
	Confirm(ctx context.Context, pod *corev1.Pod) (missing bool, blocker string, err error)
}

// Dependencies are what both controllers of the package need.
type Dependencies struct {
	Config    Config
	Ledger    *ledger.Ledger
	Writer    *ciliumpool.Writer
	Cached    client.Reader
	Live      client.Client
	Kinds     identity.Kinds
	Adoption  identity.Adoption
	Failover  v1alpha1.Failover
	Workloads Workloads
	// Endpoints is nil if CiliumEndpoints are not kept.
	Endpoints Endpoints
	Events    events.EventRecorder
	Clock     clock.Clock
	Evictor   *evict.Evictor
	// Ready must report true before the first resync.
	Ready []toolscache.InformerSynced
}

// verifier is the controller verify. A request names a pod: of an identity, or the holder of a slot.
type verifier struct{ Dependencies }

// SetupVerify adds the controller verify to a manager. feed reports pods whose entries, FixedIPs or CiliumEndpoints have
// changed.
func SetupVerify(ctx context.Context, mgr manager.Manager, d Dependencies, feed *source.Feed, owners *workloads.Store) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.FixedIP{}, evict.RestartingIndex, evict.Index); err != nil {
		return fmt.Errorf("index FixedIPs by restart: %w", err)
	}
	r := &verifier{d}
	// A workload may have changed its policy.
	owners.AddHandler(func(before, after *identity.Workload) {
		if before == nil || after == nil || maps.Equal(before.Annotations, after.Annotations) {
			return
		}
		for _, owner := range r.Ledger.OwnersOf(after.Namespace, identity.Label(after.GroupKind), after.Name) {
			feed.Add(source.Request(owner)...)
		}
	})
	return builder.ControllerManagedBy(mgr).
		Named("verify").
		Watches(&v1alpha1.FixedIP{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, obj client.Object) []reconcile.Request {
			return source.Request(HolderOf(obj.(*v1alpha1.FixedIP)))
		}), builder.WithPredicates(source.BesideLedger)).
		WatchesRawSource(feed.Resynced(source.Resync{
			Clock: r.Clock, Period: source.ResyncPeriod,
			All:   func() []string { return source.Identities(r.Ledger) },
			Ready: r.Ready,
		})).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.ofPod), builder.WithPredicates(source.AfterStart)).
		WithOptions(source.Workers(4)).
		Complete(r)
}

// ofPod returns the request for a pod if anything is reserved for it.
func (r *verifier) ofPod(ctx context.Context, obj client.Object) []reconcile.Request {
	key := client.ObjectKeyFromObject(obj)
	if len(r.Ledger.Held(pool.OwnerKey(key.Namespace, key.Name))) == 0 {
		var record v1alpha1.FixedIP
		if err := r.Cached.Get(ctx, key, &record, client.UnsafeDisableDeepCopy); err != nil {
			return nil
		}
	}
	return []reconcile.Request{{NamespacedName: key}}
}

// Reconcile verifies one pod.
func (r *verifier) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	s, err := r.observe(ctx, r.Cached, req.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	a := conformance.Decide(s)
	if a.Type != conformance.None {
		if s, err = r.observe(ctx, r.Live, req.NamespacedName); err != nil {
			return reconcile.Result{}, err
		}
		a = conformance.Decide(s)
	}
	var later time.Duration
	switch a.Type {
	case conformance.None:
		if conformance.IsConsistent(s) {
			r.Evictor.Done(client.ObjectKeyFromObject(s.FixedIP))
		}
	case conformance.SetCondition:
		err = r.setCondition(ctx, s, a.Condition)
	case conformance.EvictPod:
		later, err = r.evict(ctx, s, a.Condition)
	}
	if errors.Is(err, evict.ErrGone) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		klog.FromContext(ctx).V(3).Info("Action superseded", "action", a.Type, "err", err)
		return reconcile.Result{RequeueAfter: requeue.AfterConflict}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("%s for pod %s: %w", a.Type, req, err)
	}
	if later == 0 && !a.At.IsZero() {
		later = max(time.Second, a.At.Sub(r.Clock.Now()))
	}
	return reconcile.Result{RequeueAfter: min(later, source.ResyncPeriod)}, nil
}

// observe gathers the state of a pod from the caches or the API server.
func (r *verifier) observe(ctx context.Context, from client.Reader, key types.NamespacedName) (s conformance.PodState, err error) {
	s = conformance.PodState{
		Held:  r.Ledger.Held(pool.OwnerKey(key.Namespace, key.Name)),
		Grace: conformance.GracePeriods{Address: r.Config.RestartAfter, Endpoint: r.Config.EndpointPatience},
		Now:   r.Clock.Now(),
	}
	slots, isSlot := r.slotsOf(s.Held, key.Namespace)
	names := []string{key.Name}
	if isSlot {
		names = slotNames(slots.Name, s.Held)
	}
	if s.FixedIP, err = readFirst(ctx, from, key.Namespace, names); err != nil || s.FixedIP == nil {
		return s, err
	}
	pod, err := index.Get[corev1.Pod](ctx, from, key)
	if err != nil || pod == nil || identity.OptsOut(pod.Annotations) || !reservedFor(s.FixedIP, pod, slots, isSlot) {
		return s, err
	}
	s.Pod, s.BarePod = pod, metav1.GetControllerOfNoCopy(pod) == nil
	workload, err := r.workload(identity.OwnerOf(s.FixedIP), pod.Namespace)
	if err != nil {
		return s, err
	}
	s.Policy = r.policy(pod, workload)
	if _, s.Ours = r.Adoption.Placed(pod, r.Kinds); s.Ours {
		if s.Returns, err = feasibleNodes(ctx, from, pod, s.Held); err != nil {
			return s, err
		}
	}
	if r.Endpoints != nil {
		if s.EndpointMissing = r.Endpoints.Missing(pod); s.EndpointMissing && from == client.Reader(r.Live) {
			s.EndpointMissing, s.EndpointBlocker, err = r.Endpoints.Confirm(ctx, pod)
		}
	}
	return s, err
}

// workload returns the workload of a pod; nil if it is a bare pod, or if its workload does not exist.
func (d *Dependencies) workload(owner identity.Owner, namespace string) (*identity.Workload, error) {
	if owner.IsPod() {
		return nil, nil
	}
	return d.Workloads.Get(owner.GroupKind(), namespace, owner.Name)
}

// policy returns what to do about a mismatch of a pod. workload may be nil.
func (d *Dependencies) policy(pod *corev1.Pod, workload *identity.Workload) identity.OnMismatch {
	var annotations map[string]string
	if workload != nil {
		annotations = workload.Annotations
	}
	policy, err := identity.MismatchPolicy(annotations, pod.Annotations, identity.OnMismatch(d.Config.OnMismatch))
	if err != nil {
		d.Events.Eventf(pod, nil, corev1.EventTypeWarning, "InvalidAnnotation", "ReadPolicy", "%v; a mismatch is only reported", err)
	}
	return policy
}

// setCondition writes the condition Mismatch and reports it in events.
func (r *verifier) setCondition(ctx context.Context, s conformance.PodState, c metav1.Condition) error {
	record := s.FixedIP.DeepCopy()
	conformance.SetMismatch(&record.Status, c, s.Pod)
	// Update carries the resourceVersion that was read.
	if err := r.Live.Status().Update(ctx, record); err != nil {
		return fmt.Errorf("write condition %s of FixedIP %s/%s: %w", c.Type, record.Namespace, record.Name, err)
	}
	klog.FromContext(ctx).Info("Mismatch reported", "reason", c.Reason, "message", c.Message)
	if c.Status == metav1.ConditionFalse {
		r.Evictor.Done(client.ObjectKeyFromObject(record))
		r.Events.Eventf(record, s.Pod, corev1.EventTypeNormal, c.Reason, "Verify", "%s", c.Message)
		return nil
	}
	if c.Reason != conformance.ReasonRestarting && c.Reason != conformance.ReasonRestartBlocked {
		metrics.Mismatches.WithLabelValues(c.Reason).Inc()
	}
	r.Events.Eventf(s.Pod, record, corev1.EventTypeWarning, c.Reason, "Verify", "%s", c.Message)
	r.Events.Eventf(record, s.Pod, corev1.EventTypeWarning, c.Reason, "Verify", "%s", c.Message)
	return nil
}

// evict evicts the pod and reports the result. The next holder of a slot has another name: what counts as restarted is
// the FixedIP.
func (r *verifier) evict(ctx context.Context, s conformance.PodState, evicted metav1.Condition) (later time.Duration, err error) {
	later, err = r.Evictor.Evict(ctx, client.ObjectKeyFromObject(s.FixedIP), identity.OwnerOf(s.FixedIP), s.Pod)
	switch {
	case errors.Is(err, evict.ErrBlocked):
		evicted.Reason = conformance.ReasonRestartBlocked
		evicted.Message += "; it can't be evicted now: " + err.Error()
		for _, have := range s.FixedIP.Status.Conditions {
			if have.Type == evicted.Type && have.Reason == evicted.Reason && have.Message == evicted.Message {
				return evict.RetryBlocked, nil
			}
		}
		return evict.RetryBlocked, r.setCondition(ctx, s, evicted)
	case err != nil || later > 0:
		return later, err
	}
	evicted.Message += "; it was evicted and starts again"
	return 0, r.setCondition(ctx, s, evicted)
}
