// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"testing"
)

func TestRules(t *testing.T) {
	controller := func(growth int, limitMiB int64) Settings { return Settings{growth, limitMiB * mebibyte} }
	scheduler := func(growth int) Settings { return Settings{growth, math.MaxInt64} }
	for name, c := range map[string]struct {
		rule Rule
		// want contains the settings. Key: the live heap in MiB.
		want map[uint64]Settings
	}{
		"controller": {Controller, map[uint64]Settings{
			0: controller(50, 430), 100: controller(50, 430), 225: controller(33, 430), 250: controller(20, 430), 260: controller(15, 430),
			268: controller(11, 430), 275: controller(10, 430), 346: controller(10, 430), 360: controller(10, 450), 500: controller(10, 660), 900: controller(10, 1260),
		}},
		"scheduler": {Scheduler, map[uint64]Settings{0: scheduler(100), 125: scheduler(100), 1023: scheduler(100), 1024: scheduler(90), 2094: scheduler(90)}},
	} {
		for live, want := range c.want {
			if got := c.rule(live * mebibyte); got != want {
				t.Errorf("%s, live heap of %d MiB: got %+v, want %+v", name, live, got, want)
			}
		}
	}
}

// TestApply checks that the rule is applied at once and after every collection, with the live heap, and that GOGC and GOMEMLIMIT
// take precedence.
func TestApply(t *testing.T) {
	before := Settings{100, 1 << 40}
	atFirst, later := Settings{80, 1 << 41}, Settings{60, 1 << 42}
	for name, c := range map[string]struct {
		gogc, gomemlimit string
		want             Settings
	}{
		"neither is set":    {want: atFirst},
		"GOGC is set":       {gogc: "70", want: Settings{before.Growth, atFirst.Limit}},
		"GOMEMLIMIT is set": {gomemlimit: "1GiB", want: Settings{atFirst.Growth, before.Limit}},
	} {
		t.Run(name, func(t *testing.T) {
			// t.Setenv restores the variables, even if the test unsets them.
			for variable, value := range map[string]string{"GOGC": c.gogc, "GOMEMLIMIT": c.gomemlimit} {
				t.Setenv(variable, value)
				if value == "" {
					_ = os.Unsetenv(variable)
				}
			}
			defer debug.SetGCPercent(debug.SetGCPercent(before.Growth))
			defer debug.SetMemoryLimit(debug.SetMemoryLimit(before.Limit))
			current := func() Settings {
				growth := debug.SetGCPercent(before.Growth)
				debug.SetGCPercent(growth)
				return Settings{growth, debug.SetMemoryLimit(-1)}
			}
			lives := make(chan uint64, 100)
			Apply(func(live uint64) Settings {
				if live == 0 {
					return atFirst
				}
				select {
				case lives <- live:
				default:
				}
				return later
			})
			if got := current(); got != c.want {
				t.Errorf("before a collection: got %+v, want %+v", got, c.want)
			}
			for range 3 {
				runtime.GC()
				<-lives
			}
		})
	}
}
