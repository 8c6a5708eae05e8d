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
		if _, err := m.apply(filepath.Join("..", "..", "..")); err != nil || names[m.name] || m.from == m.to {
			t.Errorf("%s: %v (name used before: %t)", m.name, err, names[m.name])
		}
		names[m.name] = true
	}
}
