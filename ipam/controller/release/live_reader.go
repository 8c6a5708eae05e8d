// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/core/identity"
)

// notFoundLasts is the time for which a workload counts as deleted after the API server did not find it, unless the cache has
// the workload. It prevents a thousand reads of a deleted workload with a thousand pods.
const notFoundLasts = 500 * time.Millisecond

// nodeReader reads the objects that a release on one node depends on: the pods of the node from one list of the API
// server, and other pods and FixedIPs from the cache. A cached FixedIP is sufficient, since its deletion requires the
// version that was read. A FixedIP that is being deleted in the cache is read from the API server again, since another FixedIP
// may have the same name meanwhile.
type nodeReader struct {
	client.Reader
	live client.Reader
	node string
	// pods are the pods on the node. Key: namespace/name.
	pods map[string]*corev1.Pod
}

// Get reads a pod or a FixedIP. It returns a NotFound error for a pod that only the cache has on the node.
func (r nodeReader) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if p, ok := r.pods[key.String()]; ok {
		if pod, ok := obj.(*corev1.Pod); ok {
			p.DeepCopyInto(pod)
			return nil
		}
	}
	if err := r.Reader.Get(ctx, key, obj, opts...); err != nil {
		return err
	}
	switch o := obj.(type) {
	case *corev1.Pod:
		if o.Spec.NodeName == r.node {
			// The cache is behind: the API server did not list this pod on the node.
			return apierrors.NewNotFound(corev1.Resource("pods"), key.Name)
		}
	case *v1alpha1.FixedIP:
		if o.DeletionTimestamp != nil {
			*o = v1alpha1.FixedIP{}
			return r.live.Get(ctx, key, o, opts...)
		}
	}
	return nil
}

// notFoundCache stores the workloads that the API server recently did not find, and the reads that are under way. It
// exists because the batches of all nodes with pods of a deleted workload read that workload at the same time.
type notFoundCache struct {
	mu sync.Mutex
	// lookups contains the latest read of each workload. Key: the workload. Reads that began notFoundLasts ago or earlier
	// are not used. They are removed at most once in notFoundLasts, since each batch may read many workloads.
	lookups map[objectKey]*lookup
	// pruned is the time of the latest removal.
	pruned time.Time
}

type objectKey struct {
	kind            schema.GroupKind
	namespace, name string
}

// lookup is one read of a workload.
type lookup struct {
	// began is the time at which the read began. The result is the state at that time or later.
	began time.Time
	// done is closed when found and err are set. found is nil if the workload does not exist.
	done  chan struct{}
	found *identity.Workload
	err   error
}

// workload returns a workload from the API server, or nil if it does not exist. It uses the result of another read that began
// less than notFoundLasts ago if that read found no workload and the cache has no workload either.
func (c *notFoundCache) workload(ctx context.Context, from gather.Workloads, now time.Time, key objectKey) (*identity.Workload, error) {
	own := &lookup{began: now, done: make(chan struct{})}
	latest := c.begin(key, own)
	if latest != nil {
		select {
		case <-latest.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if latest.err == nil && latest.found == nil && notCached(from, key) {
			return nil, nil
		}
		c.replace(key, own)
	}
	defer close(own.done)
	own.found, own.err = from.Live(ctx, key.kind, key.namespace, key.name)
	return own.found, own.err
}

// notCached reports whether the cache is filled and does not have the workload.
func notCached(from gather.Workloads, key objectKey) bool {
	w, err := from.Get(key.kind, key.namespace, key.name)
	return err == nil && w == nil
}

// begin returns the latest read of a workload that began less than notFoundLasts before own. If there is none, it stores own as
// the latest read and returns nil.
func (c *notFoundCache) begin(key objectKey, own *lookup) *lookup {
	c.mu.Lock()
	defer c.mu.Unlock()
	outdated := func(l *lookup) bool { return own.began.Sub(l.began) >= notFoundLasts }
	if own.began.Sub(c.pruned) >= notFoundLasts {
		maps.DeleteFunc(c.lookups, func(_ objectKey, l *lookup) bool { return outdated(l) })
		c.pruned = own.began
	}
	latest := c.lookups[key]
	if latest == nil || outdated(latest) {
		if c.lookups == nil {
			c.lookups = map[objectKey]*lookup{}
		}
		c.lookups[key] = own
		return nil
	}
	return latest
}

// replace makes own the latest read of a workload.
func (c *notFoundCache) replace(key objectKey, own *lookup) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookups[key] = own
}
