// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package packed

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	cachetesting "k8s.io/client-go/tools/cache/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var created = metav1.NewTime(time.Date(2026, 11, 20, 10, 0, 0, 0, time.Local))

func metadata(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: "shop", Name: name, UID: types.UID(uuid.NewSHA1(uuid.Nil, []byte(name)).String()), CreationTimestamp: created,
		Annotations:     map[string]string{"fixedip.io/ips": "10.0.1.10"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-7d9c5b8f6", UID: "0b2f1c58-9f0e-4f6a-8a55-3f1a7d6c2e91", Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}},
	}
}

func pod(name, node string, ips ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metadata(name), Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodRunning, HostIP: "172.16.0.1", StartTime: &created}}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

func endpoint(name, nodeIP string, pairs ...*ciliumv2.AddressPair) *ciliumv2.CiliumEndpoint {
	e := &ciliumv2.CiliumEndpoint{ObjectMeta: metadata(name)}
	if nodeIP != "" {
		e.Status.Networking = &ciliumv2.EndpointNetworking{NodeIP: nodeIP, Addressing: pairs}
	}
	return e
}

// byNode is an index function. It returns the node name of a pod or of a FixedIP, and the node IP of a CiliumEndpoint.
func byNode(obj any) ([]string, error) {
	switch o := obj.(type) {
	case *corev1.Pod:
		return []string{o.Spec.NodeName}, nil
	case *v1alpha1.FixedIP:
		return []string{o.Spec.NodeName}, nil
	case *ciliumv2.CiliumEndpoint:
		if n := o.Status.Networking; n != nil {
			return []string{n.NodeIP}, nil
		}
		return nil, nil
	}
	return nil, fmt.Errorf("an index function got a %T", obj)
}

// withoutLabels is a transform that removes the labels.
func withoutLabels(obj any) (any, error) {
	if o, ok := obj.(client.Object); ok {
		o.SetLabels(nil)
	}
	return obj, nil
}

// newSource returns a source of objects, which is shut down after the informers that the test starts have ended: Shutdown
// keeps a lock, and a later list would wait forever for that lock.
func newSource(t *testing.T) *cachetesting.FakeControllerSource {
	source := cachetesting.NewFakeControllerSource()
	t.Cleanup(source.Shutdown)
	return source
}

// events is an event handler that records its calls.
type events struct {
	mu  sync.Mutex
	all []any
}

type (
	update  struct{ Before, After any }
	removal struct{ Of any }
)

func (e *events) add(event any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, event)
}

func (e *events) OnAdd(obj any, _ bool)      { e.add(obj) }
func (e *events) OnUpdate(before, after any) { e.add(update{before, after}) }
func (e *events) OnDelete(obj any)           { e.add(removal{obj}) }

// await waits until the handler was called a number of times, and returns the recorded calls.
func (e *events) await(t *testing.T, calls int) []any {
	t.Helper()
	for {
		e.mu.Lock()
		all := e.all
		e.mu.Unlock()
		if len(all) >= calls {
			return all
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("got %d events, want %d", len(all), calls)
		case <-time.After(time.Millisecond):
		}
	}
}

// TestInformer checks that readers and event handlers of an informer get the objects of the API server. It also
// checks that the store contains records of pods and CiliumEndpoints, and Nodes as objects.
func TestInformer(t *testing.T) {
	v4 := &ciliumv2.AddressPair{IPV4: "10.0.1.10", IPV6: "fd00::a"}
	for name, c := range map[string]struct {
		of            client.Object
		before, after client.Object
		node, next    string
		packed        bool
	}{
		"pods": {
			of: &corev1.Pod{}, before: pod("web-1", "node-1"), after: pod("web-1", "node-2", "10.0.1.10", "fd00::a"),
			node: "node-1", next: "node-2", packed: true,
		},
		"CiliumEndpoints": {
			of: &ciliumv2.CiliumEndpoint{}, before: endpoint("web-1", "172.16.0.1", v4, nil), after: endpoint("web-1", "172.16.0.2", v4),
			node: "172.16.0.1", next: "172.16.0.2", packed: true,
		},
		"CiliumEndpoints without addresses": {
			of: &ciliumv2.CiliumEndpoint{}, before: endpoint("web-1", "172.16.0.1"), after: endpoint("web-1", ""),
			node: "172.16.0.1", packed: true,
		},
		"another kind": {of: &corev1.Node{}, before: &corev1.Node{ObjectMeta: metadata("node-1")}, after: &corev1.Node{ObjectMeta: metadata("node-1"), Spec: corev1.NodeSpec{Unschedulable: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			source := newSource(t)
			indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
			i := NewInformer(source, c.of, 0, indexers)
			if err := i.SetTransform(withoutLabels); err != nil {
				t.Fatal(err)
			}
			if c.packed {
				if err := i.AddIndexers(cache.Indexers{"node": byNode}); err != nil {
					t.Fatal(err)
				}
			}
			var seen events
			if _, err := i.AddEventHandler(&seen); err != nil {
				t.Fatal(err)
			}
			var running sync.WaitGroup
			running.Go(func() { i.RunWithContext(t.Context()) })
			t.Cleanup(running.Wait)

			expect := func(call int, want any, object client.Object) {
				t.Helper()
				versions := cmpopts.IgnoreFields(metav1.ObjectMeta{}, "ResourceVersion")
				if diff := cmp.Diff(want, seen.await(t, call)[call-1], versions); diff != "" {
					t.Errorf("event %d (-want +got):\n%s", call, diff)
				}
				stored, exists, err := i.GetIndexer().GetByKey(cache.MetaObjectToName(c.before).String())
				if err != nil || exists != (object != nil) {
					t.Fatalf("GetByKey: exists %v, error %v; want exists %v", exists, err, object != nil)
				}
				lists := map[string][]any{"List": i.GetStore().List()}
				lists["ByIndex of the namespace"], err = i.GetIndexer().ByIndex(cache.NamespaceIndex, "shop")
				if err != nil {
					t.Fatal(err)
				}
				// "sho" is a prefix of the namespace "shop".
				if other, err := i.GetIndexer().ByIndex(cache.NamespaceIndex, "sho"); err != nil || len(other) > 0 {
					t.Errorf("ByIndex of another namespace: got %v, error %v; want nothing", other, err)
				}
				if c.node != "" && object != nil {
					if lists["Index of the node"], err = i.GetIndexer().Index("node", object); err != nil {
						t.Fatal(err)
					}
					if values, _ := byNode(object); len(values) == 0 {
						delete(lists, "Index of the node")
					}
				}
				var all []any
				if object != nil {
					all = []any{object}
					if diff := cmp.Diff(any(object), stored, versions); diff != "" {
						t.Errorf("GetByKey (-want +got):\n%s", diff)
					}
				}
				for of, list := range lists {
					if diff := cmp.Diff(all, list, versions, cmpopts.EquateEmpty()); diff != "" {
						t.Errorf("%s (-want +got):\n%s", of, diff)
					}
				}
			}

			labelled := c.before.DeepCopyObject().(client.Object)
			labelled.SetLabels(map[string]string{"app": "web"})
			source.Add(labelled)
			expect(1, c.before, c.before)
			source.Modify(c.after.DeepCopyObject())
			expect(2, update{c.before, c.after}, c.after)
			if _, isRecord := stored(i, c.after).(Record); isRecord != c.packed {
				t.Errorf("the store contains a record: %v, want %v", isRecord, c.packed)
			}
			source.DeleteDropWatch(c.after.DeepCopyObject())
			source.ResetWatch()
			// The watch has missed the deletion; the next list shows it.
			expect(3, removal{cache.DeletedFinalStateUnknown{Key: "shop/" + c.before.GetName(), Obj: c.after}}, nil)
		})
	}
}

// TestFieldIndex checks that an index by field of controller-runtime finds objects in all namespaces, contains each object
// once, and refuses a list of one namespace.
func TestFieldIndex(t *testing.T) {
	for _, of := range []client.Object{&corev1.Pod{}, &v1alpha1.FixedIP{}} {
		object := of.DeepCopyObject().(client.Object)
		object.SetNamespace("shop")
		object.SetName("web-0")
		object.SetLabels(map[string]string{"app": "web"})
		source := newSource(t)
		source.Add(object)
		i := NewInformer(source, of, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		// controller-runtime adds such an index for IndexField("app").
		byApp := func(obj any) ([]string, error) {
			o := obj.(client.Object)
			return []string{o.GetNamespace() + "/" + o.GetLabels()["app"], allNamespaces + o.GetLabels()["app"]}, nil
		}
		if err := i.AddIndexers(cache.Indexers{"field:app": byApp}); err != nil {
			t.Fatal(err)
		}
		var running sync.WaitGroup
		running.Go(func() { i.RunWithContext(t.Context()) })
		t.Cleanup(running.Wait)
		if !cache.WaitForCacheSync(t.Context().Done(), i.HasSynced) {
			t.Fatal("the informer did not sync")
		}
		found, err := i.GetIndexer().ByIndex("field:app", allNamespaces+"web")
		if err != nil || len(found) != 1 || found[0].(client.Object).GetName() != "web-0" {
			t.Errorf("%T: got %v, error %v; want web-0", of, found, err)
		}
		if got := i.GetIndexer().ListIndexFuncValues("field:app"); !slices.Equal(got, []string{allNamespaces + "web"}) {
			t.Errorf("%T: got values %v of the index, want only %sweb", of, got, allNamespaces)
		}
		if found, err := i.GetIndexer().ByIndex("field:app", "shop/web"); err == nil {
			t.Errorf("%T: got %v for one namespace, want an error", of, found)
		}
	}
}

// stored returns the value that the store of client-go contains for an object.
func stored(i cache.SharedIndexInformer, of client.Object) any {
	obj, _, _ := i.(*informer).store.GetByKey(cache.MetaObjectToName(of).String())
	return obj
}

// BenchmarkStore reports the memory that an informer needs for each object. Each informer is created with indexes by
// namespace and node.
func BenchmarkStore(b *testing.B) {
	const objects = 20_000
	for _, kind := range []struct {
		name string
		of   apiruntime.Object
		make func(i int) apiruntime.Object
	}{
		{"pod", &corev1.Pod{}, func(i int) apiruntime.Object {
			p := pod(fmt.Sprintf("web-7d9c5b8f6-%05d", i), fmt.Sprintf("node-%d", i/30), fmt.Sprintf("10.1.%d.%d", i/250, i%250))
			data, _ := p.Marshal()
			var separate corev1.Pod
			_ = separate.Unmarshal(data) // as from a watch: no string is shared
			return &separate
		}},
		{"CiliumEndpoint", &ciliumv2.CiliumEndpoint{}, func(i int) apiruntime.Object {
			e := endpoint(fmt.Sprintf("web-7d9c5b8f6-%05d", i), fmt.Sprintf("172.16.%d.%d", i/7500, i/30%250), &ciliumv2.AddressPair{IPV4: fmt.Sprintf("10.1.%d.%d", i/250, i%250)})
			r, _ := packEndpoint(e)
			return r.Unpack()
		}},
		{"FixedIP", &v1alpha1.FixedIP{}, func(i int) apiruntime.Object { return decodedFixedIP(i) }},
	} {
		for _, way := range []struct {
			name string
			make func(cache.ListerWatcher, apiruntime.Object, time.Duration, cache.Indexers) cache.SharedIndexInformer
		}{{"packed", NewInformer}, {"as objects", cache.NewSharedIndexInformer}} {
			b.Run(kind.name+" "+way.name, func(b *testing.B) {
				for b.Loop() {
					indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc, "node": byNode}
					i := way.make(&cache.ListWatch{}, kind.of, 0, indexers)
					before := live()
					for n := range objects {
						obj := kind.make(n)
						if p, ok := i.(*informer); ok {
							packed, _ := pack(obj)
							key, _ := keyOf(packed)
							if err := p.store.put(key, packed, nil, obj); err != nil {
								b.Fatal(err)
							}
						} else if err := i.GetStore().Add(obj); err != nil {
							b.Fatal(err)
						}
					}
					b.ReportMetric(float64(live()-before)/objects, "B/object")
					runtime.KeepAlive(i)
				}
			})
		}
	}
}

// live returns the size of the live heap in bytes.
func live() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
