// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package packed

import (
	"fmt"
	"slices"
	"strings"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// NewInformer returns an informer of client-go. If it is for pods, CiliumEndpoints or FixedIPs, its store contains records.
// NewInformer is for the field of this name in the options of controller-runtime's cache. The cache sets the transform of
// each informer.
func NewInformer(from cache.ListerWatcher, of runtime.Object, resync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
	var i informer
	switch of.(type) {
	case *corev1.Pod, *ciliumv2.CiliumEndpoint, *v1alpha1.FixedIP:
		i.pack = pack
	}
	i.SharedIndexInformer = cache.NewSharedIndexInformer(from, of, resync, smaller(i.pack != nil, indexers))
	return i
}

// NewInformerWith returns a function that is like NewInformer, but whose informers pack the objects of all kinds with pack,
// and list them in pages (see pages). pack returns a Record, or its argument if it does not pack that object.
func NewInformerWith(pack cache.TransformFunc) func(cache.ListerWatcher, runtime.Object, time.Duration, cache.Indexers) cache.SharedIndexInformer {
	return func(from cache.ListerWatcher, of runtime.Object, resync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
		p := &pages{ListerWatcher: from}
		return informer{SharedIndexInformer: cache.NewSharedIndexInformer(p, of, resync, smaller(true, indexers)), pack: pack, pages: p}
	}
}

// informer is an informer whose readers and event handlers get objects.
type informer struct {
	cache.SharedIndexInformer
	// pack returns the Record of an object, which the store contains; nil: the store contains objects.
	pack cache.TransformFunc
	// pages is the source of the initial list; nil: the informer lists all objects with one request.
	pages *pages
}

// SetTransform sets the function that removes fields from an object before it is packed.
func (i informer) SetTransform(trim cache.TransformFunc) error {
	transform := func(obj any) (any, error) {
		if r, ok := obj.(Record); ok {
			// client-go transforms an object twice if it receives the initial list as a stream or from pages.
			return r, nil
		}
		trimmed, err := trim(obj)
		if err != nil || i.pack == nil {
			return trimmed, err
		}
		return i.pack(trimmed)
	}
	if i.pages != nil {
		i.pages.transform = transform
	}
	return i.SharedIndexInformer.SetTransform(transform)
}

func (i informer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandler(handler{h})
}

func (i informer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, resync time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(handler{h}, resync)
}

func (i informer) AddEventHandlerWithOptions(h cache.ResourceEventHandler, options cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandlerWithOptions(handler{h}, options)
}

func (i informer) AddIndexers(indexers cache.Indexers) error {
	return i.SharedIndexInformer.AddIndexers(smaller(i.pack != nil, indexers))
}

func (i informer) GetIndexer() cache.Indexer {
	return indexer{i.SharedIndexInformer.GetIndexer(), i.pack != nil}
}

func (i informer) GetStore() cache.Store { return i.GetIndexer() }

// handler calls an event handler with objects instead of records.
type handler struct{ of cache.ResourceEventHandler }

func (h handler) OnAdd(obj any, isInInitialList bool) { h.of.OnAdd(unpack(obj), isInInitialList) }
func (h handler) OnUpdate(before, after any)          { h.of.OnUpdate(unpack(before), unpack(after)) }
func (h handler) OnDelete(obj any)                    { h.of.OnDelete(unpack(obj)) }

const (
	// fieldIndex is the prefix of the names of the indexes that IndexField of controller-runtime adds. Without smaller, such
	// an index would contain a namespaced object twice: under the namespace and the value, and under allNamespaces and the
	// value.
	fieldIndex    = "field:"
	allNamespaces = "__all_namespaces/"
)

// smaller returns indexers that unpack a record before they compute its values. The indexers of fields return only the
// values for lists over all namespaces, because the values for one namespace would need a set with one element for most
// pods. If packs is true, there is no index by namespace (see indexer.ByIndex).
func smaller(packs bool, indexers cache.Indexers) cache.Indexers {
	all := cache.Indexers{}
	for name, values := range indexers {
		if packs && name == cache.NamespaceIndex {
			continue
		}
		all[name] = func(obj any) ([]string, error) {
			found, err := values(unpack(obj))
			if strings.HasPrefix(name, fieldIndex) {
				found = slices.DeleteFunc(found, func(value string) bool { return !strings.HasPrefix(value, allNamespaces) })
			}
			return found, err
		}
	}
	return all
}

// indexer reads objects from a store, which contains records if packs is true. The writing methods are for client-go, which
// calls them with records.
type indexer struct {
	cache.Indexer
	packs bool
}

func (i indexer) List() []any { return unpackAll(i.Indexer.List()) }

func (i indexer) Get(obj any) (any, bool, error) {
	found, exists, err := i.Indexer.Get(obj)
	return unpack(found), exists, err
}

func (i indexer) GetByKey(key string) (any, bool, error) {
	found, exists, err := i.Indexer.GetByKey(key)
	return unpack(found), exists, err
}

func (i indexer) Index(name string, obj any) ([]any, error) {
	found, err := i.Indexer.Index(name, obj)
	return unpackAll(found), err
}

// ByIndex implements cache.Indexer. It returns an error for a field value in one namespace, because the index contains no
// such values. If packs is true, ByIndex searches the keys of all objects for those of a namespace.
func (i indexer) ByIndex(name, value string) ([]any, error) {
	if i.packs && name == cache.NamespaceIndex {
		return i.inNamespace(value)
	}
	if strings.HasPrefix(name, fieldIndex) && !strings.HasPrefix(value, allNamespaces) {
		return nil, fmt.Errorf("index %s has no value %s: list by a field only over all namespaces", name, value)
	}
	found, err := i.Indexer.ByIndex(name, value)
	return unpackAll(found), err
}

// inNamespace returns the objects of a namespace.
func (i indexer) inNamespace(namespace string) (found []any, err error) {
	for _, key := range i.ListKeys() {
		if !strings.HasPrefix(key, namespace+"/") {
			continue
		}
		obj, exists, err := i.GetByKey(key)
		if err != nil {
			return nil, fmt.Errorf("read %s from the cache: %w", key, err)
		}
		if exists {
			found = append(found, obj)
		}
	}
	return found, nil
}

// unpackAll unpacks records in place: the list belongs to the caller.
func unpackAll(list []any) []any {
	for i, obj := range list {
		list[i] = unpack(obj)
	}
	return list
}
