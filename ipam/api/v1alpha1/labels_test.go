// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"maps"
	"strings"
	"testing"
)

// TestLabelFromSpec checks the labels of a FixedIP, and that labels of users stay.
func TestLabelFromSpec(t *testing.T) {
	long := strings.Repeat("a", 64)
	for name, c := range map[string]struct {
		before     map[string]string
		node       string
		owner      OwnerReference
		wantLabels map[string]string
	}{
		"new": {
			node: "node-1", owner: OwnerReference{Kind: "StatefulSet", Name: "web"},
			wantLabels: map[string]string{LabelNode: "node-1", LabelWorkloadKind: "StatefulSet", LabelWorkload: "web"},
		},
		"moved, with a label of a user": {
			before: map[string]string{LabelNode: "node-1", "team": "a"}, node: "node-2", owner: OwnerReference{Kind: "Pod", Name: "db"},
			wantLabels: map[string]string{LabelNode: "node-2", LabelWorkloadKind: "Pod", LabelWorkload: "db", "team": "a"},
		},
		"no node any more, and a name that is too long": {
			before: map[string]string{LabelNode: "node-1", LabelWorkload: "web"}, owner: OwnerReference{Kind: "StatefulSet", Name: long},
			wantLabels: map[string]string{LabelWorkloadKind: "StatefulSet"},
		},
	} {
		f := &FixedIP{Spec: FixedIPSpec{NodeName: c.node, Owner: c.owner}}
		f.Labels = c.before
		if f.LabelFromSpec(); !maps.Equal(f.Labels, c.wantLabels) {
			t.Errorf("%s: got labels %v, want %v", name, f.Labels, c.wantLabels)
		}
	}
}
