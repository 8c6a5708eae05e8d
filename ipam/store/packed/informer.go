package packed

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

// informer keeps its objects packed. All that it hands out it unpacks.
type informer struct {
	toolscache.SharedIndexInformer
	codec    codec
	handlers *handlers

	mu sync.RWMutex
	// transform is what is done to objects before they are packed; nil: nothing.
	transform toolscache.TransformFunc
	// indexers are those that were asked for. Key: the name of an index.
	indexers toolscache.Indexers
}

// NewInformer is for the options of a cache of controller-runtime. What is listed is transformed and packed
// page by page. There is no index by namespace, and those by fields have no values for each namespace.
func NewInformer(lw toolscache.ListerWatcher, example runtime.Object, resync time.Duration, _ toolscache.Indexers) toolscache.SharedIndexInformer {
	i := &informer{codec: codecOf(example), indexers: toolscache.Indexers{}}
	api := toolscache.ToListerWatcherWithContext(lw)
	i.SharedIndexInformer = toolscache.NewSharedIndexInformer(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return List(ctx, api.ListWithContext, o, func(obj runtime.Object) (runtime.Object, error) {
				packed, err := i.pack(obj)
				if err != nil {
					return nil, err
				}
				return packed.(runtime.Object), nil
			})
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return api.WatchWithContext(ctx, o)
		},
	}, example, resync, toolscache.Indexers{})
	i.handlers = &handlers{codec: i.codec, stored: i.SharedIndexInformer.GetStore().List}
	told, err := i.SharedIndexInformer.AddEventHandler(i.handlers)
	if err == nil {
		i.handlers.synced = told.HasSynced
		err = i.SharedIndexInformer.SetTransform(i.pack)
	}
	if err != nil {
		// Both refuse when it has run already.
		panic(fmt.Sprintf("set up an informer of %T: %v", example, err))
	}
	return i
}

// pack is the transform of the informer within. What comes from a list is packed already.
func (i *informer) pack(obj any) (any, error) {
	if _, ok := obj.(*object); ok {
		return obj, nil
	}
	i.mu.RLock()
	transform := i.transform
	i.mu.RUnlock()
	if transform != nil {
		var err error
		if obj, err = transform(obj); err != nil {
			return nil, err
		}
	}
	return i.codec.pack(obj)
}

// SetTransform sets what is done to objects before they are packed.
func (i *informer) SetTransform(f toolscache.TransformFunc) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.transform = f
	return nil
}

// AddEventHandler tells a handler of unpacked objects, as the two below do. There are no resyncs.
func (i *informer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	if i.IsStopped() {
		return nil, fmt.Errorf("the informer of %s was stopped", i.codec.kind)
	}
	return i.handlers.add(h), nil
}

func (i *informer) AddEventHandlerWithResyncPeriod(h toolscache.ResourceEventHandler, _ time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(h)
}

func (i *informer) AddEventHandlerWithOptions(h toolscache.ResourceEventHandler, _ toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(h)
}

// RemoveEventHandler ends what AddEventHandler began.
func (i *informer) RemoveEventHandler(r toolscache.ResourceEventHandlerRegistration) error {
	return i.handlers.remove(r)
}

// Run and RunWithContext run the informer until the end of the channel, or the context.
func (i *informer) Run(stop <-chan struct{}) {
	i.SharedIndexInformer.Run(stop)
	i.handlers.end()
}

func (i *informer) RunWithContext(ctx context.Context) {
	i.SharedIndexInformer.RunWithContext(ctx)
	i.handlers.end()
}

// How controller-runtime names an index over a field, and the values in it that are for all namespaces
// (pkg/cache/internal/cache_reader.go). It adds the same once more for each namespace, which would cost
// as much again: those are found by looking at the objects.
const (
	fieldIndex    = "field:"
	allNamespaces = "__all_namespaces/"
)

// AddIndexers adds indexes over the unpacked objects.
func (i *informer) AddIndexers(added toolscache.Indexers) error {
	inner := toolscache.Indexers{}
	for name, values := range added {
		inner[name] = func(obj any) ([]string, error) {
			all, err := values(i.codec.unpack(obj))
			if err != nil || !strings.HasPrefix(name, fieldIndex) {
				return all, err
			}
			var kept []string
			for _, v := range all {
				if v, ok := strings.CutPrefix(v, allNamespaces); ok {
					kept = append(kept, v)
				}
			}
			return kept, nil
		}
	}
	if err := i.SharedIndexInformer.AddIndexers(inner); err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for name, values := range added {
		i.indexers[name] = values
	}
	return nil
}

// GetStore is GetIndexer.
func (i *informer) GetStore() toolscache.Store { return i.GetIndexer() }

// GetIndexer reads unpacked objects.
func (i *informer) GetIndexer() toolscache.Indexer {
	return view{i.SharedIndexInformer.GetIndexer(), i}
}

// view reads the store of the informer within. Nobody but that informer writes to it.
type view struct {
	toolscache.Indexer
	of *informer
}

func (v view) List() []any { return v.of.codec.unpackAll(v.Indexer.List()) }

func (v view) Get(obj any) (any, bool, error) {
	found, exists, err := v.Indexer.Get(obj)
	return v.of.codec.unpack(found), exists, err
}

func (v view) GetByKey(key string) (any, bool, error) {
	found, exists, err := v.Indexer.GetByKey(key)
	return v.of.codec.unpack(found), exists, err
}

func (v view) GetIndexers() toolscache.Indexers {
	v.of.mu.RLock()
	defer v.of.mu.RUnlock()
	all := toolscache.Indexers{}
	for name, values := range v.of.indexers {
		all[name] = values
	}
	return all
}

func namespaceOf(obj any) string {
	namespace, _, _, _ := obj.(*object).head()
	return namespace
}

func (v view) ByIndex(name, value string) ([]any, error) {
	if name == toolscache.NamespaceIndex {
		// It is asked for seldom.
		return v.of.codec.unpackAll(slices.DeleteFunc(v.Indexer.List(), func(obj any) bool { return namespaceOf(obj) != value })), nil
	}
	if !strings.HasPrefix(name, fieldIndex) {
		found, err := v.Indexer.ByIndex(name, value)
		return v.of.codec.unpackAll(found), err
	}
	if value, ok := strings.CutPrefix(value, allNamespaces); ok {
		found, err := v.Indexer.ByIndex(name, value)
		return v.of.codec.unpackAll(found), err
	}
	namespace, value, _ := strings.Cut(value, "/")
	found, err := v.Indexer.ByIndex(name, value)
	found = slices.DeleteFunc(found, func(obj any) bool { return namespaceOf(obj) != namespace })
	return v.of.codec.unpackAll(found), err
}

func (v view) Index(name string, obj any) ([]any, error) {
	found, err := v.Indexer.Index(name, obj)
	return v.of.codec.unpackAll(found), err
}

func (v view) AddIndexers(added toolscache.Indexers) error { return v.of.AddIndexers(added) }
