// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"testing"
)

// TestMutationsApply checks that each bug can still be put into the product: a list that is long to run must not end at the
// first line that was rewritten.
func TestMutationsApply(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	for _, m := range mutations {
		for _, place := range m.places() {
			if _, err := place.apply(root); err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
		}
	}
	for name := range also {
		found := false
		for _, m := range mutations {
			found = found || m.name == name
		}
		if !found {
			t.Errorf("%s has a second place, and is not in the list", name)
		}
	}
}
