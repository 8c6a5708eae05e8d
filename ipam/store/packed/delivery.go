// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package packed

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
)

// delivery calls the event handlers of an informer, one after another, with one decoded object for all of them. An informer of
// client-go has a queue for each handler, which keeps the size that it had at the start. For hundreds of thousands of objects
// and several handlers these queues need more memory than the packed objects, and each handler would decode each object.
//
// While the store is filled, no handler is called. Afterwards a handler is first called with OnAdd for each object of the
// store, together with the other handlers that wait for this. From then on it is called for each change. A handler must
// return soon, because the informer stores no further event meanwhile. It may read the store, and may add event handlers.
type delivery struct {
	// store contains the objects or their records. It changes only while calls is locked, so that each handler is called
	// exactly once for each change.
	store *store
	// synced is true when the store contains all objects of the initial list.
	synced atomic.Bool

	// calls is locked while the store changes and while handlers are called.
	calls sync.Mutex
	// active contains the handlers that were called for each object of the store. It is protected by calls.
	active []*registration

	// joining protects waiting. It is a lock of its own, because a handler may add handlers.
	joining sync.Mutex
	// waiting contains the handlers that were not called yet.
	waiting []*registration
	// added receives a value after a handler was added to waiting.
	added chan struct{}
}

// registration is an event handler of an informer.
type registration struct {
	handler cache.ResourceEventHandler
	// synced is true after the handler was called for each object that existed when it was added; removed is true after
	// RemoveEventHandler.
	synced, removed atomic.Bool
}

// HasSynced reports whether the handler was called for each object that existed when it was added.
func (r *registration) HasSynced() bool { return r.synced.Load() }

func newDelivery(store *store) delivery {
	return delivery{store: store, added: make(chan struct{}, 1)}
}

// add adds an event handler, which is called later, by another goroutine.
func (d *delivery) add(h cache.ResourceEventHandler) *registration {
	r := &registration{handler: h}
	d.joining.Lock()
	d.waiting = append(d.waiting, r)
	d.joining.Unlock()
	select {
	case d.added <- struct{}{}:
	default: // The receiver has not looked at waiting yet.
	}
	return r
}

// syncPoll is the time between two looks at whether the initial list is complete, for which client-go has no signal.
const syncPoll = 10 * time.Millisecond

// admitUntil waits until filled returns true, and then admits handlers until ctx ends.
func (d *delivery) admitUntil(ctx context.Context, filled func() bool) {
	defer utilruntime.HandleCrashWithContext(ctx)
	if err := wait.PollUntilContextCancel(ctx, syncPoll, true, func(context.Context) (bool, error) { return filled(), nil }); err != nil {
		return
	}
	d.synced.Store(true)
	for {
		d.admit(ctx)
		select {
		case <-d.added:
		case <-ctx.Done():
			return
		}
	}
}

// admit calls the handlers that wait with each object of the store, and makes them active.
func (d *delivery) admit(ctx context.Context) {
	d.calls.Lock()
	defer d.calls.Unlock()
	d.joining.Lock()
	joining := d.waiting
	d.waiting = nil
	d.joining.Unlock()
	if len(joining) == 0 {
		return
	}
	for _, stored := range d.store.list() {
		if ctx.Err() != nil {
			return
		}
		obj := unpack(stored)
		call(joining, func(h cache.ResourceEventHandler) { h.OnAdd(obj, true) })
	}
	for _, r := range joining {
		r.synced.Store(true)
	}
	d.active = slices.DeleteFunc(append(d.active, joining...), func(r *registration) bool { return r.removed.Load() })
}

// process stores the changes of an object and calls the active handlers. It is for the queue of client-go, which holds a lock
// of its own meanwhile.
func (d *delivery) process(popped any, _ bool) error {
	d.calls.Lock()
	defer d.calls.Unlock()
	for _, change := range popped.(cache.Deltas) {
		if err := d.apply(change); err != nil {
			err = fmt.Errorf("store a change of type %s of %T: %w", change.Type, change.Object, err)
			utilruntime.HandleError(err) // client-go ignores what process returns.
			return err
		}
	}
	return nil
}

// fill stores the objects of the first list. Key of items: the key of the object.
func (d *delivery) fill(items map[string]any) error {
	d.calls.Lock()
	defer d.calls.Unlock()
	return d.store.fill(items)
}

// apply stores one change of an object and calls the active handlers. It does not call them with an object of a new list
// whose version they have seen: after a watch was interrupted, that is nearly each object.
func (d *delivery) apply(change cache.Delta) error {
	key, err := keyOf(change.Object)
	if err != nil {
		return err
	}
	stored, exists := d.store.get(key)
	var before any
	if exists {
		before = unpack(stored)
	}
	after := unpack(change.Object)
	if change.Type == cache.Deleted {
		if exists {
			err = d.store.remove(key, before)
		}
		call(d.active, func(h cache.ResourceEventHandler) { h.OnDelete(after) })
		return err
	}
	err = d.store.put(key, change.Object, before, after)
	switch {
	case !exists:
		call(d.active, func(h cache.ResourceEventHandler) { h.OnAdd(after, false) })
	case change.Type != cache.Replaced || !sameVersion(before, after):
		call(d.active, func(h cache.ResourceEventHandler) { h.OnUpdate(before, after) })
	}
	return err
}

// call calls each handler that was not removed.
func call(handlers []*registration, with func(cache.ResourceEventHandler)) {
	for _, r := range handlers {
		if !r.removed.Load() {
			with(r.handler)
		}
	}
}

// sameVersion reports whether two objects have the same resourceVersion.
func sameVersion(a, b any) bool {
	x, err := meta.Accessor(a)
	if err != nil {
		return false
	}
	y, err := meta.Accessor(b)
	return err == nil && x.GetResourceVersion() != "" && x.GetResourceVersion() == y.GetResourceVersion()
}
