// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/conformance"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/podutil"
)

const (
	// restartingIndex finds the FixedIPs whose pods were evicted and do not run as recorded yet.
	restartingIndex = "restarting"
	// retryBlocked is the time until the next try after a refused eviction.
	retryBlocked = 30 * time.Second
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

// errBlocked says that a PodDisruptionBudget does not allow the eviction now.
var errBlocked = errors.New("the eviction was refused")

type restart struct {
	at time.Time
	// owner is the workload, named as in pool entries.
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

// evict evicts a pod of a workload. key names its FixedIP, or the pod if it has none. later is how long to wait if it is
// not the pod's turn. One pod of a workload restarts at a time, a bounded number overall, and each pod less often the more
// often it did not help. The error matches errBlocked if a PodDisruptionBudget does not allow the eviction, and
// gather.ErrSuperseded if the pod is gone, or is another pod of the name.
//
// It never deletes a pod: a PodDisruptionBudget is obeyed. Which restarts are in progress is read from the conditions of
// the FixedIPs, so that another replica keeps to the same bounds.
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

// begin reserves a restart for a pod, if it is its turn.
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

// inProgress returns the restarts that are not done. It requires mu, and reads the cache only.
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

// evictionDone ends a restart: the pod runs as recorded.
func (c *Controller) evictionDone(key client.ObjectKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.begun, key)
	delete(c.backoffs, key)
}

// otherDown reports whether another member of the workload is down, at the API server. A pod that is not ready may be
// evicted all the same, because the workload does not lose a member by that.
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
			// If there is none, the workload is about to create it again.
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
		// A pod with two budgets is an internal error. The causes name the budget.
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
