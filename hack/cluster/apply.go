// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
)

// fieldManager is the field manager of Apply.
const fieldManager = "fixedip-hack"

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// applier applies objects of any kind.
type applier struct {
	client dynamic.Interface
	mapper *restmapper.DeferredDiscoveryRESTMapper
}

func newApplier(cfg *rest.Config) (*applier, error) {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("create a client: %w", err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("create a discovery client: %w", err)
	}
	return &applier{client: client, mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))}, nil
}

// apply applies the documents: CRDs first, then namespaces, because other documents may need them. Within each of these
// groups it keeps the given order.
func (a *applier) apply(ctx context.Context, docs []*unstructured.Unstructured) error {
	ordered := slices.Clone(docs)
	rank := func(u *unstructured.Unstructured) int {
		switch u.GetKind() {
		case crdKind:
			return 0
		case "Namespace":
			return 1
		default:
			return 2
		}
	}
	slices.SortStableFunc(ordered, func(x, y *unstructured.Unstructured) int { return rank(x) - rank(y) })
	for _, u := range ordered {
		if err := a.applyOne(ctx, u); err != nil {
			return fmt.Errorf("apply %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
		}
	}
	return nil
}

func (a *applier) applyOne(ctx context.Context, u *unstructured.Unstructured) error {
	mapping, err := a.mapping(ctx, u.GroupVersionKind())
	if err != nil {
		return err
	}
	var target dynamic.ResourceInterface = a.client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		namespace := u.GetNamespace()
		if namespace == "" {
			namespace = metav1.NamespaceDefault
		}
		target = a.client.Resource(mapping.Resource).Namespace(namespace)
	}
	if _, err := target.Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: fieldManager, Force: true}); err != nil {
		return err
	}
	if u.GetKind() == crdKind {
		return a.established(ctx, u.GetName())
	}
	return nil
}

// mapping returns the resource of a kind. If the kind is unknown, mapping retries the lookup for up to 5 s, because discovery
// lists the kind of a CRD only some time after the CRD is established, and there is no event for that.
func (a *applier) mapping(ctx context.Context, kind schema.GroupVersionKind) (*meta.RESTMapping, error) {
	var found *meta.RESTMapping
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 5*time.Second, true, func(context.Context) (bool, error) {
		found, last = a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if meta.IsNoMatchError(last) {
			a.mapper.Reset()
			return false, nil
		}
		return true, last
	})
	if err != nil {
		return nil, fmt.Errorf("find the resource of %s: %w", kind, errors.Join(last, context.Cause(ctx)))
	}
	return found, nil
}

// established waits until the condition Established of a CRD is true.
func (a *applier) established(ctx context.Context, name string) error {
	selector := fields.OneTermEqualSelector("metadata.name", name).String()
	client := a.client.Resource(crdResource)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return client.Watch(ctx, o)
		},
	}
	err := waitFor(ctx, lw, func(e watch.Event) (bool, error) {
		u, ok := e.Object.(*unstructured.Unstructured)
		if !ok {
			return false, nil
		}
		// status.conditions may be null, for which NestedSlice returns an error.
		found, _, err := unstructured.NestedFieldNoCopy(u.Object, "status", "conditions")
		if err != nil {
			return false, fmt.Errorf("read the conditions of the CRD: %w", err)
		}
		conditions, _ := found.([]any)
		return slices.ContainsFunc(conditions, func(c any) bool {
			m, ok := c.(map[string]any)
			return ok && m["type"] == "Established" && m["status"] == "True"
		}), nil
	})
	if err != nil {
		return fmt.Errorf("wait until the CRD is established: %w", err)
	}
	return nil
}
