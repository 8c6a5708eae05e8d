// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// loseTouch makes nodes not ready that have been cut off for more than unheard, as the node lifecycle controller does. An
// agent has no such limit: it may be behind for any time.
func (w *world) loseTouch() {
	for _, m := range w.machines {
		if node, exists := one[*corev1.Node](w.server, nodes, m.name); exists && !m.off && isReady(node) && m.cut && time.Since(m.heard) > unheard {
			w.setReady(m.name, false)
		}
	}
}
