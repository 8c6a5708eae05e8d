// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// TestWritesPerNode checks that WritesPerNode is the number of writes of CiliumNodes, without writes of their status, divided
// by the number of nodes that the step changes.
func TestWritesPerNode(t *testing.T) {
	writes := map[string]int{"PATCH ciliumnodes": 3, "PUT ciliumnodes": 1, "PATCH ciliumnodes/status": 5, "PUT fixedips": 7}
	for name, c := range map[string]struct {
		nodes int
		want  float64
	}{
		"two nodes":                       {2, 2},
		"a step that names no nodes":      {0, 0},
		"more nodes than were written to": {8, 0.5},
	} {
		s := step{Writes: writes, nodes: c.nodes}
		s.countPoolWrites()
		if s.WritesPerNode != c.want {
			t.Errorf("%s: got %v writes for each node, want %v", name, s.WritesPerNode, c.want)
		}
	}
}
