// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"
)

// limit returns the maximum number of states of a search: FIXEDIP_STATES or, if that is not set, a number that a
// search visits in a time that is acceptable for make test.
func limit(t *testing.T) int {
	text, ok := os.LookupEnv("FIXEDIP_STATES")
	if !ok {
		return 600_000
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("FIXEDIP_STATES: got %q, want a number", text)
	}
	return n
}

func history(steps []step) string {
	text := ""
	for i, s := range steps {
		text += fmt.Sprintf("%3d %s\n", i+1, s)
	}
	return text
}

// scopes contains the scopes of TestExplore. Key: the name. A search of a scope with completes must visit all states. The
// search of any other scope may stop at the limit.
var scopes = map[string]scope{
	"1 two schedulers, two pods": {
		completes: true, wholeClaims: true, replicas: 2, pods: [nameCount]int8{1, 1}, stale: 1, crashes: 1, lasting: true,
	},
	"2 a pod is replaced by the next pod with its name": {
		wholeClaims: true, replicas: 1, pods: [nameCount]int8{2, 0}, nodeOwned: []int8{1}, stale: 1, crashes: 2, removals: 1,
	},
	"3 an address is released and claimed for another name": {
		completes: true, wholeClaims: true, replicas: 1, pods: [nameCount]int8{1, 1}, nodeOwned: []int8{1, 2}, stale: 1, crashes: 1, removals: 1,
	},
	"4 a slot is taken over": {
		completes: true, wholeClaims: true, replicas: 1, pods: [nameCount]int8{1, 1}, nodeOwned: []int8{1, 2}, slots: true, stale: 1, crashes: 1, removals: 1,
	},
	"5 a pod of another scheduler is adopted": {
		completes: true, wholeClaims: true, replicas: 1, pods: [nameCount]int8{2, 1}, nodeOwned: []int8{1, 2}, dynamic: []int8{0}, foreign: [nameCount]int8{1, 0}, crashes: 1, removals: 1,
	},
	"6 two pods of another scheduler compete": {
		completes: true, wholeClaims: true, replicas: 1, pods: [nameCount]int8{2, 1}, nodeOwned: []int8{1, 2}, dynamic: []int8{0}, foreign: [nameCount]int8{1, 1}, reboots: 1,
	},
	"7 another scheduler places every pod": {
		completes: true, wholeClaims: true, replicas: 1, pods: [nameCount]int8{2, 1}, nodeOwned: []int8{1, 2}, dynamic: []int8{0}, foreign: [nameCount]int8{2, 1},
	},
	"8 two schedulers, and each pod is replaced by the next pod with its name": {
		wholeClaims: true, replicas: 2, pods: [nameCount]int8{2, 2}, stale: 1, crashes: 2, removals: 1,
	},
}

// TestExplore checks that no visited state of a scope violates an invariant.
func TestExplore(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(scopes)) {
		sc := scopes[name]
		t.Run(name, func(t *testing.T) {
			r := search(sc, limit(t))
			t.Logf("%d states, %d completed rounds, complete: %v", r.states, r.depth, r.complete)
			if sc.completes && !r.complete {
				t.Errorf("search stopped at the limit of %d states, want all states visited", r.states)
			}
			if r.violation != "" {
				t.Errorf("invariant violated: %s, after\n%s", r.violation, history(r.history))
			}
		})
	}
}

// TestMutations checks that each rule is needed: without the rule the search reaches a state that violates an invariant.
func TestMutations(t *testing.T) {
	for m, in := range map[mutation]string{
		releaseUnchecked: "3 an address is released and claimed for another name",
		noBarrier:        "3 an address is released and claimed for another name",
		trustIncomplete:  "3 an address is released and claimed for another name",
		ownUnconfirmed:   "6 two pods of another scheduler compete",
		ownOffered:       "6 two pods of another scheduler compete",
	} {
		t.Run(fmt.Sprint(m), func(t *testing.T) {
			sc := scopes[in]
			sc.mutation = m
			r := search(sc, limit(t))
			if r.violation == "" {
				t.Fatalf("found no violation in %d states of scope %q (complete: %v), want one", r.states, in, r.complete)
			}
			t.Logf("%d states: %s after\n%s", r.states, r.violation, history(r.history))
		})
	}
}
