// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package evict evicts pods that do not run as recorded: one pod of a workload at a time, a bounded number overall, and
// each pod less often the more often it did not help.
//
// It never deletes a pod: a PodDisruptionBudget is obeyed. Which restarts are in progress is read from the conditions of
// the FixedIPs, so that another replica keeps to the same bounds. It may not decide whether a pod is wrong.
package evict

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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/conformance"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/podutil"
)

const (
	// RestartingIndex finds the FixedIPs whose pods were evicted and do not run as recorded yet.
	RestartingIndex = "restarting"
	// RetryBlocked is the time until the next try after a refused eviction.
	RetryBlocked = 30 * time.Second
	// retryDeferred is the time until the next try if other restarts are in progress.
	retryDeferred = 5 * time.Second
	// restartTimeout is how long a restart counts as in progress: a pod that can't be placed again must not block the
	// others for ever.
	restartTimeout = 10 * time.Minute
	// requestTimeout bounds one eviction. The client retries by itself while the API server has not seen a new budget.
	requestTimeout = 20 * time.Second
	// maxBackoff is the longest time between two evictions for one FixedIP.
	maxBackoff = 10 * time.Minute
)

var (
	// ErrBlocked says that a PodDisruptionBudget does not allow the eviction now.
	ErrBlocked = errors.New("the eviction was refused")
	// ErrGone says that the pod is gone, or is another pod of the name.
	ErrGone = errors.New("the pod is gone")
)

// Workloads knows the workloads of pods. It returns nil for a workload that does not exist.
type Workloads func(owner identity.Owner, namespace string) (*identity.Workload, error)

// Evictor evicts pods within the bounds of this package.
type Evictor struct {
	Cached    client.Reader
	Live      client.Client
	Clock     clock.Clock
	Workloads Workloads
	// AtOnce is how many pods may be restarting at a time.
	AtOnce int
	// Pause is the time until the same pod may be evicted again; it doubles each time.
	Pause time.Duration

	// mu guards the maps. It is not held during a request.
	mu sync.Mutex
	// begun are restarts that the cached FixedIPs may not show yet. Key: the FixedIP, or the pod if there is none.
	begun map[types.NamespacedName]restart
	// backoffs are the pods that are not evicted again at once. Key: as of begun. They are lost with the process: the
	// first eviction after that comes sooner.
	backoffs map[types.NamespacedName]backoff
}

type restart struct {
	at time.Time
	// owner is the workload, named as in pool entries.
	owner string
}

type backoff struct {
	next  time.Time
	tries int
}

// Index is the index function of RestartingIndex.
func Index(obj client.Object) []string {
	c := meta.FindStatusCondition(obj.(*v1alpha1.FixedIP).Status.Conditions, v1alpha1.ConditionMismatch)
	if c == nil || c.Status != metav1.ConditionTrue || c.Reason != conformance.ReasonRestarting {
		return nil
	}
	return []string{"true"}
}

// Evict evicts a pod of a workload. key names its FixedIP, or the pod if it has none. later is how long to wait if it is
// not the pod's turn. Its error matches ErrBlocked if a PodDisruptionBudget does not allow the eviction, and ErrGone if
// the pod is gone.
func (e *Evictor) Evict(ctx context.Context, key types.NamespacedName, owner identity.Owner, pod *corev1.Pod) (later time.Duration, err error) {
	now := e.Clock.Now()
	if later, err := e.begin(ctx, key, owner.Resource(pod.Namespace), now); later > 0 || err != nil {
		return later, err
	}
	down, err := e.otherDown(ctx, owner, pod)
	if err == nil && down == "" {
		err = e.request(ctx, pod)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil || down != "" {
		delete(e.begun, key)
		if down != "" {
			metrics.Restarts.WithLabelValues("deferred").Inc()
			later = retryDeferred
		}
		if errors.Is(err, ErrBlocked) {
			metrics.Restarts.WithLabelValues("blocked").Inc()
			e.backoffs[key] = backoff{next: now.Add(RetryBlocked), tries: e.backoffs[key].tries}
		}
		return later, err
	}
	metrics.Restarts.WithLabelValues("evicted").Inc()
	tries := e.backoffs[key].tries
	e.backoffs[key] = backoff{next: now.Add(min(e.Pause<<min(tries, 10), maxBackoff)), tries: tries + 1}
	return 0, nil
}

// begin reserves a restart for a pod, if it is its turn.
func (e *Evictor) begin(ctx context.Context, key types.NamespacedName, resource string, now time.Time) (later time.Duration, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.begun == nil {
		e.begun, e.backoffs = map[types.NamespacedName]restart{}, map[types.NamespacedName]backoff{}
	}
	maps.DeleteFunc(e.backoffs, func(_ types.NamespacedName, b backoff) bool { return now.Sub(b.next) > maxBackoff })
	if left := e.backoffs[key].next.Sub(now); left > 0 {
		return left, nil
	}
	others, err := e.inProgress(ctx, now)
	if err != nil {
		return 0, err
	}
	delete(others, key)
	for _, o := range others {
		if len(others) >= e.AtOnce || o.owner == resource {
			metrics.Restarts.WithLabelValues("deferred").Inc()
			return retryDeferred, nil
		}
	}
	e.begun[key] = restart{at: now, owner: resource}
	return 0, nil
}

// inProgress returns the restarts that are not done. It requires mu, and reads the cache only.
func (e *Evictor) inProgress(ctx context.Context, now time.Time) (map[types.NamespacedName]restart, error) {
	var records v1alpha1.FixedIPList
	if err := e.Cached.List(ctx, &records, client.MatchingFields{RestartingIndex: "true"}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the FixedIPs whose pods are restarting: %w", err)
	}
	maps.DeleteFunc(e.begun, func(_ types.NamespacedName, r restart) bool { return now.Sub(r.at) >= restartTimeout })
	all := maps.Clone(e.begun)
	for i := range records.Items {
		r := &records.Items[i]
		c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionMismatch)
		if now.Sub(c.LastTransitionTime.Time) < restartTimeout {
			all[client.ObjectKeyFromObject(r)] = restart{at: c.LastTransitionTime.Time, owner: identity.OwnerOf(r).Resource(r.Namespace)}
		}
	}
	return all, nil
}

// Done ends a restart: the pod runs as recorded.
func (e *Evictor) Done(key types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.begun, key)
	delete(e.backoffs, key)
}

// otherDown returns another member of the workload that is down, at the API server; empty: there is none. A pod that is
// not ready may be evicted all the same, because the workload does not lose a member by that.
func (e *Evictor) otherDown(ctx context.Context, owner identity.Owner, pod *corev1.Pod) (string, error) {
	if !podutil.IsReady(pod) {
		return "", nil
	}
	var records v1alpha1.FixedIPList
	if err := e.Cached.List(ctx, &records, index.OfWorkload(owner.Resource(pod.Namespace)), client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("list the FixedIPs of %s %s/%s: %w", owner.Kind, pod.Namespace, owner.Name, err)
	}
	workload, err := e.Workloads(owner, pod.Namespace)
	if err != nil {
		return "", err
	}
	for i := range records.Items {
		r := &records.Items[i]
		name := r.Spec.PodName
		if name == "" || name == pod.Name || r.DeletionTimestamp != nil {
			continue
		}
		switch member, err := index.Get[corev1.Pod](ctx, e.Live, types.NamespacedName{Namespace: r.Namespace, Name: name}); {
		case err != nil:
			return "", err
		case member != nil && !podutil.IsReady(member):
			return name, nil
		case member == nil && !r.Spec.Slot && workload != nil && !workload.Excludes(name):
			// The workload is about to create it again.
			return name, nil
		}
	}
	return "", nil
}

func (e *Evictor) request(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := e.Live.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	})
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return fmt.Errorf("evict pod %s/%s: %w: %w", pod.Namespace, pod.Name, ErrGone, err)
	case apierrors.IsTooManyRequests(err), apierrors.IsInternalError(err):
		// A pod with two budgets is an internal error.
		return fmt.Errorf("%w: %s", ErrBlocked, reasonOf(err))
	}
	return fmt.Errorf("evict pod %s/%s: %w", pod.Namespace, pod.Name, err)
}

// reasonOf returns an error of the API server with its causes, which name the budget.
func reasonOf(err error) string {
	parts := []string{err.Error()}
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil {
		for _, c := range status.Status().Details.Causes {
			parts = append(parts, c.Message)
		}
	}
	return strings.Join(parts, " ")
}
