// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// Rule returns the settings for a live heap of a size.
type Rule func(liveBytes uint64) Settings

// Settings are settings of Go's memory manager.
type Settings struct {
	// Growth is the growth of the live heap, in percent, after which garbage is collected.
	Growth int
	// Limit is the size of all memory of Go, in bytes, from which the program returns free memory to the kernel at once, and
	// collects garbage more often. It does not contain the code of the program, which has about 50 MiB.
	Limit int64
}

// noLimit is the Limit of a program that returns free memory in the background only.
const noLimit = math.MaxInt64

// Apply applies the rule after each garbage collection. The environment variables GOGC and GOMEMLIMIT replace the growth and
// the limit.
func Apply(rule Rule) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	_, fixedGrowth := os.LookupEnv("GOGC")
	_, fixedLimit := os.LookupEnv("GOMEMLIMIT")
	var now Settings
	set := func(liveBytes uint64) {
		wanted := rule(liveBytes)
		// Each change stops the program for a moment.
		if wanted.Growth != now.Growth && !fixedGrowth {
			debug.SetGCPercent(wanted.Growth)
		}
		if wanted.Limit != now.Limit && !fixedLimit {
			debug.SetMemoryLimit(wanted.Limit)
		}
		now = wanted
	}
	set(0)
	afterEachCollection(func() {
		metrics.Read(live)
		set(live[0].Value.Uint64())
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
	minGrowth, maxGrowth = 10, 50
	// wantedHeap is the size in bytes at which garbage is collected, if the growth is between minGrowth and maxGrowth then.
	wantedHeap = 300 * mebibyte
	// minLimit is the lowest Limit of the controller, in bytes. That of a larger live heap is half again as large as the live heap,
	// less limitOffset. With much less, the program would collect garbage all the time: what is lost between objects
	// and the data of the memory manager count as well.
	minLimit, limitOffset = 430 * mebibyte, 90 * mebibyte
)

// Controller is the Rule of the controller. A large growth of a small heap saves CPU time: at the start, when the caches are
// filled, most allocations become garbage at once. Without the limit, the program would keep up to a tenth of the heap as free
// memory. At the size for which the limit was measured, 5,000 nodes and 150,000 pods, it is close to what the program needs; a
// larger heap gets more room.
func Controller(liveBytes uint64) Settings {
	s := Settings{Growth: minGrowth, Limit: int64(max(minLimit+limitOffset, liveBytes*3/2) - limitOffset)}
	if liveBytes < wantedHeap {
		s.Growth = int(min(max((wantedHeap-liveBytes)*100/max(liveBytes, 1), minGrowth), maxGrowth))
	}
	return s
}

// Scheduler is the Rule of a scheduler with FixedIP. FixedIP's data are about 5 % of the live heap (docs/project/performance.md). With
// Go's default growth of 100 %, the heap needs twice that for them. From a live heap of 1 GiB on, a growth of 90 % makes up for
// it: the heap then becomes no larger than without FixedIP.
func Scheduler(liveBytes uint64) Settings {
	if liveBytes < 1024*mebibyte {
		return Settings{Growth: 100, Limit: noLimit}
	}
	return Settings{Growth: 90, Limit: noLimit}
}
