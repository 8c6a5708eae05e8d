// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"context"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// newMapper returns a mapper that knows the resources of the two kinds that the plugin reads. Asking the API server
// would make the start fail if it is not reachable, or if a CRD is not installed yet.
func newMapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper([]schema.GroupVersion{ciliumv2.SchemeGroupVersion, v1alpha1.GroupVersion})
	m.Add(ciliumv2.SchemeGroupVersion.WithKind(ciliumv2.CNKindDefinition), meta.RESTScopeRoot)
	m.Add(v1alpha1.GroupVersion.WithKind("FixedIP"), meta.RESTScopeNamespace)
	return m
}

const (
	// syncPoll is how often join looks whether the cache is ready.
	syncPoll = 100 * time.Millisecond
	// resync is when join's informer passes its objects, of which there are none, to its handlers again. Without a time,
	// tests with testing/synctest hang.
	resync = 24 * time.Hour
)

// join makes the scheduler wait for the cache as it waits for its own informers: until then it is not ready
// (sched-handler-sync of /readyz) and does not compete for the lease. A plugin cannot add a check to /readyz, but
// the factory takes informers of other clients. This one lists nothing, when the cache is ready. It is a real
// informer, so that every way of waiting for one, those of later versions of client-go too, waits for the cache.
func (c *Cache) join(f informers.SharedInformerFactory) {
	f.InformerFor(&v1alpha1.FixedIP{}, func(kubernetes.Interface, time.Duration) toolscache.SharedIndexInformer {
		return toolscache.NewSharedIndexInformer(&toolscache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
				err := wait.PollUntilContextCancel(ctx, syncPoll, true, func(context.Context) (bool, error) { return c.Ready(), nil })
				return &v1alpha1.FixedIPList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, err
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				if o.SendInitialEvents != nil {
					// The informer lists instead.
					return nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil)
				}
				return watch.NewFake(), nil
			},
		}, &v1alpha1.FixedIP{}, resync, nil)
	})
}
