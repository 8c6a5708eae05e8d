package packed

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

// pageSize is how many objects are listed at once: that many are there as the API server sends them.
const pageSize = 500

// informer keeps its objects packed. All that it hands out it unpacks.
type informer struct {
	toolscache.SharedIndexInformer
	codec codec

	mu sync.RWMutex
	// transform is what is done to objects before they are packed; nil: nothing.
	transform toolscache.TransformFunc
	// indexers are those that were asked for. Key: the name of an index.
	indexers toolscache.Indexers
}

// NewInformer is for the options of a cache of controller-runtime. It lists in pages, each of which is
// transformed and packed before the next one comes: a whole list as the API server sends it would be the
// most that the process ever holds. There is no index by namespace, and those by fields have no
// values for each namespace.
func NewInformer(lw toolscache.ListerWatcher, example runtime.Object, resync time.Duration, _ toolscache.Indexers) toolscache.SharedIndexInformer {
	i := &informer{codec: codecOf(example), indexers: toolscache.Indexers{}}
	api := toolscache.ToListerWatcherWithContext(lw)
	i.SharedIndexInformer = toolscache.NewSharedIndexInformer(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return i.list(ctx, api, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return api.WatchWithContext(ctx, o)
		},
	}, example, resync, toolscache.Indexers{})
	if err := i.SharedIndexInformer.SetTransform(i.pack); err != nil {
		// It refuses when it runs already.
		panic(fmt.Sprintf("set the transform of an informer of %T: %v", example, err))
	}
	return i
}

// list lists all, as it is now: pages of an older version are not to be had.
func (i *informer) list(ctx context.Context, api toolscache.ListerWatcherWithContext, o metav1.ListOptions) (runtime.Object, error) {
	o.ResourceVersion, o.ResourceVersionMatch, o.Limit, o.Continue = "", "", pageSize, ""
	all := &internalversion.List{}
	for {
		page, err := api.ListWithContext(ctx, o)
		if err != nil {
			return nil, err
		}
		of, err := meta.ListAccessor(page)
		if err != nil {
			return nil, fmt.Errorf("read a list of %s: %w", i.codec.kind, err)
		}
		err = meta.EachListItem(page, func(obj runtime.Object) error {
			packed, err := i.pack(obj)
			if err != nil {
				return err
			}
			all.Items = append(all.Items, packed.(*object))
			return nil
		})
		if err != nil {
			return nil, err
		}
		all.ResourceVersion = of.GetResourceVersion()
		if o.Continue = of.GetContinue(); o.Continue == "" {
			return all, nil
		}
	}
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

// AddEventHandler tells a handler of unpacked objects, as the two below do.
func (i *informer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandler(handler{i.codec, h})
}

func (i *informer) AddEventHandlerWithResyncPeriod(h toolscache.ResourceEventHandler, d time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(handler{i.codec, h}, d)
}

func (i *informer) AddEventHandlerWithOptions(h toolscache.ResourceEventHandler, o toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandlerWithOptions(handler{i.codec, h}, o)
}

type handler struct {
	codec codec
	to    toolscache.ResourceEventHandler
}

func (h handler) OnAdd(obj any, initial bool) { h.to.OnAdd(h.codec.unpack(obj), initial) }
func (h handler) OnUpdate(before, after any) {
	h.to.OnUpdate(h.codec.unpack(before), h.codec.unpack(after))
}
func (h handler) OnDelete(obj any) {
	if tombstone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		tombstone.Obj = h.codec.unpack(tombstone.Obj)
		obj = tombstone
	}
	h.to.OnDelete(h.codec.unpack(obj))
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

func (v view) ByIndex(name, value string) ([]any, error) {
	if name == toolscache.NamespaceIndex {
		// It is asked for seldom.
		return v.of.codec.unpackAll(slices.DeleteFunc(v.Indexer.List(), func(obj any) bool { return obj.(*object).namespace != value })), nil
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
	found = slices.DeleteFunc(found, func(obj any) bool { return obj.(*object).namespace != namespace })
	return v.of.codec.unpackAll(found), err
}

func (v view) Index(name string, obj any) ([]any, error) {
	found, err := v.Indexer.Index(name, obj)
	return v.of.codec.unpackAll(found), err
}

func (v view) AddIndexers(added toolscache.Indexers) error { return v.of.AddIndexers(added) }
