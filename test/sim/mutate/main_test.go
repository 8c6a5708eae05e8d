// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"testing"
)

// TestMutationsApply checks that each mutation changes exactly one place of the source, so that the long run does not fail at a
// line that was rewritten.
func TestMutationsApply(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	// names contains the mutations so far. Key: the name.
	names := map[string]bool{}
	for _, m := range mutations {
		if names[m.name] {
			t.Errorf("two mutations are named %q", m.name)
		}
		names[m.name] = true
		for _, place := range m.places() {
			if place.from == place.to {
				t.Errorf("%s changes nothing in %s", m.name, place.file)
			}
		}
		if _, err := m.texts(root); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
	for name := range also {
		if !names[name] {
			t.Errorf("mutation %q of also is not among the mutations", name)
		}
	}
}
