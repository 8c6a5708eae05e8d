// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package packed

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// TestPages checks that an informer with pages gets all objects of all pages, and that the informer lists all pages again
// after the request for a page failed.
func TestPages(t *testing.T) {
	const objects = 2*pageSize + 1
	for name, failures := range map[string]int{"no failure": 0, "the second page fails once": 1} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			requests, failed := []metav1.ListOptions{}, 0
			source := &cache.ListWatch{
				ListWithContextFunc: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
					mu.Lock()
					defer mu.Unlock()
					requests = append(requests, o)
					if o.Continue != "" && failed < failures {
						failed++
						return nil, errors.New("the page has expired")
					}
					first, _ := strconv.Atoi(o.Continue)
					page := &v1alpha1.FixedIPList{ListMeta: metav1.ListMeta{ResourceVersion: "5"}}
					for i := first; i < min(first+int(o.Limit), objects); i++ {
						page.Items = append(page.Items, v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: fmt.Sprint(i), Labels: map[string]string{"a": "b"}}})
					}
					if first+len(page.Items) < objects {
						page.Continue = fmt.Sprint(first + len(page.Items))
					}
					return page, nil
				},
				WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil },
			}
			i := NewInformerWith(func(obj any) (any, error) { return obj, nil })(source, &v1alpha1.FixedIP{}, 0, cache.Indexers{})
			if err := i.SetTransform(withoutLabels); err != nil {
				t.Fatal(err)
			}
			var running sync.WaitGroup
			running.Go(func() { i.RunWithContext(t.Context()) })
			t.Cleanup(running.Wait)
			if !cache.WaitForCacheSync(t.Context().Done(), i.HasSynced) {
				t.Fatal("the informer did not sync")
			}
			if got := len(i.GetStore().List()); got != objects {
				t.Errorf("got %d objects, want %d", got, objects)
			}
			if got := i.LastSyncResourceVersion(); got != "5" {
				t.Errorf("got resourceVersion %q, want 5, the resourceVersion of the pages", got)
			}
			for _, obj := range i.GetStore().List() {
				if f := obj.(*v1alpha1.FixedIP); len(f.Labels) > 0 {
					t.Fatalf("FixedIP %s is not transformed", f.Name)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if want := 3 + 2*failures; len(requests) != want {
				t.Errorf("got %d requests, want %d", len(requests), want)
			}
			for _, o := range requests {
				if o.Limit != pageSize || o.ResourceVersion != "" {
					t.Errorf("got a request with limit %d and resourceVersion %q, want %d and none", o.Limit, o.ResourceVersion, pageSize)
				}
			}
		})
	}
}
