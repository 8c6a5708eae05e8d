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
	// batchWindow is the maximum time for which the first address of a batch waits for the addresses of pods that are
	// terminating on the node. A deleted workload releases many addresses at about the same time, and every agent receives
	// every write. An address should be released within a second; the reads and the write need the rest of that time.
	batchWindow = 400 * time.Millisecond
	// quietWindow is the time for which a batch waits if no pod is terminating: a user who deletes several FixedIPs deletes
	// them one after another.
	quietWindow = 50 * time.Millisecond
)

// Batches collects the identities whose addresses have to be released, by node.
type Batches struct {
	Clock clock.PassiveClock
	// queue receives the nodes that have a batch.
	queue source.Requests

	mu sync.Mutex
	// waiting contains the batch of each node that has identities to release. Key: the node.
	waiting map[string]*batch
	// inFlight are the identities whose release has begun and is not confirmed yet. The finalizers of their FixedIPs
	// are not removed before the confirmation. Until then a scheduler claims nothing for a pod of the identity, because
	// its FixedIP is being deleted. A pod that is bound meanwhile can therefore rely only on the entries that the
	// release takes.
	inFlight sets.Set[client.ObjectKey]
}

// batch contains the identities to release on one node.
type batch struct {
	identities sets.Set[client.ObjectKey]
	since      time.Time
	// awaited is true if an earlier reconcile found a terminating pod with an entry. The batch is complete when no such
	// pod is left.
	awaited bool
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
	if b.waiting[node] == nil {
		b.waiting[node] = &batch{identities: sets.New[client.ObjectKey](), since: b.Clock.Now()}
	}
	b.waiting[node].identities.Insert(identities...)
}

// InFlight reports whether the release of an identity has begun and is not confirmed yet.
func (b *Batches) InFlight(identity client.ObjectKey) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.inFlight.Has(identity)
}

// wait returns the time until the batch of a node is complete; 0 if it is complete or there is no batch. terminating is true
// if a pod with an entry is terminating on the node; wait records that in the batch.
func (b *Batches) wait(node string, terminating bool) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := b.waiting[node]
	if !ok {
		return 0
	}
	window := quietWindow
	switch {
	case terminating:
		window, at.awaited = batchWindow, true
	case at.awaited:
		return 0
	}
	return max(0, at.since.Add(window).Sub(b.Clock.Now()))
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
	b.inFlight = b.inFlight.Union(sets.New(identities...))
	return identities, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.inFlight.Delete(identities...)
	}
}
