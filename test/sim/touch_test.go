// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// markUnreachable sets each running node that has been cut off from the API server for more than nodeMonitorGrace to not
// ready, as the node lifecycle controller does. It changes no other node: clusterActions has an action for nodes that are
// powered off, and a node that is not cut off stays ready, even if its agent sees writes more than nodeMonitorGrace late.
// markUnreachable also updates lastContact of each node that reaches the API server: much time may have passed in the step
// without a call of clusterActions.
func (w *world) markUnreachable() {
	for _, m := range w.machines {
		switch node, exists := one[*corev1.Node](w.server, nodes, m.name); {
		case m.reaches():
			m.lastContact = time.Now()
		case exists && !m.off && isReady(node) && time.Since(m.lastContact) > nodeMonitorGrace:
			w.setReady(m.name, false)
		}
	}
}
