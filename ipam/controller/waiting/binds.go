// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/podutil"
)

// maxBinds is the maximum number of bound pods without an address whose times are measured.
const maxBinds = 10_000

// binds measures the time between two watch events of a pod: the event that shows its bind, and the event that shows an address
// in its status. It uses the clock of this process, and no timestamps of the API server. The zero value is empty and ready for
// use.
type binds struct {
	mu sync.Mutex
	// at contains the time at which the watch showed that a pod was bound. Key: the UID of the pod. It has at most maxBinds
	// elements; further pods are not measured.
	at map[types.UID]time.Time
}

// changed follows one pod. after is nil if the pod was deleted. took is the time since the bind if the pod has an address now
// and its bind was seen; measured is false otherwise.
func (b *binds) changed(before, after *corev1.Pod, now time.Time) (took time.Duration, measured bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if after == nil || before.UID != after.UID {
		delete(b.at, before.UID)
		return 0, false
	}
	if before.Spec.NodeName == "" && podutil.AwaitsIP(after) && len(b.at) < maxBinds {
		if b.at == nil {
			b.at = map[types.UID]time.Time{}
		}
		b.at[after.UID] = now
	}
	at, bound := b.at[after.UID]
	if !bound || podutil.AwaitsIP(after) {
		return 0, false
	}
	delete(b.at, after.UID)
	return now.Sub(at), podutil.Runs(after)
}

// bindHandler passes each update and deletion of a pod to binds, before EventHandler gets the event.
type bindHandler struct {
	handler.EventHandler
	c *Controller
}

// Update implements handler.EventHandler.
func (h bindHandler) Update(ctx context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[ctrl.Request]) {
	h.c.podChanged(e.ObjectOld.(*corev1.Pod), e.ObjectNew.(*corev1.Pod))
	h.EventHandler.Update(ctx, e, q)
}

// Delete implements handler.EventHandler.
func (h bindHandler) Delete(ctx context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[ctrl.Request]) {
	h.c.podChanged(e.Object.(*corev1.Pod), nil)
	h.EventHandler.Delete(ctx, e, q)
}

// podChanged records the time from the bind of a pod with a fixed address to an address in its status.
func (c *Controller) podChanged(before, after *corev1.Pod) {
	if took, measured := c.addressTime(before, after); measured {
		metrics.AddressSeen(took)
	}
}

// addressTime returns the result of binds.changed for a pod with a fixed address. measured is false for other pods.
func (c *Controller) addressTime(before, after *corev1.Pod) (took time.Duration, measured bool) {
	took, measured = c.binds.changed(before, after, c.Clock.Now())
	return took, measured && len(c.held(after)) > 0
}
