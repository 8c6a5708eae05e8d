// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
)

// TestNodes adds and removes random nodes, and checks after each step that the nodes are those of a plain map. Meanwhile another
// goroutine checks that a node that is never removed can always be read.
func TestNodes(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	var n nodes
	// The keys are the names of the nodes.
	want := map[string]*node{"lasting": {}}
	n.add("lasting", want["lasting"])
	stop := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, ok := n.load("lasting"); !ok {
				t.Errorf("seed %d: a node was missing for a moment", seed)
				return
			}
		}
	})
	defer reader.Wait()
	defer close(stop)
	for step := range 3000 {
		name := fmt.Sprintf("node-%d", random.IntN(200))
		if _, known := want[name]; known {
			delete(want, name)
			n.remove(name)
		} else {
			want[name] = &node{}
			n.add(name, want[name])
		}
		n.remove("no such node")
		got := maps.Collect(n.all())
		if !maps.Equal(want, got) || n.count() != len(want) {
			t.Fatalf("seed %d, step %d: got %d nodes and count %d, want %d", seed, step, len(got), n.count(), len(want))
		}
		for _, name := range []string{name, "node-7", "no such node"} {
			found, ok := n.load(name)
			if expected, known := want[name]; found != expected || ok != known {
				t.Fatalf("seed %d, step %d: load(%s) returned %v, want %v", seed, step, name, ok, known)
			}
		}
	}
}
