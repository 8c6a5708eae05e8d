// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"testing"
)

// TestMutationsApply checks that the text that each mutation replaces occurs exactly once in its file. Otherwise make
// sim-mutations would fail after a change of that line.
func TestMutationsApply(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	// names contains the names of the mutations.
	names := map[string]bool{}
	for _, m := range mutations {
		if names[m.name] {
			t.Errorf("two mutations are named %q", m.name)
		}
		names[m.name] = true
		for _, place := range m.places() {
			if place.from == place.to {
				t.Errorf("mutation %q replaces a text of %s with the same text", m.name, place.file)
			}
		}
		if _, err := m.texts(root); err != nil {
			t.Errorf("mutation %q: %v", m.name, err)
		}
	}
	for name := range also {
		if !names[name] {
			t.Errorf("the map named also has the key %q, want the name of a mutation", name)
		}
	}
}
