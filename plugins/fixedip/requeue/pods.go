// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package requeue

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

// Deleted returns the object of a delete event.
func Deleted[T any](obj any) T {
	if tombstone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		return tombstone.Obj.(T)
	}
	return obj.(T)
}

// podUpdated wakes a pod whose annotations change, which the scheduling queue does not do, and the pods that wait for
// this pod to end.
func (q *Queue) podUpdated(before, after any) {
	was, pod := before.(*corev1.Pod), after.(*corev1.Pod)
	if was.UID != pod.UID {
		q.podDeleted(was)
		return
	}
	if !maps.Equal(was.Annotations, pod.Annotations) {
		q.mu.Lock()
		if w, ok := q.waiting[pod.UID]; ok {
			q.wake(w, metrics.Annotation)
		}
		q.unlock()
	}
	if podutil.IsTerminal(pod) && !podutil.IsTerminal(was) {
		q.ended(pod)
	}
}

// podDeleted forgets a pod, and wakes the pods that wait for it to end.
func (q *Queue) podDeleted(obj any) {
	pod := Deleted[*corev1.Pod](obj)
	q.PassOn(pod.UID)
	q.Remove(pod.UID)
	q.ended(pod)
}

func (q *Queue) ended(pod *corev1.Pod) {
	q.Notify(Event{Keys: Keys(metrics.Owner, pool.OwnerKey(pod.Namespace, pod.Name))})
}
