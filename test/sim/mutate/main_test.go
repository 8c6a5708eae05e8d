// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"testing"
)

// Each mutation names a place that exists, once.
func TestMutations(t *testing.T) {
	names := map[string]bool{}
	for _, m := range mutations {
		for _, place := range m.places() {
			if _, err := place.apply(filepath.Join("..", "..", "..")); err != nil || names[m.name] || place.from == place.to {
				t.Errorf("%s: %v (name used before: %t)", m.name, err, names[m.name])
			}
		}
		names[m.name] = true
	}
	for name := range also {
		if !names[name] {
			t.Errorf("a second place is for the mutation %q, which does not exist", name)
		}
	}
}
