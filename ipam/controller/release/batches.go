// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/controller/internal/source"
)

const (
	// quietWindow is the time for which a batch waits for further identities if it has never waited for a terminating pod,
	// counted from the last identity that joined: a user who deletes several FixedIPs deletes them one after another.
	quietWindow = 50 * time.Millisecond
	// joinWindow is the same time if pods whose addresses may be released too are terminating on the node. The pods of a deleted
	// workload do not end at the same moment, and every agent receives every write. If the API server is busy, the pods of a
	// node end seconds apart.
	joinWindow = 5 * time.Second
	// lateWindow is the same time if no such pod is left, but the identity of such a pod has not joined: the watch has only
	// just shown the end of the pod, the workload now expects the pod again, or the addresses of the pod stay reserved.
	lateWindow = 200 * time.Millisecond
	// maxWindow is the maximum time for which the first identity of a batch waits.
	maxWindow = 30 * time.Second
)

// Batches collects the identities whose addresses have to be released, by node.
type Batches struct {
	Clock clock.PassiveClock
	// queue receives the nodes that have a batch.
	queue source.Requests

	mu sync.Mutex
	// waiting contains the batch of each node that has identities to release. Key: the node.
	waiting map[string]*batch
	// inFlight are the identities whose release has begun and is not confirmed yet. The finalizers of their FixedIPs are not
	// removed before the confirmation, unless the release has failed until the deadline (reportFailure). Until then a scheduler
	// claims nothing for a pod of such an identity, because the FixedIP is being deleted. A pod that is bound meanwhile can
	// therefore rely only on the entries that the release puts into cooldown.
	inFlight sets.Set[client.ObjectKey]
}

// batch contains the identities to release on one node.
type batch struct {
	identities sets.Set[client.ObjectKey]
	// first and last are the times at which the first and the last identity joined.
	first, last time.Time
	// awaited are the identities that were passed to wait as terminating. The batch is complete at once when none of their pods
	// is terminating any more and all of them have joined, and otherwise when its window is over.
	awaited sets.Set[client.ObjectKey]
}

// Add adds an identity to the batch of a node.
func (b *Batches) Add(node string, identity client.ObjectKey) {
	b.add(node, identity)
	b.queue.Add(source.ForName(node))
}

func (b *Batches) add(node string, identities ...client.ObjectKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting == nil {
		b.waiting = map[string]*batch{}
	}
	now, at := b.Clock.Now(), b.waiting[node]
	if at == nil {
		at = &batch{identities: sets.New[client.ObjectKey](), first: now, awaited: sets.New[client.ObjectKey]()}
		b.waiting[node] = at
	}
	if before := at.identities.Len(); at.identities.Insert(identities...).Len() > before {
		at.last = now
	}
}

// InFlight reports whether the release of an identity has begun and is not confirmed yet.
func (b *Batches) InFlight(identity client.ObjectKey) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.inFlight.Has(identity)
}

// wait returns the time until the batch of a node is complete; 0 if it is complete or there is no batch. terminating are the
// identities that may join when their pods have ended; wait records them in the batch.
func (b *Batches) wait(node string, terminating []client.ObjectKey) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := b.waiting[node]
	if !ok {
		return 0
	}
	at.awaited.Insert(terminating...)
	window := quietWindow
	switch {
	case len(terminating) > 0:
		window = joinWindow
	case len(at.awaited) == 0:
	case at.identities.IsSuperset(at.awaited):
		return 0
	default:
		window = lateWindow
	}
	end := at.last.Add(window)
	if latest := at.first.Add(maxWindow); end.After(latest) {
		end = latest
	}
	return max(0, end.Sub(b.Clock.Now()))
}

// take removes the batch of a node and returns its identities, sorted. They are in flight until landed is called.
func (b *Batches) take(node string) (identities []client.ObjectKey, landed func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if at, ok := b.waiting[node]; ok {
		identities = at.identities.UnsortedList()
		delete(b.waiting, node)
	}
	slices.SortFunc(identities, func(x, y client.ObjectKey) int { return strings.Compare(x.String(), y.String()) })
	if b.inFlight == nil {
		b.inFlight = sets.New[client.ObjectKey]()
	}
	// Insert into the set, since a copy would take time proportional to the identities in flight on all nodes.
	b.inFlight.Insert(identities...)
	return identities, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.inFlight.Delete(identities...)
	}
}
