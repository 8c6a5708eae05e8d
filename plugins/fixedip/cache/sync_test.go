// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"sync/atomic"
	"testing"
	"testing/synctest"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	toolscache "k8s.io/client-go/tools/cache"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/scheme"
)

// TestSyncOnlyInformer checks that waiting for the scheduler's informers, as the scheduler does before it is ready, also
// waits for the cache. Finding S12.
func TestSyncOnlyInformer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var nodes, records atomic.Bool
		c := &Cache{synced: map[string]toolscache.InformerSynced{"ciliumnodes": nodes.Load, "fixedips": records.Load}}
		f := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
		c.addSyncOnlyInformer(f)
		stop := make(chan struct{})
		f.Start(stop)
		var waited atomic.Bool
		done := make(chan struct{})
		go func() {
			defer close(done)
			for _, synced := range f.WaitForCacheSync(stop) {
				waited.Store(synced)
			}
		}()
		for _, seen := range []*atomic.Bool{&nodes, &records} {
			synctest.Wait()
			if waited.Load() {
				t.Errorf("WaitForCacheSync returned before all watches of the cache had synced: %v", c.Synced())
			}
			seen.Store(true)
		}
		<-done
		if !waited.Load() {
			t.Error("WaitForCacheSync reported that the informer has not synced, want synced")
		}
		close(stop)
		f.Shutdown()
	})
}

// TestMapper checks that newMapper maps the kinds CiliumNode and FixedIP, and no others, to the resources that the API
// server serves.
func TestMapper(t *testing.T) {
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	m := newMapper()
	got := map[string]meta.RESTScopeName{}
	for _, gv := range []schema.GroupVersion{ciliumv2.SchemeGroupVersion, v1alpha1.GroupVersion} {
		for kind := range kinds.KnownTypes(gv) {
			if mapping, err := m.RESTMapping(gv.WithKind(kind).GroupKind(), gv.Version); err == nil {
				got[mapping.Resource.String()] = mapping.Scope.Name()
			}
		}
	}
	want := map[string]meta.RESTScopeName{
		"cilium.io/v2, Resource=ciliumnodes":     meta.RESTScopeNameRoot,
		"fixedip.io/v1alpha1, Resource=fixedips": meta.RESTScopeNameNamespace,
	}
	if len(got) != len(want) {
		t.Errorf("got mappings %v, want %v", got, want)
	}
	for resource, scope := range want {
		if got[resource] != scope {
			t.Errorf("%s: got scope %q, want %q", resource, got[resource], scope)
		}
	}
}
