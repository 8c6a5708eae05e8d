// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/core/identity"
)

// notFoundLasts is how long a workload that the API server did not have counts as deleted, as long as the cache does
// not have it either: a workload with a thousand pods is not read a thousand times when it is deleted.
const notFoundLasts = 500 * time.Millisecond

// nodeReader reads what a release on one node depends on: the pods of the node from one list of the API server and
// other pods from the cache, workloads from the API server, and FixedIPs from the cache. A FixedIP is deleted with the
// version that was read; one that is being deleted already is read from the API server, since another may have its
// name by now.
type nodeReader struct {
	cached gather.Cached
	live   gather.Live
	node   string
	// pods are those on the node. Key: namespace/name.
	pods     map[string]*corev1.Pod
	notFound *notFoundCache
}

// FixedIP returns a FixedIP.
func (r nodeReader) FixedIP(ctx context.Context, key types.NamespacedName) (*v1alpha1.FixedIP, error) {
	record, err := r.cached.FixedIP(ctx, key)
	if err != nil || record == nil || record.DeletionTimestamp == nil {
		return record, err
	}
	return r.live.FixedIP(ctx, key)
}

// Pod returns a pod.
func (r nodeReader) Pod(ctx context.Context, key types.NamespacedName) (*corev1.Pod, error) {
	if p, ok := r.pods[key.String()]; ok {
		return p.DeepCopy(), nil
	}
	pod, err := r.cached.Pod(ctx, key)
	if pod != nil && pod.Spec.NodeName == r.node {
		// The cache is behind.
		return nil, err
	}
	return pod, err
}

// Workload returns a workload.
func (r nodeReader) Workload(ctx context.Context, gk schema.GroupKind, namespace, name string) (*identity.Workload, error) {
	return r.notFound.workload(ctx, r.live.Workloads, gk, namespace, name)
}

// Slots returns the FixedIPs of the slots of a workload.
func (r nodeReader) Slots(ctx context.Context, namespace, resource string) ([]v1alpha1.FixedIP, error) {
	return r.live.Slots(ctx, namespace, resource)
}

// notFoundCache remembers which workloads the API server did not have a moment ago, and which are being read: the
// nodes of a deleted workload ask for it at the same time.
type notFoundCache struct {
	clock clock.PassiveClock
	mu    sync.Mutex
	// lookups are the latest. An old one is removed with the next that begins.
	lookups map[objectKey]*lookup
}

type objectKey struct {
	kind schema.GroupKind
	key  types.NamespacedName
}

// lookup is one read of a workload.
type lookup struct {
	// began is when. The answer was true at that moment or later.
	began time.Time
	// done is closed when there is an answer.
	done chan struct{}
	// found and err are the answer.
	found *identity.Workload
	err   error
}

func newNotFoundCache(c clock.PassiveClock) *notFoundCache {
	return &notFoundCache{clock: c, lookups: map[objectKey]*lookup{}}
}

// workload reads a workload from the API server, unless it was not found a moment ago or is being read.
func (c *notFoundCache) workload(ctx context.Context, store gather.Workloads, gk schema.GroupKind, namespace, name string) (*identity.Workload, error) {
	key := objectKey{gk, types.NamespacedName{Namespace: namespace, Name: name}}
	if c.wasNotFound(ctx, key) {
		if w, err := store.Get(gk, namespace, name); err == nil && w == nil {
			return nil, nil
		}
	}
	l := c.begin(key)
	l.found, l.err = store.Live(ctx, gk, namespace, name)
	close(l.done)
	return l.found, l.err
}

// wasNotFound reports whether an object was not found a moment ago. It waits for an answer that is on its way.
func (c *notFoundCache) wasNotFound(ctx context.Context, key objectKey) bool {
	c.mu.Lock()
	l, ok := c.lookups[key]
	ok = ok && c.clock.Since(l.began) < notFoundLasts
	c.mu.Unlock()
	if !ok {
		return false
	}
	select {
	case <-l.done:
		return l.err == nil && l.found == nil
	case <-ctx.Done():
		return false
	}
}

func (c *notFoundCache) begin(key objectKey) *lookup {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, l := range c.lookups {
		if c.clock.Since(l.began) >= notFoundLasts {
			delete(c.lookups, k)
		}
	}
	l := &lookup{began: c.clock.Now(), done: make(chan struct{})}
	c.lookups[key] = l
	return l
}
