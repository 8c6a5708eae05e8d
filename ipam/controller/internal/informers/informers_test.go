// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package informers

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientfeatures "k8s.io/client-go/features"
	featurestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"fixedip.io/fixedip/ipam/core/identity"
)

func TestMain(m *testing.M) {
	ctrllog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

func pod(name string) *corev1.Pod {
	p := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	p.Namespace, p.Name, p.ResourceVersion = "db", name, "7"
	p.Labels = map[string]string{"app": "mysql"}
	return p
}

// apiServer is an API server with three pods. The first page of a list has one pod and a continue token. The token
// has expired when the second page is requested, as if etcd had compacted that version.
type apiServer struct {
	// streams is true if the API server has the feature WatchList.
	streams bool

	mu sync.Mutex
	// requests are the requests so far: "stream", "watch", "page", "continued page" and "whole list".
	requests []string
}

var podNames = []string{"mysql-0", "mysql-1", "mysql-2"}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	kind := "whole list"
	switch {
	case q.Get("sendInitialEvents") == "true":
		kind = "stream"
	case q.Get("watch") != "":
		kind = "watch"
	case q.Get("continue") != "":
		kind = "continued page"
	case q.Get("limit") != "" && q.Get("limit") != "0":
		kind = "page"
	}
	s.mu.Lock()
	s.requests = append(s.requests, kind)
	s.mu.Unlock()

	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	fail := func(err *apierrors.StatusError) {
		err.ErrStatus.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		w.WriteHeader(int(err.ErrStatus.Code))
		_ = encoder.Encode(err.ErrStatus)
	}
	list := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	switch kind {
	case "stream":
		if !s.streams {
			fail(apierrors.NewBadRequest("sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"))
			return
		}
		for _, name := range podNames {
			_ = encoder.Encode(event("ADDED", pod(name)))
		}
		bookmark := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
		bookmark.ResourceVersion, bookmark.Annotations = "7", map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		_ = encoder.Encode(event("BOOKMARK", bookmark))
		fallthrough
	case "watch":
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return
	case "page":
		list.Items, list.Continue = []corev1.Pod{*pod(podNames[0])}, "next"
	case "continued page":
		fail(apierrors.NewResourceExpired("The provided continue parameter is too old"))
		return
	case "whole list":
		for _, name := range podNames {
			list.Items = append(list.Items, *pod(name))
		}
	}
	_ = encoder.Encode(list)
}

func event(kind string, object runtime.Object) metav1.WatchEvent {
	return metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Object: object}}
}

// TestInitialList checks that the cache is filled from an API server whose continue tokens expire. Finding C9.
func TestInitialList(t *testing.T) {
	for name, c := range map[string]struct {
		client, server bool
		want           []string
	}{
		"the list is streamed and needs no token":        {client: true, server: true, want: []string{"stream"}},
		"a server that cannot stream gets list requests": {client: true, want: []string{"stream", "page", "continued page", "whole list", "watch"}},
		"a list completes after its token has expired":   {server: true, want: []string{"page", "continued page", "whole list", "watch"}},
	} {
		t.Run(name, func(t *testing.T) {
			featurestesting.SetFeatureDuringTest(t, clientfeatures.WatchListClient, c.client)
			api := &apiServer{streams: c.server}
			server := httptest.NewServer(api)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			mapper := meta.NewDefaultRESTMapper(nil)
			mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
			o := Options(identity.Adoption{}, false)
			o.Scheme, o.Mapper = scheme.Scheme, mapper
			// The scheme has no CiliumNodes, and the server has only pods.
			for kind := range o.ByObject {
				if _, ok := kind.(*corev1.Pod); !ok {
					delete(o.ByObject, kind)
				}
			}
			pods, err := cache.New(&rest.Config{Host: server.URL}, o)
			if err != nil {
				t.Fatal(err)
			}
			var running sync.WaitGroup
			running.Go(func() { _ = pods.Start(ctx) })
			t.Cleanup(func() {
				cancel()
				running.Wait()
				server.CloseClientConnections()
				server.Close()
			})

			if !pods.WaitForCacheSync(ctx) {
				t.Fatal("the cache did not sync within a minute")
			}
			var got corev1.PodList
			if err := pods.List(ctx, &got); err != nil {
				t.Fatal(err)
			}
			slices.SortFunc(got.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
			want := []corev1.Pod{}
			for _, name := range podNames {
				p := pod(name)
				// The transform drops labels that no adoption rule reads. The type is not compared.
				p.TypeMeta, p.Labels = metav1.TypeMeta{}, nil
				want = append(want, *p)
			}
			for i := range got.Items {
				got.Items[i].TypeMeta = metav1.TypeMeta{}
			}
			if diff := cmp.Diff(want, got.Items); diff != "" {
				t.Errorf("pods (-want +got): %s", diff)
			}
			for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
				api.mu.Lock()
				requests := slices.Clone(api.requests)
				api.mu.Unlock()
				if slices.Equal(requests, c.want) {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("got requests %q, want %q", requests, c.want)
				}
			}
		})
	}
}

// TestTransforms checks which fields of bound pods, pods of DaemonSets, Nodes and CiliumEndpoints the cache keeps, and that a
// second transform changes nothing.
func TestTransforms(t *testing.T) {
	at := metav1.Unix(1, 0)
	full := metav1.ObjectMeta{
		Namespace: "db", Name: "mysql-0", UID: "uid", ResourceVersion: "7", Generation: 3, CreationTimestamp: at, DeletionTimestamp: &at,
		Labels:          map[string]string{"app": "mysql"},
		Annotations:     map[string]string{"fixedip.io/ips": "10.0.0.1", "cni.cilium.io/mac-address": "0a:00:00:00:00:01", "kubectl.kubernetes.io/restartedAt": "today"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql", UID: "owner"}},
		Finalizers:      []string{"example.com/a"},
		ManagedFields:   []metav1.ManagedFieldsEntry{{}},
	}
	bare := func(change func(*metav1.ObjectMeta)) metav1.ObjectMeta {
		m := *full.DeepCopy()
		m.Labels, m.Annotations, m.Finalizers, m.ManagedFields = nil, nil, nil, nil
		if change != nil {
			change(&m)
		}
		return m
	}
	withAnnotations := func(m *metav1.ObjectMeta) {
		m.Annotations = map[string]string{"fixedip.io/ips": "10.0.0.1", "cni.cilium.io/mac-address": "0a:00:00:00:00:01"}
	}
	byLabel := identity.Adoption{Selector: labels.Everything(), Schedulers: []string{"fixedip-scheduler"}}
	pinned := &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"node-1"}}},
	}}}}}
	status := corev1.PodStatus{Phase: corev1.PodRunning, HostIP: "172.16.0.1", StartTime: &at, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}}
	fullStatus := *status.DeepCopy()
	fullStatus.Message, fullStatus.ContainerStatuses = "long", []corev1.ContainerStatus{{Name: "main"}}
	for name, c := range map[string]struct {
		transform func(any) (any, error)
		of, want  any
	}{
		"pod": {
			podTransform(identity.Adoption{}),
			&corev1.Pod{ObjectMeta: full, Spec: corev1.PodSpec{NodeName: "node-1", HostNetwork: true, SchedulerName: "fixedip-scheduler", Containers: []corev1.Container{{Name: "main"}}, Affinity: pinned}, Status: fullStatus},
			&corev1.Pod{ObjectMeta: bare(withAnnotations), Spec: corev1.PodSpec{NodeName: "node-1", HostNetwork: true}, Status: status},
		},
		"pod of a DaemonSet before it is bound, and adoption by label": {
			podTransform(byLabel),
			&corev1.Pod{ObjectMeta: ofDaemonSet(full), Spec: corev1.PodSpec{SchedulerName: "fixedip-scheduler", Affinity: pinned}, Status: status},
			&corev1.Pod{
				ObjectMeta: ofDaemonSet(bare(func(m *metav1.ObjectMeta) { withAnnotations(m); m.Labels = full.Labels })),
				Spec:       corev1.PodSpec{SchedulerName: "fixedip-scheduler", Affinity: pinned}, Status: status,
			},
		},
		"node": {
			nodeTransform,
			&corev1.Node{ObjectMeta: full, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.0.0.0/24"}, Unschedulable: true, ProviderID: "cloud://1"}, Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceCPU: resource.MustParse("4")},
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse}, {Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: at, LastTransitionTime: at}},
			}},
			&corev1.Node{ObjectMeta: bare(func(m *metav1.ObjectMeta) {
				m.Labels, m.Annotations = full.Labels, map[string]string{"fixedip.io/ips": "10.0.0.1"}
			}), Spec: corev1.NodeSpec{PodCIDRs: []string{"10.0.0.0/24"}, Unschedulable: true}, Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110")},
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: at}},
			}},
		},
		"CiliumEndpoint": {
			endpointTransform,
			&ciliumv2.CiliumEndpoint{ObjectMeta: full, Status: ciliumv2.EndpointStatus{ID: 7, Networking: &ciliumv2.EndpointNetworking{Addressing: ciliumv2.AddressPairList{nil, {IPV4: "10.0.0.1"}}, NodeIP: "172.16.0.1"}}},
			&ciliumv2.CiliumEndpoint{ObjectMeta: bare(nil), Status: ciliumv2.EndpointStatus{Networking: &ciliumv2.EndpointNetworking{Addressing: ciliumv2.AddressPairList{nil, {IPV4: "10.0.0.1"}}, NodeIP: "172.16.0.1"}}},
		},
	} {
		got, err := c.transform(c.of)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, got, cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })); diff != "" {
			t.Errorf("%s (-want +got): %s", name, diff)
		}
		// client-go may transform an object more than once.
		if again, _ := c.transform(got); cmp.Diff(got, again, cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })) != "" {
			t.Errorf("%s: a second transform changed the object, want no change", name)
		}
		if other, err := c.transform(fmt.Stringer(nil)); other != any(fmt.Stringer(nil)) || err != nil {
			t.Errorf("%s: got object %v and error %v for an object of another type, want the same object", name, other, err)
		}
	}
}

func ofDaemonSet(m metav1.ObjectMeta) metav1.ObjectMeta {
	m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "exporter", UID: "owner", Controller: ptr.To(true)}}
	return m
}
