// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package packed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// NewInformer returns an informer. If it is for pods, CiliumEndpoints or FixedIPs, its store contains records. NewInformer
// is for the field of this name in the options of controller-runtime's cache. The cache sets the transform of each informer.
func NewInformer(from cache.ListerWatcher, of runtime.Object, resync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
	var packing cache.TransformFunc
	switch of.(type) {
	case *corev1.Pod, *ciliumv2.CiliumEndpoint, *v1alpha1.FixedIP:
		packing = pack
	}
	return newInformer(from, of, resync, indexers, packing)
}

// NewInformerWith returns a function that is like NewInformer, but whose informers pack the objects of all kinds with pack,
// and list them in pages (see pages). pack returns a Record, or its argument if it does not pack that object.
func NewInformerWith(pack cache.TransformFunc) func(cache.ListerWatcher, runtime.Object, time.Duration, cache.Indexers) cache.SharedIndexInformer {
	return func(from cache.ListerWatcher, of runtime.Object, resync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
		p := &pages{ListerWatcher: from}
		i := newInformer(p, of, resync, indexers, pack)
		i.pages = p
		return i
	}
}

// informer lists and watches the objects of one kind with the reflector and the queue of client-go. Its readers and event handlers
// get objects, also if the store contains records. It calls the event handlers itself (see delivery).
type informer struct {
	from   cache.ListerWatcher
	of     runtime.Object
	resync time.Duration
	// pack returns the Record of an object, which the store contains; nil: the store contains objects.
	pack cache.TransformFunc
	// pages is the source of the initial list; nil: the informer lists all objects with one request.
	pages *pages
	delivery

	// stopped is true after RunWithContext has returned.
	stopped atomic.Bool
	// mu protects the fields below.
	mu sync.Mutex
	// transform is the transform of an object before it is stored; nil: there is none.
	transform cache.TransformFunc
	// watchFailed is called with each error of the list and the watch; nil: client-go writes them to the log.
	watchFailed cache.WatchErrorHandlerWithContext
	// running lists, watches and calls process; nil: RunWithContext was not called yet.
	running cache.Controller
}

var _ cache.SharedIndexInformer = &informer{}

func newInformer(from cache.ListerWatcher, of runtime.Object, resync time.Duration, indexers cache.Indexers, pack cache.TransformFunc) *informer {
	return &informer{from: from, of: of, resync: resync, pack: pack, transform: pack, delivery: newDelivery(newStore(smaller(pack != nil, indexers)))}
}

// Run is like RunWithContext.
func (i *informer) Run(stop <-chan struct{}) { i.RunWithContext(wait.ContextForChannel(stop)) }

// RunWithContext lists and watches the objects and calls the event handlers until ctx ends. A second call has no effect.
func (i *informer) RunWithContext(ctx context.Context) {
	running, err := i.start()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Started an informer twice", "type", fmt.Sprintf("%T", i.of))
		return
	}
	defer i.stopped.Store(true)
	var admission sync.WaitGroup
	defer admission.Wait()
	admission.Go(func() { i.admitUntil(ctx, running.HasSynced) })
	running.RunWithContext(ctx)
}

// errStarted means that an informer runs or has run.
var errStarted = errors.New("the informer was started before")

// start returns a controller of client-go that fills the store.
func (i *informer) start() (cache.Controller, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.running != nil {
		return nil, errStarted
	}
	i.running = cache.New(&cache.Config{
		Queue:                        newQueue(i.store, i.transform, i.fill),
		ListerWatcher:                i.from,
		ObjectType:                   i.of,
		FullResyncPeriod:             i.resync,
		Process:                      i.process,
		WatchErrorHandlerWithContext: i.watchFailed,
	})
	return i.running, nil
}

// SetTransform sets the function that removes fields from an object before it is packed; nil: all fields remain.
func (i *informer) SetTransform(trim cache.TransformFunc) error {
	transform := func(obj any) (any, error) {
		if r, ok := obj.(Record); ok {
			// client-go transforms an object twice if it receives the initial list as a stream or from pages.
			return r, nil
		}
		if trim != nil {
			var err error
			if obj, err = trim(obj); err != nil {
				return nil, err
			}
		}
		if i.pack == nil {
			return obj, nil
		}
		return i.pack(obj)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.running != nil {
		return errStarted
	}
	i.transform = transform
	if i.pages != nil {
		i.pages.transform = transform
	}
	return nil
}

// SetWatchErrorHandler is like SetWatchErrorHandlerWithContext.
func (i *informer) SetWatchErrorHandler(failed cache.WatchErrorHandler) error {
	return i.SetWatchErrorHandlerWithContext(func(_ context.Context, r *cache.Reflector, err error) { failed(r, err) })
}

// SetWatchErrorHandlerWithContext sets the function that is called with each error of the list and the watch.
func (i *informer) SetWatchErrorHandlerWithContext(failed cache.WatchErrorHandlerWithContext) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.running != nil {
		return errStarted
	}
	i.watchFailed = failed
	return nil
}

// AddEventHandler adds an event handler. The handlers must not change the objects, which they share.
func (i *informer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(h, cache.HandlerOptions{})
}

// AddEventHandlerWithResyncPeriod is like AddEventHandler, with the limits of AddEventHandlerWithOptions.
func (i *informer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, resync time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(h, cache.HandlerOptions{ResyncPeriod: &resync})
}

// AddEventHandlerWithOptions is like AddEventHandler. It returns an error if the options ask for another resync period than
// that of the informer, or if the informer has stopped.
func (i *informer) AddEventHandlerWithOptions(h cache.ResourceEventHandler, o cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	if o.ResyncPeriod != nil && *o.ResyncPeriod != i.resync {
		return nil, fmt.Errorf("add an event handler for %T: its resync period is %s, but that of the informer is %s", i.of, *o.ResyncPeriod, i.resync)
	}
	if i.IsStopped() {
		return nil, fmt.Errorf("add an event handler for %T: the informer has stopped", i.of)
	}
	return i.add(h), nil
}

// RemoveEventHandler ends the calls of an event handler. A call that is under way may still end later.
func (i *informer) RemoveEventHandler(handle cache.ResourceEventHandlerRegistration) error {
	r, ok := handle.(*registration)
	if !ok {
		return fmt.Errorf("remove an event handler for %T: %T is not a registration of this informer", i.of, handle)
	}
	r.removed.Store(true)
	return nil
}

// AddIndexers adds indexes to the store.
func (i *informer) AddIndexers(indexers cache.Indexers) error {
	return i.GetIndexer().AddIndexers(indexers)
}

// GetIndexer returns the store, from which readers get objects.
func (i *informer) GetIndexer() cache.Indexer { return indexer{i.store, i.pack != nil} }

// GetStore is like GetIndexer.
func (i *informer) GetStore() cache.Store { return i.GetIndexer() }

// GetController returns the informer itself, which has the methods of a controller.
func (i *informer) GetController() cache.Controller { return i }

// HasSynced reports whether the store contains all objects of the initial list. It takes no lock, because event handlers that
// read the cache call it.
func (i *informer) HasSynced() bool { return i.synced.Load() }

// IsStopped reports whether RunWithContext has returned.
func (i *informer) IsStopped() bool { return i.stopped.Load() }

// LastSyncResourceVersion returns the resourceVersion of the last list or watch event.
func (i *informer) LastSyncResourceVersion() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.running == nil {
		return ""
	}
	return i.running.LastSyncResourceVersion()
}
