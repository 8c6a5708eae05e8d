// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"os"
	"runtime"
	"runtime/debug"
	"testing"
)

func TestRules(t *testing.T) {
	for name, c := range map[string]struct {
		rule Rule
		// want contains the growth in percent. Key: the live heap in MiB.
		want map[uint64]int
	}{
		"controller": {Controller, map[uint64]int{0: 50, 100: 50, 200: 50, 225: 33, 250: 20, 260: 15, 299: 12, 300: 12, 900: 12}},
		"scheduler":  {Scheduler, map[uint64]int{0: 100, 125: 100, 1023: 100, 1024: 90, 2094: 90}},
	} {
		for live, want := range c.want {
			if got := c.rule(live * mebibyte); got != want {
				t.Errorf("%s, live heap of %d MiB: got a growth of %d %%, want %d %%", name, live, got, want)
			}
		}
	}
}

// TestApply checks that the rule is applied at once and after every collection, with the live heap, and that GOGC takes
// precedence.
func TestApply(t *testing.T) {
	const before, atFirst, later = 100, 80, 60
	for name, gogc := range map[string]string{"GOGC is not set": "", "GOGC is set": "70"} {
		t.Run(name, func(t *testing.T) {
			// t.Setenv restores the variable, even if the test unsets it.
			t.Setenv("GOGC", gogc)
			if gogc == "" {
				_ = os.Unsetenv("GOGC")
			}
			defer debug.SetGCPercent(debug.SetGCPercent(before))
			lives := make(chan uint64, 100)
			Apply(func(live uint64) int {
				if live == 0 {
					return atFirst
				}
				select {
				case lives <- live:
				default:
				}
				return later
			})
			if gogc != "" {
				if got := debug.SetGCPercent(before); got != before {
					t.Errorf("got a growth of %d %%, want %d %%", got, before)
				}
				return
			}
			if got := debug.SetGCPercent(before); got != atFirst {
				t.Errorf("before a collection: got a growth of %d %%, want %d %%", got, atFirst)
			}
			for range 3 {
				runtime.GC()
				<-lives
			}
		})
	}
}
