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
	// The object is unreachable at once, so each collection runs its finalizer. It has a pointer, because Go may combine small
	// objects without pointers, and then runs no finalizer.
	runtime.SetFinalizer(&struct{ f *func() }{&f}, func(*struct{ f *func() }) {
		f()
		afterEachCollection(f)
	})
}

const mebibyte = 1 << 20

const (
	// minGrowth and maxGrowth limit the growth of the controller's heap. Go's default of 100 % would double its memory.
	minGrowth, maxGrowth = 25, 50
	// wantedHeap is the size in bytes that the controller's heap does not exceed as long as a growth of minGrowth suffices for
	// that.
	wantedHeap = 400 * mebibyte
)

// Controller is the Rule of the controller. A large growth of a small heap saves CPU time: at the start, when the caches are
// filled, most allocations become garbage at once.
func Controller(liveBytes uint64) int {
	if liveBytes >= wantedHeap {
		return minGrowth
	}
	return int(min(max((wantedHeap-liveBytes)*100/max(liveBytes, 1), minGrowth), maxGrowth))
}

// Scheduler is the Rule of a scheduler with FixedIP. With Go's default of 100 %, what FixedIP stores takes twice its memory, and it is
// at most about 5 % of what the scheduler stores. If that is more than 50 MiB, the growth is so much less that the heap becomes no
// larger than without FixedIP.
func Scheduler(liveBytes uint64) int {
	if liveBytes < 1024*mebibyte {
		return 100
	}
	return 90
}
