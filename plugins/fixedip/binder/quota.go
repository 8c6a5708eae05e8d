// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"fixedip.io/fixedip/plugins/fixedip/metrics"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// fixedIPCount is the resource by which a ResourceQuota limits the FixedIPs of a namespace.
const fixedIPCount corev1.ResourceName = "count/fixedips.fixedip.io"

// findFirst plans a first placement. It refuses a pod without a FixedIP if the namespace's quota of FixedIPs is used up: an
// address that is claimed but has no FixedIP is lost with its node.
func (b *Binder) findFirst(p *Plan, pod *corev1.Pod) (*Plan, error) {
	quotas, err := b.Quotas.ResourceQuotas(p.id.Namespace).List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list the ResourceQuotas of namespace %s from the cache: %w", p.id.Namespace, err)
	}
	for _, q := range quotas {
		if full(q) && !p.reservation.hasFixedIP {
			hard, used := q.Status.Hard[fixedIPCount], q.Status.Used[fixedIPCount]
			return nil, refuse(p.wakeOn().And(metrics.Quota, p.id.Namespace),
				"gets no fixed address: ResourceQuota %s of namespace %s is used up (%s: %s of %s used); raise the quota, or delete FixedIPs that no pod needs",
				q.Name, p.id.Namespace, fixedIPCount, used.String(), hard.String())
		}
	}
	return b.findRequested(p, pod)
}

// full reports whether a quota allows no further FixedIP. A nil quota allows any number.
func full(q *corev1.ResourceQuota) bool {
	if q == nil {
		return false
	}
	hard, limited := q.Status.Hard[fixedIPCount]
	used := q.Status.Used[fixedIPCount]
	return limited && used.Cmp(hard) >= 0
}

// quotaChanged notifies the waiting pods of a namespace if its quota allowed no further FixedIP, and allows some now or was
// deleted.
func (b *Binder) quotaChanged(before, after *corev1.ResourceQuota) {
	if full(before) && !full(after) {
		b.Cache.Notify(requeue.Event{Keys: requeue.Keys(metrics.Quota, before.Namespace)})
	}
}
