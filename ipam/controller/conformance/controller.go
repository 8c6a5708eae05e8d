// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/ciliumendpoint"
	"fixedip.io/fixedip/ipam/controller/internal/allocate"
	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/conformance"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/workloads"
)

// Config configures what is done about mismatches and about issues of CiliumEndpoints.
type Config struct {
	// OnMismatch is the mismatch policy of workloads that have none: Restart or Report.
	OnMismatch string
	// RestartAfter is how long a pod must run with other IPs than are reserved for it before it is evicted, if a restart
	// helps. It is also the first interval between two evictions for one FixedIP.
	RestartAfter time.Duration
	// Restarts is how many pods may be restarting at a time.
	Restarts int
	// Endpoints is true if CiliumEndpoints are repaired (package ciliumendpoint).
	Endpoints bool
	// EndpointPatience is how long agents have to resolve an issue of a CiliumEndpoint themselves.
	EndpointPatience time.Duration
	// EndpointTermination is how long finalizers may keep a CiliumEndpoint that is being deleted.
	EndpointTermination time.Duration
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		OnMismatch:          string(identity.Restart),
		RestartAfter:        20 * time.Second,
		Restarts:            5,
		Endpoints:           true,
		EndpointPatience:    time.Minute,
		EndpointTermination: 30 * time.Minute,
	}
}

// Controller runs the controllers verify and adopt. A request names a pod; for verify it is the pod of an identity, or
// the holder of a slot.
type Controller struct {
	*gather.Gatherer
	Config    Config
	Writer    *ciliumpool.Writer
	Allocator *allocate.Allocator
	Adoption  identity.Adoption
	// Endpoints is nil if CiliumEndpoints are not repaired.
	Endpoints *ciliumendpoint.Keeper
	// Ready must report true before the first resync.
	Ready func() bool

	// mu guards begun and backoffs. It is not held during a request to the API server.
	mu sync.Mutex
	// begun are restarts that the cached FixedIPs may not show yet. Key: the FixedIP, or the pod if there is none.
	begun map[client.ObjectKey]restart
	// backoffs limit how often a pod is evicted. Key: as of begun. They are lost when the process ends: the first eviction
	// after that may come sooner.
	backoffs map[client.ObjectKey]backoff
}

// Setup adds both controllers to a manager. verify passes on the pods whose entries, FixedIPs or CiliumEndpoints have
// changed, and adopt those whose entries have.
func (c *Controller) Setup(ctx context.Context, mgr ctrl.Manager, verify, adopt *source.Requests, owners *workloads.Store) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.FixedIP{}, restartingIndex, restarting); err != nil {
		return fmt.Errorf("index FixedIPs by restart: %w", err)
	}
	// The mismatch policy is an annotation of the workload.
	owners.AddHandler(func(before, after *identity.Workload) {
		if before == nil || after == nil || maps.Equal(before.Annotations, after.Annotations) {
			return
		}
		verify.Add(source.ForOwner(c.Ledger.OwnersOf(after.Namespace, identity.Label(after.GroupKind), after.Name)...)...)
	})
	ofHolder := func(_ context.Context, obj client.Object) []ctrl.Request {
		return source.ForOwner(HolderOf(obj.(*v1alpha1.FixedIP)))
	}
	identities := func() []string { return source.Identities(c.Ledger) }
	err := ctrl.NewControllerManagedBy(mgr).
		Named("verify").
		Watches(&v1alpha1.FixedIP{}, handler.EnqueueRequestsFromMapFunc(ofHolder), builder.WithPredicates(source.BesideLedger)).
		WatchesRawSource(verify.Resynced(source.Resync{Clock: c.Clock, Period: source.ResyncPeriod, All: identities, Ready: c.Ready})).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(c.ofReserved), builder.WithPredicates(source.AfterStart)).
		WithOptions(source.Workers(4)).
		Complete(reconcile.Func(c.verify))
	if err != nil {
		return fmt.Errorf("set up the conformance controller: %w", err)
	}
	adoptable := predicate.NewPredicateFuncs(func(obj client.Object) bool {
		_, wanted, err := c.Adoption.Wants(obj.(*corev1.Pod), c.Kinds)
		return err != nil || wanted && len(conformance.AdoptableIPs(obj.(*corev1.Pod), c.Adoption.IPv4Only)) > 0
	})
	deleted := predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(event.UpdateEvent) bool { return false },
	}
	err = ctrl.NewControllerManagedBy(mgr).
		Named("adopt").
		For(&corev1.Pod{}, builder.WithPredicates(adoptable)).
		// Events of pods are not enough: pool changes (adopt) and deletions of FixedIPs can also show that a pod of our
		// scheduler has lost its entry.
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(c.ifLost), builder.WithPredicates(source.AfterStart)).
		WatchesRawSource(adopt.Resynced(source.Resync{Clock: c.Clock, Period: source.ResyncPeriod, All: c.allLost, Ready: c.Ready})).
		Watches(&v1alpha1.FixedIP{}, handler.EnqueueRequestsFromMapFunc(ofHolder), builder.WithPredicates(deleted)).
		WithOptions(source.Workers(4)).
		Complete(reconcile.Func(c.adopt))
	if err != nil {
		return fmt.Errorf("set up the adoption controller: %w", err)
	}
	return nil
}

// HolderOf returns the owner text of the pod that has the IPs of a FixedIP or had them last: "namespace/name".
func HolderOf(record *v1alpha1.FixedIP) string {
	if record.Spec.Slot {
		return pool.OwnerKey(record.Namespace, record.Spec.PodName)
	}
	return pool.OwnerKey(record.Namespace, record.Name)
}

// ofReserved returns the request for a pod that has owned entries or a FixedIP.
func (c *Controller) ofReserved(ctx context.Context, obj client.Object) []ctrl.Request {
	key := client.ObjectKeyFromObject(obj)
	if len(c.Ledger.Held(key.String())) == 0 && c.Cached.Get(ctx, key, &v1alpha1.FixedIP{}, client.UnsafeDisableDeepCopy) != nil {
		return nil
	}
	return []ctrl.Request{{NamespacedName: key}}
}

// workload returns the workload of a pod; nil if it is a bare pod, or if its workload does not exist.
func (c *Controller) workload(owner identity.Owner, namespace string) (*identity.Workload, error) {
	if owner.IsPod() {
		return nil, nil
	}
	return c.Workloads.Get(owner.GroupKind(), namespace, owner.Name)
}

// policy returns the mismatch policy of a pod: Report if an annotation is invalid, which it reports in an event. workload
// may be nil.
func (c *Controller) policy(pod *corev1.Pod, workload *identity.Workload) identity.OnMismatch {
	var annotations map[string]string
	if workload != nil {
		annotations = workload.Annotations
	}
	policy, err := identity.MismatchPolicy(annotations, pod.Annotations, identity.OnMismatch(c.Config.OnMismatch))
	if err != nil {
		c.Events.Eventf(pod, nil, corev1.EventTypeWarning, "InvalidAnnotation", "ReadPolicy", "%v; a mismatch is only reported", err)
	}
	return policy
}

// superseded reports whether a step failed because the state has changed since the decision.
func superseded(err error) bool {
	return errors.Is(err, gather.ErrSuperseded) || errors.Is(err, ciliumpool.ErrGone) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

const (
	// restartingIndex is the index of the FixedIPs whose pods were evicted and do not run as recorded yet.
	restartingIndex = "restarting"
	// retryBlocked is the time until the next try after a refused eviction.
	retryBlocked = 30 * time.Second
	// retryDeferred is the time until the next try if other restarts are in progress.
	retryDeferred = 5 * time.Second
	// restartTimeout is how long a restart counts as in progress: a pod that can't be placed again must not block the
	// others for ever.
	restartTimeout = 10 * time.Minute
	// requestTimeout bounds one eviction. The client retries a request while the API server has not processed a new
	// PodDisruptionBudget.
	requestTimeout = 20 * time.Second
	// maxBackoff is the longest time between two evictions for one FixedIP.
	maxBackoff = 10 * time.Minute
)

// errBlocked means that a PodDisruptionBudget does not allow the eviction now.
var errBlocked = errors.New("the API server refused the eviction")

type restart struct {
	at time.Time
	// owner is the workload as in pool entries: "namespace/Kind/name".
	owner string
}

type backoff struct {
	next  time.Time
	tries int
}

// restarting is the index function of restartingIndex.
func restarting(obj client.Object) []string {
	c := meta.FindStatusCondition(obj.(*v1alpha1.FixedIP).Status.Conditions, v1alpha1.ConditionMismatch)
	if c == nil || c.Status != metav1.ConditionTrue || c.Reason != conformance.ReasonRestarting {
		return nil
	}
	return []string{"true"}
}

// evict evicts a pod of a workload. key names its FixedIP, or the pod if it has none. If the limits do not allow the
// eviction now, later is how long to wait: one pod of a workload restarts at a time, Config.Restarts pods restart at a time
// overall, and the interval between two evictions for one key doubles each time. The error matches errBlocked if a
// PodDisruptionBudget does not allow the eviction, and gather.ErrSuperseded if the pod is gone or another pod has its name.
//
// It never deletes a pod, because a deletion would ignore PodDisruptionBudgets. The restarts in progress are read from the
// conditions of the FixedIPs, so that another replica keeps to the same limits.
func (c *Controller) evict(ctx context.Context, key client.ObjectKey, owner identity.Owner, pod *corev1.Pod) (later time.Duration, err error) {
	now := c.Clock.Now()
	if later, err := c.begin(ctx, key, owner.Resource(pod.Namespace), now); later > 0 || err != nil {
		return later, err
	}
	down, err := c.otherDown(ctx, owner, pod)
	if err == nil && !down {
		err = c.request(ctx, pod)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.backoffs[key]
	switch {
	case down:
		metrics.Restarts.WithLabelValues("deferred").Inc()
		later = retryDeferred
	case errors.Is(err, errBlocked):
		metrics.Restarts.WithLabelValues("blocked").Inc()
		c.backoffs[key] = backoff{next: now.Add(retryBlocked), tries: b.tries}
	case err == nil:
		metrics.Restarts.WithLabelValues("evicted").Inc()
		c.backoffs[key] = backoff{next: now.Add(min(c.Config.RestartAfter<<min(b.tries, 10), maxBackoff)), tries: b.tries + 1}
		return 0, nil
	}
	delete(c.begun, key)
	return later, err
}

// begin records a restart as begun if the limits allow it; otherwise it returns how long to wait.
func (c *Controller) begin(ctx context.Context, key client.ObjectKey, resource string, now time.Time) (later time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.begun == nil {
		c.begun, c.backoffs = map[client.ObjectKey]restart{}, map[client.ObjectKey]backoff{}
	}
	maps.DeleteFunc(c.backoffs, func(_ client.ObjectKey, b backoff) bool { return now.Sub(b.next) > maxBackoff })
	if left := c.backoffs[key].next.Sub(now); left > 0 {
		return left, nil
	}
	others, err := c.inProgress(ctx, now)
	if err != nil {
		return 0, err
	}
	delete(others, key)
	for _, o := range others {
		if len(others) >= c.Config.Restarts || o.owner == resource {
			metrics.Restarts.WithLabelValues("deferred").Inc()
			return retryDeferred, nil
		}
	}
	c.begun[key] = restart{at: now, owner: resource}
	return 0, nil
}

// inProgress returns the restarts that are not done. Key: as of begun. It requires mu, and reads the cache only.
func (c *Controller) inProgress(ctx context.Context, now time.Time) (map[client.ObjectKey]restart, error) {
	var records v1alpha1.FixedIPList
	if err := c.Cached.List(ctx, &records, client.MatchingFields{restartingIndex: "true"}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the FixedIPs whose pods are restarting: %w", err)
	}
	maps.DeleteFunc(c.begun, func(_ client.ObjectKey, r restart) bool { return now.Sub(r.at) >= restartTimeout })
	all := maps.Clone(c.begun)
	for i := range records.Items {
		r := &records.Items[i]
		at := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionMismatch).LastTransitionTime.Time
		if now.Sub(at) < restartTimeout {
			all[client.ObjectKeyFromObject(r)] = restart{at: at, owner: identity.OwnerOf(r).Resource(r.Namespace)}
		}
	}
	return all, nil
}

// evictionDone ends the restart and the backoff of a key: the pod runs as recorded.
func (c *Controller) evictionDone(key client.ObjectKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.begun, key)
	delete(c.backoffs, key)
}

// otherDown reports whether the API server shows that another member of the workload is not ready or does not exist. For a
// pod that is not ready it returns false: the workload loses no ready member by the eviction.
func (c *Controller) otherDown(ctx context.Context, owner identity.Owner, pod *corev1.Pod) (bool, error) {
	if !podutil.IsReady(pod) {
		return false, nil
	}
	var records v1alpha1.FixedIPList
	if err := c.Cached.List(ctx, &records, index.OfWorkload(owner.Resource(pod.Namespace)), client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("list the FixedIPs of %s %s/%s: %w", owner.Kind, pod.Namespace, owner.Name, err)
	}
	workload, err := c.workload(owner, pod.Namespace)
	if err != nil {
		return false, err
	}
	for i := range records.Items {
		r := &records.Items[i]
		name := r.Spec.PodName
		if name == "" || name == pod.Name || r.DeletionTimestamp != nil {
			continue
		}
		switch member, err := index.Get[corev1.Pod](ctx, c.Live, client.ObjectKey{Namespace: r.Namespace, Name: name}); {
		case err != nil:
			return false, err
		case member != nil && !podutil.IsReady(member), member == nil && !r.Spec.Slot && workload != nil && !workload.Excludes(name):
			// If the member does not exist, the workload is about to create it again.
			return true, nil
		}
	}
	return false, nil
}

func (c *Controller) request(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := c.Live.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	})
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return fmt.Errorf("evict pod %s/%s: %w: %w", pod.Namespace, pod.Name, gather.ErrSuperseded, err)
	case apierrors.IsTooManyRequests(err), apierrors.IsInternalError(err):
		// The API server answers with an internal error if a pod has two budgets. The causes name the budget.
		reasons := []string{err.Error()}
		var status apierrors.APIStatus
		if errors.As(err, &status) && status.Status().Details != nil {
			for _, c := range status.Status().Details.Causes {
				reasons = append(reasons, c.Message)
			}
		}
		return fmt.Errorf("%w: %s", errBlocked, strings.Join(reasons, " "))
	}
	return fmt.Errorf("evict pod %s/%s: %w", pod.Namespace, pod.Name, err)
}
