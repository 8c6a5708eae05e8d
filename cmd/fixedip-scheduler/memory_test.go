// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"runtime/debug"
	"testing"

	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// TestCollectingOften checks that a scheduler that enables FixedIP collects garbage at gcPercent, and that GOGC takes
// precedence.
func TestCollectingOften(t *testing.T) {
	const before = 100
	for name, c := range map[string]struct {
		gogc string
		want int
	}{
		"GOGC is not set": {"", gcPercent},
		"GOGC is set":     {"70", before},
	} {
		t.Run(name, func(t *testing.T) {
			// t.Setenv restores the variable, even if the test unsets it.
			t.Setenv("GOGC", c.gogc)
			if c.gogc == "" {
				_ = os.Unsetenv("GOGC")
			}
			defer debug.SetGCPercent(debug.SetGCPercent(before))
			called := false
			factory := collectingOften(func(context.Context, k8sruntime.Object, framework.Handle) (framework.Plugin, error) {
				called = true
				return nil, nil
			})
			if _, err := factory(t.Context(), nil, nil); err != nil || !called {
				t.Errorf("got error %v and called %t, want none and true", err, called)
			}
			if got := debug.SetGCPercent(before); got != c.want {
				t.Errorf("got a growth of %d %%, want %d %%", got, c.want)
			}
		})
	}
}
