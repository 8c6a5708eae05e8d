package controller

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
)

const (
	// gathering bounds how long the first address that goes back on a node waits for those of pods that
	// are ending there: a workload that is deleted gives back many at about the same time, and every agent
	// is told of every write. An address should be free of its owner within a second (G3), and the looks at
	// the API server and the write need the rest of it.
	gathering = 400 * time.Millisecond
	// settling is how long it waits where none is ending: FixedIPs that are deleted by hand come one after
	// another, and nothing foretells the next.
	settling = 50 * time.Millisecond
)

// gathered is what waits on one node.
type gathered struct {
	since time.Time
	// awaited: others were ending when the first came. When the last of them is gone there is nobody
	// left to wait for.
	awaited bool
}

// wait is how long it waits from now on.
func (g gathered) wait(now time.Time, ending bool) time.Duration {
	limit := settling
	switch {
	case ending:
		limit = gathering
	case g.awaited:
		return 0
	}
	return max(0, limit-now.Sub(g.since))
}

// gatherings are the nodes on which something waits to go back. A replica that takes over waits anew.
type gatherings struct {
	clock clock.Clock
	mu    sync.Mutex
	// nodes is what waits. Key: the node. A key exists from the first that goes back until it does.
	nodes map[string]gathered
}

func newGatherings(c clock.Clock) *gatherings {
	return &gatherings{clock: c, nodes: map[string]gathered{}}
}

// open tells whether something waits on a node.
func (g *gatherings) open(node string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.nodes[node]
	return ok
}

// wait is how long what goes back on a node waits from now on, the first of which may have come just
// now. It does so anew when that is over.
func (g *gatherings) wait(node string, ending bool) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.clock.Now()
	at, ok := g.nodes[node]
	if !ok {
		at.since = now
	}
	at.awaited = at.awaited || ending
	g.nodes[node] = at
	wait := at.wait(now, ending)
	if wait == 0 {
		delete(g.nodes, node)
	}
	return wait
}

// gather tells how long what goes back on a node waits from now on. Where nothing does, nothing waits.
func (r *releaseReconciler) gather(ctx context.Context, node string) (time.Duration, error) {
	if !r.gathered.open(node) {
		if leaving, err := r.leaving(ctx, node); err != nil || len(leaving) == 0 {
			return 0, err
		}
	}
	ending, err := r.ending(ctx, node)
	if err != nil {
		return 0, err
	}
	return r.gathered.wait(node, ending), nil
}

// ending tells whether a pod is ending on the node whose address will go back when it is gone, as the
// caches show it.
func (r *releaseReconciler) ending(ctx context.Context, node string) (bool, error) {
	pods, err := index.PodsOnNode(ctx, r.cached, node)
	if err != nil {
		return false, err
	}
	owners := r.owners(node)
	for i := range pods {
		pod := &pods[i]
		if pod.DeletionTimestamp == nil || !slices.Contains(owners, pool.OwnerKey(pod.Namespace, pod.Name)) {
			continue
		}
		s, err := r.situation(ctx, r.cached, client.ObjectKeyFromObject(pod))
		if err != nil {
			return false, err
		}
		if s.Pod = nil; returnsOn(s, plan.Decide(s)) == node {
			return true, nil
		}
	}
	return false, nil
}
