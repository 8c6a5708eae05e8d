// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package packed

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// pageSize is the number of objects in a page. A page of FixedIPs has about 2 MB.
const pageSize = 1000

// pages lists objects in pages and transforms each page before it requests the next one. Without pages, the text of all
// objects and the complete decoded objects are in memory at the same time. For tens of thousands of FixedIPs that is ten
// times the memory of the records, and a program returns this memory to the system only after a long time.
type pages struct {
	cache.ListerWatcher
	// transform is the transform of the informer; nil until SetTransform is called.
	transform cache.TransformFunc
}

var _ cache.ListerWatcherWithContext = &pages{}

// ListWithContext returns all objects, transformed. It requests the newest version: the API server ignores the size of a
// page if a request allows any version. If a page has expired, the error makes the informer begin with the first page.
func (p *pages) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	from := cache.ToListerWatcherWithContext(p.ListerWatcher)
	o.ResourceVersion, o.ResourceVersionMatch, o.Limit = "", "", pageSize
	all := &internalversion.List{}
	for {
		page, err := from.ListWithContext(ctx, o)
		if err != nil {
			// The error is not wrapped: client-go decides by its type, and adds the kind of the objects to the message.
			return nil, err
		}
		of, err := meta.ListAccessor(page)
		if err != nil {
			return nil, fmt.Errorf("read the metadata of a page: %w", err)
		}
		if err := meta.EachListItem(page, func(obj runtime.Object) error { return p.add(all, obj) }); err != nil {
			return nil, err
		}
		all.ResourceVersion, o.Continue = of.GetResourceVersion(), of.GetContinue()
		if o.Continue == "" {
			return all, nil
		}
	}
}

// add appends an object to a list, transformed. If the result of the transform is not a runtime.Object, add appends the object
// itself, and only the informer transforms it.
func (p *pages) add(to *internalversion.List, obj runtime.Object) error {
	if p.transform != nil {
		transformed, err := p.transform(obj)
		if err != nil {
			return err
		}
		if t, ok := transformed.(runtime.Object); ok {
			obj = t
		}
	}
	to.Items = append(to.Items, obj)
	return nil
}

// WatchWithContext starts the watch of the underlying source.
func (p *pages) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return cache.ToListerWatcherWithContext(p.ListerWatcher).WatchWithContext(ctx, o)
}

// List is like ListWithContext.
func (p *pages) List(o metav1.ListOptions) (runtime.Object, error) {
	return p.ListWithContext(context.Background(), o)
}
