package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// leastGCPercent is how much Go's heap may grow between two collections, in percent of what lives in it,
	// where that is much: most of it are watched objects, which are packed and cheap to collect, and stay.
	// Go's own 100 would have twice their memory in use.
	leastGCPercent = 25
	// heapRoom is how much it may grow at least, in bytes. In a small cluster a quarter of next to nothing
	// would have the collector take most of the time that a thousand addresses take which go back at once.
	heapRoom = 64 << 20
	// gcInterval is how often what lives is asked for.
	gcInterval = time.Second
)

// paceGC paces Go's garbage collector until ctx ends. The variable GOGC comes first.
func paceGC(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	now := 0
	for tick := time.NewTicker(gcInterval); ; {
		metrics.Read(live)
		// To set it stops the world for a moment, which a tenth is not worth.
		if next := gcPercent(live[0].Value.Uint64()); next > now+now/10 || next < now-now/10 {
			debug.SetGCPercent(next)
			now = next
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			tick.Stop()
			return
		}
	}
}

// gcPercent is how much a heap may grow in which so many bytes live.
func gcPercent(live uint64) int {
	const most = 400
	return int(min(most, max(leastGCPercent, heapRoom*100/max(live, 1))))
}
