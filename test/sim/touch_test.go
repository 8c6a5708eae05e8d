// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// markUnreachable sets nodes to not ready that have been cut off for more than nodeMonitorGrace, as the node lifecycle
// controller does. The lag of an agent that is not cut off has no such limit.
func (w *world) markUnreachable() {
	for _, m := range w.machines {
		if node, exists := one[*corev1.Node](w.server, nodes, m.name); exists && !m.off && isReady(node) && m.cut && time.Since(m.lastContact) > nodeMonitorGrace {
			w.setReady(m.name, false)
		}
	}
}
