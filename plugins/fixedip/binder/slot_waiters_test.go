// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestSlotWaiters checks that at most as many pods of a workload search as slots are free, and that each pod counts once.
func TestSlotWaiters(t *testing.T) {
	exists := func() bool { return true }
	type step struct {
		uid      types.UID
		free     int
		searches bool
	}
	for name, c := range map[string]struct {
		steps  []step
		leaves []types.UID
		others int
	}{
		"none is free":                       {steps: []step{{"a", 0, false}}},
		"one for one":                        {steps: []step{{"a", 1, true}, {"b", 1, false}}, others: 1},
		"the same again":                     {steps: []step{{"a", 1, true}, {"a", 1, true}}, others: 1},
		"one went, the other may":            {steps: []step{{"a", 1, true}}, leaves: []types.UID{"a"}, others: 0},
		"what was free is not any more":      {steps: []step{{"a", 2, true}, {"b", 2, true}, {"a", 1, false}}, others: 1},
		"of another workload is no business": {steps: []step{{"a", 2, true}, {"b", 2, true}, {"c", 2, false}}, others: 2},
	} {
		var s slotWaiters
		for i, step := range c.steps {
			if got := s.search("db/Deployment/web", step.uid, step.free, exists); got != step.searches {
				t.Errorf("%s: step %d: it searches: %v", name, i, got)
			}
		}
		for _, uid := range c.leaves {
			s.remove(uid)
		}
		if got := s.count("db/Deployment/web"); got != c.others {
			t.Errorf("%s: %d search, want %d", name, got, c.others)
		}
		if !s.search("db/Deployment/shop", "a", 1, exists) {
			t.Errorf("%s: the pod of another workload does not search", name)
		}
	}
}

// TestDeletedPodDoesNotSearch checks that a pod that was deleted during its own cycle does not search, so that the next pod
// of the workload gets the free slot. Finding S5.
func TestDeletedPodDoesNotSearch(t *testing.T) {
	var s slotWaiters
	if s.search("db/Deployment/web", "deleted", 1, func() bool { return false }) {
		t.Error("a deleted pod searches")
	}
	if !s.search("db/Deployment/web", "next", 1, func() bool { return true }) {
		t.Error("the next pod does not search")
	}
}
