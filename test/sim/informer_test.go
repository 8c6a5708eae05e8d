// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// informer is the watch and the cache of one kind in one process. It processes one write whenever the world calls step, so
// that the caches of two kinds or of two processes can differ.
type informer struct {
	// The embedded interface is nil: a method that the model does not implement panics.
	toolscache.SharedIndexInformer
	of   *kind
	from *process
	// transform changes an object before the cache stores it; nil: no change.
	transform toolscache.TransformFunc

	mu      sync.Mutex
	indexer toolscache.Indexer
	// listeners are called for each change, one after the other, except for those that lag.
	listeners []*listener
	// next is the index of the next write in the history of the kind. It is valid from the first list on.
	next int
	// synced is true from the first list on.
	synced bool
	// filled equals synced. Goroutines of the product read it.
	filled atomic.Bool
	// broken is true if the watch has ended, so that the next step is a list.
	broken bool
	// version is the revision of the last write or list that was completely processed.
	version atomic.Int64
	// failed is called when the watch has ended; nil: there is no handler.
	failed toolscache.WatchErrorHandlerWithContext
	// stalled is true while the watch delivers nothing and reports no error.
	stalled bool
}

// listener is one event handler of an informer. In client-go each handler has a goroutine of its own: when a reconcile
// starts because of one handler, the others may not have been called yet.
type listener struct {
	toolscache.ResourceEventHandler
	// waiting contains the calls of the handler that are still to be made; empty if the listener does not lag. The world
	// chooses when the next call is made.
	waiting []func()
	// filled is true once the listener was called for each object of the first list. Goroutines of the product read it.
	filled atomic.Bool
}

// lagsOnceIn is the average number of changes after which a listener begins to lag if its informer has other listeners.
const lagsOnceIn = 12

func newInformer(p *process, k *kind) *informer {
	return &informer{of: k, from: p, indexer: toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{
		toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc,
	})}
}

// due reports whether a list is due, or the history has a write that the cache has not processed.
func (i *informer) due() bool {
	return !i.synced || i.broken || i.next < len(i.from.w.server.history[i.of])
}

// lagging returns the listeners that lag.
func (i *informer) lagging() []*listener {
	return slices.DeleteFunc(i.registered(), func(l *listener) bool { return len(l.waiting) == 0 })
}

// behind reports whether the cache or a listener is behind the API server.
func (i *informer) behind() bool { return i.due() || len(i.lagging()) > 0 }

// step processes the next write, or makes a list if one is due, and returns a description. stale is the number of the newest
// writes that a list leaves out, because the API server may answer a list from its own cache. A list does not leave out
// writes that the cache has already processed. If no write and no list is due, step makes the next call of a listener that
// lags. Call step only if behind returns true.
func (i *informer) step(stale int) string {
	if !i.due() {
		return i.catchUp(i.lagging()[0])
	}
	history := i.from.w.server.history[i.of]
	switch {
	case !i.synced:
		n := max(0, len(history)-stale)
		i.list(n)
		i.synced = true
		i.filled.Store(true)
		for _, l := range i.registered() {
			l.filled.Store(len(l.waiting) == 0)
		}
		return fmt.Sprintf("%s lists %ss as of write %d of %d", i.from, i.of, n, len(history))
	case i.broken:
		n := max(i.next, len(history)-stale)
		i.broken = false
		if i.failed != nil {
			i.failed(i.from.ctx, nil, io.EOF)
		}
		i.list(n)
		return fmt.Sprintf("%s lists %ss again as of write %d of %d", i.from, i.of, n, len(history))
	}
	e := history[i.next]
	i.next++
	if last, known, _ := i.indexer.GetByKey(e.key()); e.after == nil && known {
		// The handlers get the last version of the object with the resource version of the deletion (see event). The cache
		// never contained that version.
		i.drop(last, i.transformed(e.before))
	} else {
		i.set(e.key(), e.after, false)
	}
	i.version.Store(e.rev)
	return fmt.Sprintf("%s sees %s", i.from, i.from.w.describe(i.of, e))
}

// list replaces the cache with the objects after the first n writes.
func (i *informer) list(n int) {
	i.next = n
	there := i.from.w.server.at(i.of, n)
	for _, key := range slices.Sorted(maps.Keys(there)) {
		i.set(key, there[key], !i.synced)
	}
	gone := i.indexer.ListKeys()
	slices.Sort(gone)
	for _, key := range gone {
		if there[key] == nil {
			// The process does not know the final state of the object.
			last, _, _ := i.indexer.GetByKey(key)
			i.drop(last, toolscache.DeletedFinalStateUnknown{Key: key, Obj: last})
		}
	}
	if n > 0 {
		i.version.Store(i.from.w.server.history[i.of][n-1].rev)
	}
}

// set stores after in the cache and calls the handlers. If after is nil, set removes the object with the key instead.
// initial is true during the first list.
func (i *informer) set(key string, after client.Object, initial bool) {
	before, known, _ := i.indexer.GetByKey(key)
	if after == nil {
		if known {
			i.drop(before, before)
		}
		return
	}
	now := i.transformed(after)
	must(i.indexer.Add(now))
	i.notify(func(h toolscache.ResourceEventHandler) {
		if known {
			h.OnUpdate(before, now)
		} else {
			h.OnAdd(now, initial)
		}
	})
}

// notify makes a call to each listener. A listener that lags, or begins to lag, gets the call later.
func (i *informer) notify(call func(toolscache.ResourceEventHandler)) {
	w, all := i.from.w, i.registered()
	for _, l := range all {
		if len(l.waiting) > 0 || !w.faultsEnded && len(all) > 1 && w.choose(lagsOnceIn) == lagsOnceIn-1 {
			l.waiting = append(l.waiting, func() { call(l) })
			continue
		}
		call(l)
		// Wait until the goroutines that this handler has started are blocked, so that the order is the same in each run.
		synctest.Wait()
	}
}

// catchUp makes the next waiting call of a listener that lags, and returns a description.
func (i *informer) catchUp(l *listener) string {
	next := l.waiting[0]
	l.waiting = l.waiting[1:]
	next()
	l.filled.Store(i.synced && len(l.waiting) == 0 || l.filled.Load())
	i.from.w.stats["a handler was called late"]++
	return fmt.Sprintf("%s calls handler %d of %ss late; %d calls wait", i.from, slices.Index(i.registered(), l)+1, i.of, len(l.waiting))
}

// transformed returns an object as the cache keeps it.
func (i *informer) transformed(o client.Object) any {
	var now any = o.DeepCopyObject()
	if i.transform == nil {
		return now
	}
	now, err := i.transform(now)
	must(err)
	return now
}

// drop removes an object from the cache and passes deleted to the handlers.
func (i *informer) drop(last, deleted any) {
	must(i.indexer.Delete(last))
	i.notify(func(h toolscache.ResourceEventHandler) { h.OnDelete(deleted) })
}

func (i *informer) registered() []*listener {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.listeners)
}

// HasSynced reports whether the listener was called for all objects of the first list.
func (l *listener) HasSynced() bool { return l.filled.Load() }

// AddEventHandler adds a handler, which gets the existing objects and then each change.
func (i *informer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	l := &listener{ResourceEventHandler: h}
	l.filled.Store(i.filled.Load())
	i.mu.Lock()
	i.listeners = append(i.listeners, l)
	i.mu.Unlock()
	for _, o := range sorted(i.indexer.List()) {
		h.OnAdd(o, true)
	}
	return l, nil
}

func (i *informer) AddEventHandlerWithResyncPeriod(h toolscache.ResourceEventHandler, _ time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(h)
}

func (i *informer) AddEventHandlerWithOptions(h toolscache.ResourceEventHandler, _ toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(h)
}

func (i *informer) SetWatchErrorHandlerWithContext(h toolscache.WatchErrorHandlerWithContext) error {
	i.failed = h
	return nil
}

// LastSyncResourceVersion returns the revision of the last write or list that was completely processed.
func (i *informer) LastSyncResourceVersion() string { return strconv.FormatInt(i.version.Load(), 10) }

func (i *informer) GetStore() toolscache.Store                  { return i.indexer }
func (i *informer) GetIndexer() toolscache.Indexer              { return i.indexer }
func (i *informer) HasSynced() bool                             { return i.filled.Load() }
func (i *informer) IsStopped() bool                             { return i.from.dead() }
func (i *informer) SetTransform(toolscache.TransformFunc) error { return nil }
func (i *informer) AddIndexers(add toolscache.Indexers) error   { return i.indexer.AddIndexers(add) }
func (i *informer) Run(stop <-chan struct{})                    { <-stop }
func (i *informer) RunWithContext(ctx context.Context)          { <-ctx.Done() }

// sorted sorts objects of a cache by their keys, because the order of a cache is random.
func sorted(list []any) []any {
	slices.SortFunc(list, func(a, b any) int {
		x, _ := toolscache.MetaNamespaceKeyFunc(a)
		y, _ := toolscache.MetaNamespaceKeyFunc(b)
		return strings.Compare(x, y)
	})
	return list
}

// caches implements cache.Cache with the informers of one process.
type caches struct {
	p    *process
	opts cache.Options
}

// newCaches is a cache.NewCacheFunc.
func (p *process) newCaches(_ *rest.Config, opts cache.Options) (cache.Cache, error) {
	return &caches{p: p, opts: opts}, nil
}

// kindOf returns the kind of an object, or of the items of a list.
func (p *process) kindOf(o runtime.Object) (*kind, error) {
	gvk, err := apiutil.GVKForObject(o, p.w.scheme)
	if err != nil {
		return nil, err
	}
	gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	for _, k := range kinds {
		if k.gvk == gvk {
			return k, nil
		}
	}
	return nil, fmt.Errorf("the model does not know the kind %s", gvk)
}

func (c *caches) informer(o runtime.Object) (*informer, error) {
	k, err := c.p.kindOf(o)
	if err != nil {
		return nil, err
	}
	i := c.p.informer(k)
	if i.transform == nil {
		i.transform = c.opts.DefaultTransform
		for kind, by := range c.opts.ByObject {
			if reflect.TypeOf(kind) == reflect.TypeOf(k.make()) && by.Transform != nil {
				i.transform = by.Transform
			}
		}
	}
	return i, nil
}

func (c *caches) GetInformer(_ context.Context, o client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	return c.informer(o)
}

func (c *caches) GetInformerForKind(_ context.Context, gvk schema.GroupVersionKind, _ ...cache.InformerGetOption) (cache.Informer, error) {
	o, err := c.p.w.scheme.New(gvk)
	if err != nil {
		return nil, err
	}
	return c.informer(o)
}

func (c *caches) RemoveInformer(context.Context, client.Object) error { return nil }

func (c *caches) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (c *caches) WaitForCacheSync(ctx context.Context) bool {
	return toolscache.WaitForCacheSync(ctx.Done(), func() bool { return c.p.synced() })
}

func (c *caches) IndexField(_ context.Context, o client.Object, field string, extract client.IndexerFunc) error {
	i, err := c.informer(o)
	if err != nil {
		return err
	}
	return i.AddIndexers(toolscache.Indexers{field: func(obj any) ([]string, error) { return extract(obj.(client.Object)), nil }})
}

func (c *caches) Get(_ context.Context, key client.ObjectKey, out client.Object, _ ...client.GetOption) error {
	i, err := c.informer(out)
	if err != nil {
		return err
	}
	name := key.Name
	if key.Namespace != "" {
		name = key.Namespace + "/" + key.Name
	}
	found, exists, err := i.indexer.GetByKey(name)
	if err != nil {
		return err
	}
	if !exists {
		return apierrors.NewNotFound(i.of.group(), key.Name)
	}
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(found.(client.Object).DeepCopyObject()).Elem())
	return nil
}

func (c *caches) List(_ context.Context, out client.ObjectList, opts ...client.ListOption) error {
	i, err := c.informer(out)
	if err != nil {
		return err
	}
	var o client.ListOptions
	o.ApplyOptions(opts)
	if o.LabelSelector != nil {
		return fmt.Errorf("the caches of the model do not support label selectors")
	}
	list := i.indexer.List()
	if o.FieldSelector != nil {
		r := o.FieldSelector.Requirements()
		if len(r) != 1 {
			return fmt.Errorf("the caches of the model support selectors of one field, got %s", o.FieldSelector)
		}
		if list, err = i.indexer.ByIndex(r[0].Field, r[0].Value); err != nil {
			return err
		}
	}
	var items []runtime.Object
	for _, found := range sorted(list) {
		found := found.(client.Object)
		if o.Namespace == "" || found.GetNamespace() == o.Namespace {
			items = append(items, found.DeepCopyObject())
		}
	}
	return meta.SetList(out, items)
}
