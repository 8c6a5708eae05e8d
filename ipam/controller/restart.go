// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

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
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/plan"
)

const (
	// restartingIndex finds the FixedIPs whose pods are restarting.
	restartingIndex = "restarting"
	// restartLasts is how long a restart counts as under way at most: a pod that can't be placed
	// again must not keep the others waiting for ever.
	restartLasts = 10 * time.Minute
	// blockedRetry is the time between two tries where the first was refused.
	blockedRetry = 30 * time.Second
	// evictionTimeout bounds one request. An API server that has not seen a new budget yet asks to
	// be tried again, which the client does by itself.
	evictionTimeout = 20 * time.Second
	// longestBackoff is the longest time between two restarts of one pod.
	longestBackoff = 10 * time.Minute
)

// errBlocked: a PodDisruptionBudget does not allow the eviction now.
var errBlocked = errors.New("the eviction was refused")

// restarter evicts pods, a bounded number at a time. What is under way is read from the conditions
// of the FixedIPs, so that another replica keeps to the same bound. It never deletes a pod: who
// says with a PodDisruptionBudget how many may go is obeyed.
type restarter struct {
	cached client.Reader
	live   client.Client
	clock  clock.Clock
	atOnce int
	// pause is the time to the first repetition.
	pause time.Duration

	// mu is held from the look at what is under way until the eviction is written down in begun.
	mu sync.Mutex
	// begun are the restarts of this process that the cache of FixedIPs may not show yet. Key: the
	// FixedIP. Value: when.
	begun map[types.NamespacedName]time.Time
	// paced are those whose pods are not tried at once again. Key: the FixedIP. Value: when they are,
	// and how many times they were restarted without being put right. Forgotten with the process:
	// the first try after that comes sooner.
	paced map[types.NamespacedName]pace
}

type pace struct {
	next  time.Time
	tries int
}

func newRestarter(cached client.Reader, live client.Client, c clock.Clock, cfg VerifyConfig) *restarter {
	return &restarter{
		cached: cached, live: live, clock: c, atOnce: cfg.Restarts, pause: cfg.RestartAfter,
		begun: map[types.NamespacedName]time.Time{}, paced: map[types.NamespacedName]pace{},
	}
}

// restarting is the index function of restartingIndex.
func restarting(obj client.Object) []string {
	c := meta.FindStatusCondition(obj.(*v1alpha1.FixedIP).Status.Conditions, v1alpha1.ConditionMismatch)
	if c == nil || c.Status != metav1.ConditionTrue || c.Reason != plan.ReasonRestarting {
		return nil
	}
	return []string{"true"}
}

// restart evicts the pod of a FixedIP. later is how long to wait where it is not its turn; errBlocked
// says that a budget does not allow it.
func (r *restarter) restart(ctx context.Context, key types.NamespacedName, pod *corev1.Pod) (later time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	// Of pods that are gone nobody says that they are done.
	maps.DeleteFunc(r.paced, func(_ types.NamespacedName, p pace) bool { return now.Sub(p.next) > longestBackoff })
	if left := r.paced[key].next.Sub(now); left > 0 {
		return left, nil
	}
	underWay, err := r.underWay(ctx, key, now)
	if err != nil {
		return 0, err
	}
	if underWay >= r.atOnce {
		metrics.Restart("deferred")
		return 5 * time.Second, nil
	}
	p := r.paced[key]
	switch err := r.evict(ctx, pod); {
	case errors.Is(err, errBlocked):
		metrics.Restart("blocked")
		r.paced[key] = pace{next: now.Add(blockedRetry), tries: p.tries}
		return 0, err
	case err != nil:
		return 0, err
	}
	metrics.Restart("evicted")
	r.begun[key] = now
	backoff := r.pause << min(p.tries, 10)
	r.paced[key] = pace{next: now.Add(min(backoff, longestBackoff)), tries: p.tries + 1}
	return 0, nil
}

// underWay counts the restarts of other pods that are not done.
func (r *restarter) underWay(ctx context.Context, key types.NamespacedName, now time.Time) (int, error) {
	var records v1alpha1.FixedIPList
	if err := r.cached.List(ctx, &records, client.MatchingFields{restartingIndex: "true"}, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("list the FixedIPs whose pods are restarting: %w", err)
	}
	others := map[types.NamespacedName]bool{}
	for i := range records.Items {
		c := meta.FindStatusCondition(records.Items[i].Status.Conditions, v1alpha1.ConditionMismatch)
		if now.Sub(c.LastTransitionTime.Time) < restartLasts {
			others[client.ObjectKeyFromObject(&records.Items[i])] = true
		}
	}
	for k, at := range r.begun {
		if now.Sub(at) >= restartLasts {
			delete(r.begun, k)
			continue
		}
		others[k] = true
	}
	delete(others, key)
	return len(others), nil
}

// done forgets a restart: the pod runs as it should.
func (r *restarter) done(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.begun, key)
	delete(r.paced, key)
}

func (r *restarter) evict(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, evictionTimeout)
	defer cancel()
	err := r.live.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	})
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return fmt.Errorf("evict pod %s/%s: %w: %w", pod.Namespace, pod.Name, errSuperseded, err)
	case apierrors.IsTooManyRequests(err), apierrors.IsInternalError(err):
		// A pod with two budgets is an internal error.
		return fmt.Errorf("%w: %s", errBlocked, reasonOf(err))
	}
	return fmt.Errorf("evict pod %s/%s: %w", pod.Namespace, pod.Name, err)
}

// reasonOf is an error of the API server with its causes, where the name of the budget is.
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
