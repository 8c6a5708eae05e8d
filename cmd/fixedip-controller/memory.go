// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// The heap grows by minGrowth to maxGrowth percent of the live heap before garbage is collected. Nearly all of the live heap
// are caches, which stay, so Go's default of 100 would double the memory of the controller. Up to wantedHeap, a larger growth saves
// CPU time: at the start, when the caches are filled, most allocations become garbage at once.
const (
	minGrowth, maxGrowth = 25, 50
	// wantedHeap is the size in bytes that the heap does not exceed as long as a growth of minGrowth suffices for that.
	wantedHeap = 400 << 20
)

// limitHeap makes the garbage collector use growth, beginning with the next collection.
func limitHeap() {
	debug.SetGCPercent(maxGrowth)
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	afterEachCollection(func() {
		metrics.Read(live)
		debug.SetGCPercent(growth(live[0].Value.Uint64()))
	})
}

// growth returns the growth of a live heap, in percent, after which garbage is collected.
func growth(liveBytes uint64) int {
	if liveBytes >= wantedHeap {
		return minGrowth
	}
	return int(min(max((wantedHeap-liveBytes)*100/max(liveBytes, 1), minGrowth), maxGrowth))
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
