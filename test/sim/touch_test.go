// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// markUnreachable marks each node as not ready that has been cut off from the API server for more than
// nodeMonitorGrace, as the node lifecycle controller does. A node whose agent is not cut off stays ready, even if the
// agent sees writes later than nodeMonitorGrace.
func (w *world) markUnreachable() {
	for _, m := range w.machines {
		if node, exists := one[*corev1.Node](w.server, nodes, m.name); exists && !m.off && isReady(node) && m.cut && time.Since(m.lastContact) > nodeMonitorGrace {
			w.setReady(m.name, false)
		}
	}
}
