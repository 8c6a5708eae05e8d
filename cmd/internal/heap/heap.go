// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// Rule returns the growth of a live heap, in percent, after which garbage is collected.
type Rule func(liveBytes uint64) int

// Apply applies the rule after each garbage collection. If the environment variable GOGC is set, it does nothing.
func Apply(rule Rule) {
	if _, set := os.LookupEnv("GOGC"); set {
		return
	}
	debug.SetGCPercent(rule(0))
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	afterEachCollection(func() {
		metrics.Read(live)
		debug.SetGCPercent(rule(live[0].Value.Uint64()))
	})
}

// afterEachCollection calls f after each garbage collection, on the goroutine of finalizers. A ticker would be too late when
// the heap grows fast.
func afterEachCollection(f func()) {
	// The object is unreachable at once, so the next collection runs its finalizer. The object contains a pointer, because Go may
	// combine small objects without pointers, and may not run their finalizers.
	runtime.SetFinalizer(&struct{ f *func() }{&f}, func(*struct{ f *func() }) {
		f()
		afterEachCollection(f)
	})
}

const mebibyte = 1 << 20

const (
	// minGrowth and maxGrowth limit the growth of the controller's heap. Go's default of 100 % would double its memory.
	minGrowth, maxGrowth = 12, 50
	// wantedHeap is the size in bytes at which garbage is collected, if the growth is between minGrowth and maxGrowth then.
	wantedHeap = 300 * mebibyte
)

// Controller is the Rule of the controller. A large growth of a small heap saves CPU time: at the start, when the caches are
// filled, most allocations become garbage at once.
func Controller(liveBytes uint64) int {
	if liveBytes >= wantedHeap {
		return minGrowth
	}
	return int(min(max((wantedHeap-liveBytes)*100/max(liveBytes, 1), minGrowth), maxGrowth))
}

// Scheduler is the Rule of a scheduler with FixedIP. FixedIP's data are about 5 % of the live heap (docs/project/performance.md). With
// Go's default growth of 100 %, the heap needs twice that for them. From a live heap of 1 GiB on, a growth of 90 % makes up for
// it: the heap then becomes no larger than without FixedIP.
func Scheduler(liveBytes uint64) int {
	if liveBytes < 1024*mebibyte {
		return 100
	}
	return 90
}
