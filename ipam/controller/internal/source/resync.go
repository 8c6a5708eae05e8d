// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"slices"
	"time"

	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// ResyncPeriod is how often a controller looks at each object without an event, if its configuration says nothing
// else.
const ResyncPeriod = 5 * time.Minute

const (
	// resyncBatch is how many identities a resync queues at once, and resyncPause how long it waits while the queue is
	// that long. A queue never gives its memory back, and a large cluster has more identities than are worth it.
	resyncBatch = 256
	resyncPause = 10 * time.Millisecond
)

// Resync queues every identity: all of them when the controller starts, as fast as it works through them, and then
// each once per period, evenly spread. It finds what events have missed and, at the start, what the watches leave out.
type Resync struct {
	Clock  clock.Clock
	Period time.Duration
	// All returns the identities, "namespace/name", each once.
	All func() []string
	// Ready must report true before the first resync: what existed at the start is known.
	Ready []toolscache.InformerSynced
}

// Resynced is Source with a resync as its initial requests. The resync begins once the feed is open, so that no
// identity is missed in between.
func (f *Feed) Resynced(r Resync) source.Source {
	return source.Func(func(ctx context.Context, queue Queue) error {
		if !toolscache.WaitForCacheSync(ctx.Done(), r.Ready...) {
			return fmt.Errorf("stopped before the caches were filled: %w", context.Cause(ctx))
		}
		f.open(queue)
		go r.run(ctx, queue)
		return nil
	})
}

func (r Resync) run(ctx context.Context, queue Queue) {
	for first := true; ctx.Err() == nil; first = false {
		end := r.Clock.Now().Add(r.Period)
		batches := slices.Collect(slices.Chunk(r.All(), resyncBatch))
		for i, batch := range batches {
			for queue.Len() >= resyncBatch && ctx.Err() == nil {
				r.wait(ctx, resyncPause)
			}
			for _, owner := range batch {
				// Behind everything that events have queued.
				AddWithPriority(queue, handler.LowPriority, Request(owner)...)
			}
			if !first {
				r.wait(ctx, end.Sub(r.Clock.Now())/time.Duration(len(batches)-i))
			}
		}
		r.wait(ctx, end.Sub(r.Clock.Now()))
	}
}

func (r Resync) wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := r.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
	}
}
