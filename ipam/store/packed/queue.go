// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package packed

import (
	"fmt"
	"sync/atomic"

	"k8s.io/client-go/tools/cache"
)

// queue is the queue of client-go between the watch and the store, except that the first list goes into the store at once. In
// client-go, the queue contains a copy of the whole list, and keeps the memory of this copy.
type queue struct {
	*cache.RealFIFO
	// fill stores the objects of the first list.
	fill func(items map[string]any) error
	// filled is true after the first list was stored.
	filled atomic.Bool
}

var (
	_ cache.Queue             = &queue{}
	_ cache.TransformingStore = &queue{}
)

// newQueue returns a queue of changes of a store. transform is called with each object; nil: there is no transform.
func newQueue(s *store, transform cache.TransformFunc, fill func(items map[string]any) error) *queue {
	return &queue{RealFIFO: cache.NewRealFIFO(keyOf, s, transform), fill: fill}
}

// Replace implements cache.Queue. The reflector of client-go calls it with a complete list, and first of all methods.
func (q *queue) Replace(list []any, version string) error {
	if q.filled.Load() {
		return q.RealFIFO.Replace(list, version)
	}
	items := make(map[string]any, len(list))
	for _, obj := range list {
		if transform := q.Transformer(); transform != nil {
			var err error
			if obj, err = transform(obj); err != nil {
				return fmt.Errorf("transform an object of the list: %w", err)
			}
		}
		key, err := keyOf(obj)
		if err != nil {
			return err
		}
		items[key] = obj
	}
	if err := q.fill(items); err != nil {
		return fmt.Errorf("store the list: %w", err)
	}
	q.filled.Store(true)
	return nil
}

// HasSynced reports whether the first list was stored.
func (q *queue) HasSynced() bool { return q.filled.Load() }

// keyOf returns the key of an object, of a record or of a deleted object: its namespace and name.
func keyOf(obj any) (string, error) {
	if r, ok := obj.(Record); ok {
		return r.Key(), nil
	}
	return cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
}
