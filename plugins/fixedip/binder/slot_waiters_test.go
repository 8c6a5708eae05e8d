// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestSlotWaiters checks that the number of searching pods of a workload is at most the number of free slots, and that each
// pod counts once.
func TestSlotWaiters(t *testing.T) {
	exists := func() bool { return true }
	type step struct {
		uid      types.UID
		free     int
		searches bool
	}
	for name, c := range map[string]struct {
		steps   []step
		removed []types.UID
		// count is the number of pods that search at the end.
		count int
	}{
		"no slot is free":          {steps: []step{{"a", 0, false}}},
		"more pods than slots":     {steps: []step{{"a", 1, true}, {"b", 1, false}}, count: 1},
		"the same pod twice":       {steps: []step{{"a", 1, true}, {"a", 1, true}}, count: 1},
		"the pod is removed":       {steps: []step{{"a", 1, true}}, removed: []types.UID{"a"}, count: 0},
		"a slot is no longer free": {steps: []step{{"a", 2, true}, {"b", 2, true}, {"a", 1, false}}, count: 1},
		"three pods and two slots": {steps: []step{{"a", 2, true}, {"b", 2, true}, {"c", 2, false}}, count: 2},
	} {
		var s slotWaiters
		for i, step := range c.steps {
			if got := s.search("db/Deployment/web", step.uid, step.free, exists); got != step.searches {
				t.Errorf("%s: step %d: search returned %v, want %v", name, i, got, step.searches)
			}
		}
		for _, uid := range c.removed {
			s.remove(uid)
		}
		if got := s.count("db/Deployment/web"); got != c.count {
			t.Errorf("%s: got %d searching pods, want %d", name, got, c.count)
		}
		if !s.search("db/Deployment/shop", "a", 1, exists) {
			t.Errorf("%s: search returned false for a pod of another workload with a free slot, want true", name)
		}
	}
}

// TestDeletedPodDoesNotSearch checks that a pod that was deleted during its own cycle does not search, so that the next pod
// of the workload gets the free slot. Finding S5.
func TestDeletedPodDoesNotSearch(t *testing.T) {
	var s slotWaiters
	if s.search("db/Deployment/web", "deleted", 1, func() bool { return false }) {
		t.Error("search returned true for a deleted pod, want false")
	}
	if !s.search("db/Deployment/web", "next", 1, func() bool { return true }) {
		t.Error("search returned false for the pod after a deleted pod, want true")
	}
}
