// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"fixedip.io/fixedip/ipam/controller/internal/source"
)

// deletePriority is the priority of an identity whose pod was just deleted: its address may be released from then on.
// Others wait at 0, among them up to a thousand finalizers of a workload that was deleted.
const deletePriority = 100

// deletedFirst is a handler whose requests for deleted objects come before all others.
type deletedFirst struct {
	handler.EventHandler
	of handler.MapFunc
}

// Delete queues the identity of a deleted pod.
func (h deletedFirst) Delete(ctx context.Context, e event.DeleteEvent, q source.Queue) {
	source.AddWithPriority(q, deletePriority, h.of(ctx, e.Object)...)
}
