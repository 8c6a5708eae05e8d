// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// As many pods look for free slots as there are, each once; the next is told to have its own.
func TestSeekers(t *testing.T) {
	type step struct {
		uid   types.UID
		free  int
		seeks bool
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
		var s seekers
		for i, step := range c.steps {
			if got := s.seek("db/Deployment/web", step.uid, step.free); got != step.seeks {
				t.Errorf("%s: step %d: it seeks: %v", name, i, got)
			}
		}
		for _, uid := range c.leaves {
			s.leave(uid)
		}
		if got := s.others("db/Deployment/web", "nobody"); got != c.others {
			t.Errorf("%s: %d look for one, want %d", name, got, c.others)
		}
		if !s.seek("db/Deployment/shop", "a", 1) {
			t.Errorf("%s: the pod of another workload does not seek", name)
		}
	}
}
