package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/store/fixedips"
)

const (
	// sweepPortion is how many identities a sweep asks for at once, and sweepPause how long it waits where
	// the queue has as many. All at once, in a large cluster, would be more memory than all else that is kept
	// of them, and a queue gives none back.
	sweepPortion = 256
	sweepPause   = 10 * time.Millisecond
)

// sweep asks for identities again and again: for all at once when a controller starts, as fast as they
// are looked at, and from then on for each once in an interval, for what events missed. What stood at the
// start is its work, so that no watch need tell of it.
type sweep struct {
	clock    clock.Clock
	interval time.Duration
	// all are those there are, "namespace/name", each once.
	all func() []string
	// ready tells whether all are known that stood at the start.
	ready []toolscache.InformerSynced
}

// swept is source, with a sweep in place of all that the ledger knows. The sweep begins when the feed
// is open, so that each identity is in the one or comes by the other.
func (f *feed) swept(s sweep) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		if !toolscache.WaitForCacheSync(ctx.Done(), s.ready...) {
			return fmt.Errorf("stopped before all that stood had been seen: %w", context.Cause(ctx))
		}
		f.mu.Lock()
		f.queue = queue
		f.mu.Unlock()
		go s.run(ctx, queue)
		return nil
	})
}

func (s sweep) run(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	for first := true; ctx.Err() == nil; first = false {
		end := s.clock.Now().Add(s.interval)
		all := s.all()
		portions := slices.Collect(slices.Chunk(all, sweepPortion))
		for i, portion := range portions {
			for queue.Len() >= sweepPortion && ctx.Err() == nil {
				s.wait(ctx, sweepPause)
			}
			later(queue, portion)
			if !first {
				s.wait(ctx, end.Sub(s.clock.Now())/time.Duration(len(portions)-i))
			}
		}
		s.wait(ctx, end.Sub(s.clock.Now()))
	}
}

func (s sweep) wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := s.clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
	}
}

// later asks for identities after all that events have asked for.
func later(queue workqueue.TypedRateLimitingInterface[reconcile.Request], identities []string) {
	var requests []reconcile.Request
	for _, i := range identities {
		requests = append(requests, identityRequest(i)...)
	}
	if q, ok := queue.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		q.AddWithOpts(priorityqueue.AddOpts{Priority: ptr.To(handler.LowPriority)}, requests...)
		return
	}
	for _, r := range requests {
		queue.Add(r)
	}
}

// identities are all that anything is kept for: by a FixedIP, an entry or a mark.
func identities(l *ledger.Ledger) []string {
	all := l.Named()
	for _, k := range l.Keepings() {
		all = append(all, k.Record, k.Owner)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// besideLedger leaves out what changes what a FixedIP keeps: of that the ledger tells, when it has it, and of
// what stood at the start a sweep.
var besideLedger = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	DeleteFunc: func(event.DeleteEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		return !fixedips.Reserves(e.ObjectOld.(*v1alpha1.FixedIP), e.ObjectNew.(*v1alpha1.FixedIP))
	},
}

// afterStart leaves out what stood at the start, which a sweep looks at.
var afterStart = predicate.Funcs{CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList }}
