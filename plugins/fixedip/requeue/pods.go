// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package requeue

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

// podChanged wakes a pod whose annotations change, which the scheduling queue does not do, and the pods that wait for
// this pod to end. It forgets a pod that is deleted: after is nil, or another pod of the name.
func (q *Queue) podChanged(before, after *corev1.Pod) {
	if before == nil {
		return
	}
	deleted := after == nil || before.UID != after.UID
	switch {
	case deleted:
		q.PassOn(before.UID)
		q.Remove(before.UID)
	case !maps.Equal(before.Annotations, after.Annotations):
		q.mu.Lock()
		if w, ok := q.waiting[before.UID]; ok {
			q.wake(w, metrics.Annotation)
		}
		q.unlock()
	}
	if deleted || podutil.IsTerminal(after) && !podutil.IsTerminal(before) {
		q.Notify(Event{Keys: Keys(metrics.Owner, pool.OwnerKey(before.Namespace, before.Name))})
	}
}
