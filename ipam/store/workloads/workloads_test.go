// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package workloads

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/core/identity"
)

type fields = map[string]any

func object(apiVersion, kind, name string, spec fields, change ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: fields{"apiVersion": apiVersion, "kind": kind, "metadata": fields{"namespace": "db", "name": name, "uid": "uid-" + name}, "spec": spec}}
	for _, c := range change {
		c(o)
	}
	return o
}

// TestDecode checks which fields decode reads from an unstructured workload: those at the paths of StatefulSet and
// Deployment, the surge of other kinds, and reserveOrdinals of OpenKruise.
func TestDecode(t *testing.T) {
	for name, c := range map[string]struct {
		spec fields
		want func(*identity.Workload)
	}{
		"an empty object": {nil, func(*identity.Workload) {}},
		"replicas, template and ordinals": {
			fields{"replicas": int64(3), "template": fields{"metadata": fields{"annotations": fields{"a": "b"}}}, "ordinals": fields{"start": int64(5)}},
			func(w *identity.Workload) {
				w.Replicas, w.Template, w.FirstOrdinal = ptr.To[int32](3), map[string]string{"a": "b"}, 5
			}},
		"host network": {
			fields{"template": fields{"spec": fields{"hostNetwork": true}}}, func(w *identity.Workload) { w.HostNetwork = true }},
		"surge of a Deployment": {
			fields{"replicas": int64(3), "strategy": fields{"rollingUpdate": fields{"maxSurge": "25%"}}}, func(w *identity.Workload) { w.Replicas, w.Surge = ptr.To[int32](3), 1 }},
		"surge of a Rollout": {
			fields{"replicas": int64(3), "strategy": fields{"canary": fields{"maxSurge": int64(2)}}}, func(w *identity.Workload) { w.Replicas, w.Surge = ptr.To[int32](3), 2 }},
		"surge of a CloneSet": {
			fields{"replicas": int64(8), "updateStrategy": fields{"maxSurge": "50%"}}, func(w *identity.Workload) { w.Replicas, w.Surge = ptr.To[int32](8), 4 }},
		"numbers of more than 32 bits": {
			fields{"replicas": int64(1) << 32, "ordinals": fields{"start": int64(1) << 31}, "strategy": fields{"rollingUpdate": fields{"maxSurge": int64(1)<<32 + 5}}}, func(w *identity.Workload) { w.Surge = math.MaxInt32 }},
		"a percentage that gives more than 32 bits": {
			fields{"replicas": int64(1000000), "strategy": fields{"rollingUpdate": fields{"maxSurge": "1000000%"}}}, func(w *identity.Workload) { w.Replicas, w.Surge = ptr.To[int32](1000000), math.MaxInt32 }},
		"reserved ordinals": {
			fields{"replicas": int64(3), "reserveOrdinals": []any{int64(7), "2-4", int64(1), "3-5"}}, func(w *identity.Workload) {
				w.Replicas, w.Reserved = ptr.To[int32](3), []identity.OrdinalRange{{First: 1, Last: 1}, {First: 2, Last: 5}, {First: 7, Last: 7}}
			}},
		"invalid reserved ordinals": {
			fields{"replicas": int64(3), "reserveOrdinals": []any{int64(1), "odd"}}, func(w *identity.Workload) { w.Replicas, w.Uncounted = ptr.To[int32](3), true }},
		"reserved ordinals that are not a list": {
			fields{"replicas": int64(3), "reserveOrdinals": int64(1)}, func(w *identity.Workload) { w.Replicas, w.Uncounted = ptr.To[int32](3), true }},
		"negative numbers": {
			fields{"replicas": int64(-1), "ordinals": fields{"start": int64(-1)}, "strategy": fields{"rollingUpdate": fields{"maxSurge": "-10%"}}}, func(*identity.Workload) {}},
		"fields of other types": {
			fields{"replicas": "many", "ordinals": "none", "strategy": fields{"rollingUpdate": fields{"maxSurge": "much"}}, "template": []any{}}, func(*identity.Workload) {}},
	} {
		want := identity.Workload{GroupKind: schema.GroupKind{Group: "a.b", Kind: "Thing"}, APIVersion: "a.b/v1", Namespace: "db", Name: "web", UID: "uid-web"}
		c.want(&want)
		got, err := decode(object("a.b/v1", "Thing", "web", c.spec))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got.workload); diff != "" {
			t.Errorf("%s: workload (-want +got): %s", name, diff)
		}
	}
}

// late is a RESTMapper that maps no kind until installed is true.
type late struct {
	meta.RESTMapper
	installed *atomic.Bool
}

func (l late) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if !l.installed.Load() {
		return nil, &meta.NoKindMatchError{GroupKind: gk}
	}
	return l.RESTMapper.RESTMapping(gk, versions...)
}

// TestWatchForControllers checks that a kind that is watched only for Controller stays unknown to Get and Live, and calls no
// handlers.
func TestWatchForControllers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	gvk := appsv1.SchemeGroupVersion.WithKind("ReplicaSet")
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{gvk.GroupVersion()})
	mapper.Add(gvk, meta.RESTScopeNamespace)
	web := object("apps/v1", "ReplicaSet", "web-5d", nil, func(o *unstructured.Unstructured) {
		o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "uid-web", Controller: ptr.To(true)}})
	})
	s := New(fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{appsv1.SchemeGroupVersion.WithResource("replicasets"): "ReplicaSetList"}, web), mapper)
	s.WatchForControllers(gvk.GroupKind())
	s.AddHandler(func(_, after *identity.Workload) { t.Errorf("the handler is called for %v", after) })
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Start(ctx) }()
	err := wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(context.Context) (bool, error) {
		by, seen := s.Controller("db", metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-5d", UID: "uid-web-5d"})
		return seen && by != nil && by.UID == "uid-web", nil
	})
	if err != nil {
		t.Errorf("waiting until the controller of the ReplicaSet is known: %v", err)
	}
	if w, err := s.Get(gvk.GroupKind(), "db", "web-5d"); w != nil || !errors.Is(err, ErrUnknown) {
		t.Errorf("Get: got %v, error %v; want %v", w, err, ErrUnknown)
	}
	if w, err := s.Live(ctx, gvk.GroupKind(), "db", "web-5d"); w != nil || !errors.Is(err, ErrUnknown) {
		t.Errorf("Live: got %v, error %v; want %v", w, err, ErrUnknown)
	}
	cancel()
	<-done
}

// TestKindInstalledLater checks that the workloads of a kind whose API is not installed are unknown, and not deleted, and
// that after the installation the Store finds workloads and notices their deletion.
func TestKindInstalledLater(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	gvk := schema.GroupVersionKind{Group: "a.b", Version: "v1", Kind: "Thing"}
	things := schema.GroupVersionResource{Group: "a.b", Version: "v1", Resource: "things"}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{gvk.GroupVersion()})
	mapper.Add(gvk, meta.RESTScopeNamespace)
	web := object("a.b/v1", "Thing", "web", nil, func(o *unstructured.Unstructured) {
		o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "c.d/v1", Kind: "Operator", Name: "top", UID: "uid-top", Controller: ptr.To(true)}})
	})
	api := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{things: "ThingList"}, web)
	var installed atomic.Bool
	s := New(api, late{mapper, &installed}, gvk.GroupKind())
	notified := make(chan string, 10)
	s.AddHandler(func(before, after *identity.Workload) {
		switch {
		case before == nil:
			notified <- "created " + after.Resource()
		case after == nil:
			notified <- "deleted " + before.Resource()
		}
	})
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Start(ctx) }()
	if w, err := s.Get(gvk.GroupKind(), "db", "web"); w != nil || !errors.Is(err, ErrUnknown) {
		t.Errorf("Get before the installation: got %v, error %v; want %v", w, err, ErrUnknown)
	}
	installed.Store(true)
	until := func(what string, condition func(w *identity.Workload, err error) bool) {
		t.Helper()
		err := wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(context.Context) (bool, error) { return condition(s.Get(gvk.GroupKind(), "db", "web")), nil })
		if err != nil {
			t.Fatalf("waiting until the workload is %s: %v", what, err)
		}
	}
	until("found", func(w *identity.Workload, err error) bool {
		if w == nil && !errors.Is(err, ErrUnknown) {
			t.Fatalf("Get before the workload is listed: got %v, error %v; want %v", w, err, ErrUnknown)
		}
		return w != nil && err == nil
	})
	by, seen := s.Controller("db", metav1.OwnerReference{APIVersion: "a.b/v1", Kind: "Thing", Name: "web", UID: "uid-web"})
	if !seen || by == nil || by.UID != "uid-top" {
		t.Errorf("Controller: got %v, known %v; want uid-top, known", by, seen)
	}
	if by, seen := s.Controller("db", metav1.OwnerReference{APIVersion: "a.b/v1", Kind: "Thing", Name: "web", UID: "before"}); seen {
		t.Errorf("Controller of a workload with another UID: got %v, known; want unknown", by)
	}
	if w, err := s.Live(ctx, gvk.GroupKind(), "db", "web"); err != nil || w == nil || w.UID != "uid-web" {
		t.Errorf("Live: got %v, error %v; want the workload", w, err)
	}
	if err := api.Resource(things).Namespace("db").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until("deleted", func(w *identity.Workload, err error) bool { return w == nil && err == nil })
	if w, err := s.Live(ctx, gvk.GroupKind(), "db", "web"); w != nil || err != nil {
		t.Errorf("Live of a deleted workload: got %v, error %v; want nil", w, err)
	}
	for _, want := range []string{"created db/Thing.a.b/web", "deleted db/Thing.a.b/web"} {
		select {
		case got := <-notified:
			if got != want {
				t.Errorf("handler called for %q, want %q", got, want)
			}
		case <-ctx.Done():
			t.Fatalf("handler not called for %q in time", want)
		}
	}
	cancel()
	<-done
}

// TestLiveWithSharedInformer checks that Live reads workloads from the API server even if another component runs their
// informer.
func TestLiveWithSharedInformer(t *testing.T) {
	gvk := schema.GroupVersionKind{Group: "a.b", Version: "v1", Kind: "Thing"}
	things := schema.GroupVersionResource{Group: "a.b", Version: "v1", Resource: "things"}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{gvk.GroupVersion()})
	mapper.Add(gvk, meta.RESTScopeNamespace)
	web := object("a.b/v1", "Thing", "web", nil)
	api := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{things: "ThingList"}, web)
	shared := toolscache.NewSharedIndexInformer(&toolscache.ListWatch{}, web, 0, toolscache.Indexers{})
	cached := web.DeepCopy()
	cached.SetUID("uid-cached")
	if err := shared.GetIndexer().Add(cached); err != nil {
		t.Fatal(err)
	}
	s := New(api, mapper, gvk.GroupKind())
	if err := s.UseInformer(gvk.GroupKind(), shared); err != nil {
		t.Fatal(err)
	}
	if w, err := s.Live(t.Context(), gvk.GroupKind(), "db", "web"); err != nil || w == nil || w.UID != "uid-web" {
		t.Errorf("Live: got %v, error %v; want the workload with UID uid-web of the API server", w, err)
	}
}

// TestLiveNotFound checks that a workload counts as deleted after a 404 about the object, and as unknown after a 404
// because the API server does not serve the resource (finding C13 in docs/project/findings.md).
func TestLiveNotFound(t *testing.T) {
	gvk := schema.GroupVersionKind{Group: "a.b", Version: "v1", Kind: "Thing"}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{gvk.GroupVersion()})
	mapper.Add(gvk, meta.RESTScopeNamespace)
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		mapper  meta.RESTMapper
		gone    bool
		err     error
	}{
		"the object does not exist": {handler: func(w http.ResponseWriter, _ *http.Request) {
			status := apierrors.NewNotFound(schema.GroupResource{Group: "a.b", Resource: "things"}, "web").Status()
			status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(status)
		}, gone: true},
		"the resource is not served":           {handler: http.NotFound, err: ErrUnknown},
		"discovery does not know the resource": {handler: http.NotFound, mapper: meta.NewDefaultRESTMapper(nil), err: ErrUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(c.handler)
			defer server.Close()
			api, err := dynamic.NewForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			of := c.mapper
			if of == nil {
				of = mapper
			}
			s := New(api, of, gvk.GroupKind())
			if err := s.UseInformer(gvk.GroupKind(), toolscache.NewSharedIndexInformer(&toolscache.ListWatch{}, object("a.b/v1", "Thing", "web", nil), 0, toolscache.Indexers{})); err != nil {
				t.Fatal(err)
			}
			if err := s.informers[gvk.GroupKind()].indexer.Add(object("a.b/v1", "Thing", "web", nil)); err != nil {
				t.Fatal(err)
			}
			w, err := s.Live(t.Context(), gvk.GroupKind(), "db", "web")
			if w != nil || !errors.Is(err, c.err) || (err == nil) != c.gone {
				t.Errorf("Live: got %v, error %v; want nil, error %v", w, err, c.err)
			}
		})
	}
}
