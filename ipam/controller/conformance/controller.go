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

// Config is the configuration for mismatches and for issues of CiliumEndpoints.
type Config struct {
	// OnMismatch is the mismatch policy of workloads that have none: Restart or Report.
	OnMismatch string
	// RestartAfter is the time for which a pod must run with other IPs than its reserved ones before it is evicted, if a
	// restart helps. A pod for which no IP is reserved is evicted when this time has passed since its start. RestartAfter is
	// also the first interval between two evictions for one FixedIP.
	RestartAfter time.Duration
	// Restarts is the maximum number of pods that are restarting at the same time.
	Restarts int
	// Endpoints is true if CiliumEndpoints are repaired (package ciliumendpoint).
	Endpoints bool
	// EndpointGracePeriod is the time for which the controller waits for an agent to resolve an issue of a CiliumEndpoint
	// before the controller acts (ciliumendpoint.GracePeriods.Agent). Before a pod without a CiliumEndpoint is evicted, the
	// same time has to pass again after the condition AsReserved has reported the pod.
	EndpointGracePeriod time.Duration
	// EndpointTermination is the time after which the controller removes the finalizers of a CiliumEndpoint that is being
	// deleted.
	EndpointTermination time.Duration
}

// DefaultConfig returns the default configuration.
func DefaultConfig() Config {
	return Config{
		OnMismatch:          string(identity.Restart),
		RestartAfter:        20 * time.Second,
		Restarts:            5,
		Endpoints:           true,
		EndpointGracePeriod: time.Minute,
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
	// Ready reports whether all pools, FixedIPs and StatefulSets that existed at the start are known; the resync begins then.
	Ready func() bool

	// mu guards begun and backoffs. It is not held during a request to the API server.
	mu sync.Mutex
	// begun are restarts that the cached FixedIPs may not show yet. Key: the FixedIP, or the pod if there is no
	// FixedIP.
	begun map[client.ObjectKey]restart
	// backoffs contains the earliest time of the next eviction for each key. Key: as in begun. The map is lost when the process
	// ends, so that the first eviction by the next process may be too early.
	backoffs map[client.ObjectKey]backoff
}

// Setup adds both controllers to a manager. verify receives the pods whose entries or FixedIPs have changed, and those whose
// CiliumEndpoints begin or cease to count as missing. adopt receives the pods whose entries have changed.
func (c *Controller) Setup(ctx context.Context, mgr ctrl.Manager, verify, adopt *source.Requests, owners *workloads.Store) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.FixedIP{}, restartingIndex, restarting); err != nil {
		return fmt.Errorf("index FixedIPs by reason Restarting of condition AsReserved: %w", err)
	}
	// The mismatch policy may be an annotation of the workload, so verify the pods of a workload whose annotations
	// change.
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
		Watches(&v1alpha1.FixedIP{}, handler.EnqueueRequestsFromMapFunc(ofHolder), builder.WithPredicates(source.NotReservations)).
		WatchesRawSource(verify.Resynced(source.Resync{Clock: c.Clock, Period: source.ResyncPeriod, All: identities, Ready: c.Ready})).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(c.ofReserved), builder.WithPredicates(source.AfterStart)).
		WithOptions(source.Workers(4)).
		Complete(reconcile.Func(c.verify))
	if err != nil {
		return fmt.Errorf("set up the controller that compares pods with their FixedIPs: %w", err)
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
		// A pod of our scheduler may be bound although its entry was released before: see lost. If the entry of a bound pod
		// is removed, the change of the pool queues the pod in adopt.
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(c.ifLost), builder.WithPredicates(source.AfterStart)).
		WatchesRawSource(adopt.Resynced(source.Resync{Clock: c.Clock, Period: source.ResyncPeriod, All: c.allLost, Ready: c.Ready})).
		// While the FixedIP of a pod is being deleted, adopt does nothing for the pod. When the deletion has ended, adopt can
		// restore the entry of a pod of our scheduler, and adopt the IPs of a pod of another scheduler.
		Watches(&v1alpha1.FixedIP{}, handler.EnqueueRequestsFromMapFunc(ofHolder), builder.WithPredicates(deleted)).
		WithOptions(source.Workers(4)).
		Complete(reconcile.Func(c.adopt))
	if err != nil {
		return fmt.Errorf("set up the controller adopt: %w", err)
	}
	return nil
}

// HolderOf returns the owner text, "namespace/name", of the pod that has the IPs of a FixedIP or had them last.
func HolderOf(record *v1alpha1.FixedIP) string {
	if record.Spec.AssignedTo == v1alpha1.Slot {
		return pool.OwnerKey(record.Namespace, record.Spec.PodName)
	}
	return pool.OwnerKey(record.Namespace, record.Name)
}

// ofReserved returns the request for a pod that has owned entries or a FixedIP with the name of the pod, and none for any other
// pod. The FixedIP of a slot has another name: if the holder of a slot has no entry, ofReserved returns nothing for it, and
// ifLost may find it.
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

// policy returns the mismatch policy of a pod. If an annotation is invalid, it records an event and returns Report. workload may
// be nil.
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
	// restartingIndex is the index of the FixedIPs whose pods were evicted and whose next pods do not run with the
	// reserved IPs yet.
	restartingIndex = "restarting"
	// retryBlocked is the time until the next try after a refused eviction.
	retryBlocked = 30 * time.Second
	// retryDeferred is the time until the next try if other restarts are in progress or another member of the workload is
	// down.
	retryDeferred = 5 * time.Second
	// restartTimeout is the time after which a restart no longer counts as in progress: a pod that cannot be placed again must
	// not block the others forever.
	restartTimeout = 10 * time.Minute
	// requestTimeout is the maximum time for one eviction. The client retries a request while the API server has not processed
	// a new PodDisruptionBudget.
	requestTimeout = 20 * time.Second
	// maxBackoff is the maximum interval between two evictions for one FixedIP.
	maxBackoff = 10 * time.Minute
)

// errBlocked means that the API server refuses the eviction now, usually because of a PodDisruptionBudget.
var errBlocked = errors.New("the API server refused the eviction")

// restart is a restart in progress: the pod was evicted, and the next pod does not run with its reserved IPs yet. If a pod that
// should have a slot had no FixedIP, nothing shows which pod is the next pod, and the restart counts until restartTimeout.
type restart struct {
	at time.Time
	// owner is the workload as in pool entries: "namespace/Kind/name".
	owner string
}

// backoff is the earliest time of the next eviction for a key, and the number of evictions so far.
type backoff struct {
	next  time.Time
	tries int
}

// restarting is the index function of restartingIndex.
func restarting(obj client.Object) []string {
	c := meta.FindStatusCondition(obj.(*v1alpha1.FixedIP).Status.Conditions, v1alpha1.ConditionAsReserved)
	if c == nil || c.Status != metav1.ConditionFalse || c.Reason != conformance.ReasonRestarting {
		return nil
	}
	return []string{"true"}
}

// evict evicts a pod of a workload. key names its FixedIP, or the pod if it has no FixedIP. If the limits do not
// allow the eviction now, later is the time until the next try. The limits are: one pod of a workload restarts at a
// time, and not while another member of the workload is down (otherDown); at most Config.Restarts pods restart at a
// time. The interval between two evictions for one key doubles each time, up to maxBackoff. The error matches
// errBlocked if the API server refuses the eviction now, and gather.ErrSuperseded if the pod was deleted or another pod
// has its name.
//
// evict never deletes a pod, because a deletion would ignore PodDisruptionBudgets. It reads the restarts in progress
// from the conditions of the FixedIPs, so that a new leader counts the restarts that the former leader began.
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

// begin records a restart in c.begun if the limits allow it. Otherwise it returns the time until the next try.
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

// inProgress returns the restarts in progress: those in c.begun and those that the cached FixedIPs show. Key: as in begun. It
// requires mu, and sends no request to the API server.
func (c *Controller) inProgress(ctx context.Context, now time.Time) (map[client.ObjectKey]restart, error) {
	var records v1alpha1.FixedIPList
	if err := c.Cached.List(ctx, &records, client.MatchingFields{restartingIndex: "true"}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the FixedIPs with reason Restarting from the cache: %w", err)
	}
	maps.DeleteFunc(c.begun, func(_ client.ObjectKey, r restart) bool { return now.Sub(r.at) >= restartTimeout })
	all := maps.Clone(c.begun)
	for i := range records.Items {
		r := &records.Items[i]
		at := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionAsReserved).LastTransitionTime.Time
		if now.Sub(at) < restartTimeout {
			all[client.ObjectKeyFromObject(r)] = restart{at: at, owner: identity.OwnerOf(r).Resource(r.Namespace)}
		}
	}
	return all, nil
}

// evictionDone removes the restart and the backoff of a key. It must be called when the pod runs with its reserved
// IPs.
func (c *Controller) evictionDone(key client.ObjectKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.begun, key)
	delete(c.backoffs, key)
}

// otherDown reports whether another member of the workload is not ready, or has ended or does not exist at the API server
// although the workload will create it again. It checks the members that have FixedIPs which are not being deleted. A pod
// that held a slot and has ended or no longer exists does not count. If the pod itself is not ready, otherDown returns false:
// the workload loses no ready member by the eviction.
func (c *Controller) otherDown(ctx context.Context, owner identity.Owner, pod *corev1.Pod) (bool, error) {
	if !podutil.IsReady(pod) {
		return false, nil
	}
	var records v1alpha1.FixedIPList
	if err := c.Cached.List(ctx, &records, index.OfWorkload(owner.Resource(pod.Namespace)), client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("list the FixedIPs of %s %s/%s from the cache: %w", owner.Kind, pod.Namespace, owner.Name, err)
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
		member, err := index.Get[corev1.Pod](ctx, c.Live, client.ObjectKey{Namespace: r.Namespace, Name: name})
		if err != nil {
			return false, err
		}
		if member != nil && podutil.IsTerminal(member) {
			// A pod that has ended, for example evicted by the kubelet, is no member any more, although it may exist for long.
			member = nil
		}
		switch {
		case member != nil && !podutil.IsReady(member), member == nil && r.Spec.AssignedTo != v1alpha1.Slot && workload != nil && !workload.Excludes(name):
			// If the member does not exist, the workload is about to create it again.
			return true, nil
		}
	}
	return false, nil
}

// request sends the eviction of a pod to the API server.
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
		// The API server responds with an internal error if two PodDisruptionBudgets select the pod. Otherwise the
		// causes name the budget.
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
