// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// idleTimes remembers since when FixedIPs have no pod that is bound to a node. It serves the delay of reclaim.Gap alone:
// a replica that takes over counts from its own first look.
type idleTimes struct {
	mu sync.Mutex
	// since has a key for each FixedIP without a bound pod that was looked at. Key: namespace/name.
	since map[string]time.Time
}

// look returns since when a FixedIP is idle, or the zero time if it is not.
func (i *idleTimes) look(key string, exists bool, pod *corev1.Pod, now time.Time) time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !exists || pod != nil && pod.Spec.NodeName != "" {
		delete(i.since, key)
		return time.Time{}
	}
	if i.since == nil {
		i.since = map[string]time.Time{}
	}
	if _, ok := i.since[key]; !ok {
		i.since[key] = now
	}
	return i.since[key]
}

// forget removes a FixedIP.
func (i *idleTimes) forget(key string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.since, key)
}
