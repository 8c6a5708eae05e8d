// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package requeue

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

// Deleted returns the object of a delete event. missed: the watch missed the event, and there may have been later versions.
func Deleted[T any](obj any) (deleted T, missed bool) {
	if tombstone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		return tombstone.Obj.(T), true
	}
	return obj.(T), false
}

// follow forgets pods that are deleted, and wakes pods whose annotations change, which the scheduling queue does
// not do, and those that wait for another pod to end.
func (q *Queue) follow(pods toolscache.SharedIndexInformer) error {
	_, err := pods.AddEventHandler(toolscache.ResourceEventHandlerFuncs{UpdateFunc: q.podUpdated, DeleteFunc: q.podDeleted})
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	return nil
}

func (q *Queue) podUpdated(before, after any) {
	was, pod := before.(*corev1.Pod), after.(*corev1.Pod)
	if !maps.Equal(was.Annotations, pod.Annotations) {
		q.mu.Lock()
		if w, ok := q.waiting[pod.UID]; ok {
			q.wake(w, metrics.Annotation)
		}
		q.unlock()
	}
	if was.UID != pod.UID || podutil.IsTerminal(pod) && !podutil.IsTerminal(was) {
		q.left(was)
	}
	if was.UID != pod.UID {
		q.Remove(was.UID)
	}
}

func (q *Queue) podDeleted(obj any) {
	pod, _ := Deleted[*corev1.Pod](obj)
	q.PassOn(pod.UID)
	q.Remove(pod.UID)
	q.left(pod)
}

// left wakes the pods that wait for a pod to end.
func (q *Queue) left(pod *corev1.Pod) {
	q.mu.Lock()
	defer q.unlock()
	q.wakeAll(key{ofOccupant, string(pod.UID)}, Event{Pod: pod.UID})
}
