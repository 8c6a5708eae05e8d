// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"fixedip.io/fixedip/test/bench/world"
)

// TestReleased checks the figures of a release of three pods on two nodes: the second pod of node 1 ends after the entry of the
// first one was cleared.
func TestReleased(t *testing.T) {
	at := func(seconds int) time.Time { return time.Unix(int64(seconds), 0) }
	s := step{Writes: map[string]int{"PATCH ciliumnodes": 3, "PATCH ciliumnodes/status": 5, "PUT fixedips": 7}}
	s.released([]world.Place{{Node: 1}, {Node: 1}, {Node: 2}}, []time.Time{at(1), at(10), at(3)}, []time.Time{at(7), at(12), at(7)})
	s.countPoolWrites()
	for what, v := range map[string]struct{ got, want float64 }{
		"p50 after the end of the pod":                {s.P50, 4},
		"p99 after the end of the pod":                {s.P99, 6},
		"p50 after the end of the last pod":           {s.AfterLastP50, 2},
		"p99 after the end of the last pod":           {s.AfterLastP99, 4},
		"writes of CiliumNodes for each of the nodes": {s.WritesPerNode, 1.5},
	} {
		if v.got != v.want {
			t.Errorf("%s: got %v, want %v", what, v.got, v.want)
		}
	}
}
