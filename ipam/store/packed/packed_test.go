package packed

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var at = metav1.NewTime(time.Unix(1795000000, 0))

func metaOf(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: "db", Name: name, UID: "0f8fad5b-d9cb-469f-a165-70867728950e", ResourceVersion: "1234567", Generation: 3,
		CreationTimestamp: at, DeletionTimestamp: &at, DeletionGracePeriodSeconds: ptr.To[int64](0),
		Annotations: map[string]string{"fixedip.io/enabled": "true", "empty": ""}, Labels: map[string]string{}, Finalizers: []string{},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql", UID: "not-a-uuid", Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(false)}},
	}
}

// What was packed comes back as it was, nil and empty told apart.
func TestRoundTrip(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metaOf("mysql-0"), Spec: corev1.PodSpec{NodeName: "node-1", HostNetwork: true, Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: "In", Values: []string{"node-1"}}}}}},
	}}}}
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, HostIP: "172.16.0.1", StartTime: &at, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}}
	node := &corev1.Node{ObjectMeta: metaOf("node-1")}
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceCPU: resource.MustParse("1500m")}
	cn := &ciliumv2.CiliumNode{ObjectMeta: metaOf("node-1")}
	cn.ManagedFields = []metav1.ManagedFieldsEntry{{}}
	cn.Spec.IPAM.PodCIDRs = []string{"10.0.0.0/24"}
	cn.Spec.IPAM.Pool = ipamtypes.AllocationMap{"10.0.0.1": {}, "10.0.0.254": {Owner: "db/mysql-0", Resource: "db/StatefulSet/mysql"}}
	cn.Status.IPAM.ReleaseIPs = map[string]ipamtypes.IPReleaseStatus{}
	cep := &ciliumv2.CiliumEndpoint{ObjectMeta: metaOf("mysql-0")}
	cep.Status.Networking = &ciliumv2.EndpointNetworking{Addressing: ciliumv2.AddressPairList{nil, {IPV4: "10.0.0.1"}}, NodeIP: "172.16.0.1"}
	record := &v1alpha1.FixedIP{ObjectMeta: metaOf("mysql-0")}
	record.Spec = v1alpha1.FixedIPSpec{IPs: []string{"10.0.0.1"}, PodName: "mysql-0", Reclaim: v1alpha1.ReclaimPolicy{WhenDeleted: v1alpha1.Retain, TTL: metav1.Duration{Duration: time.Minute}}}
	record.Status = v1alpha1.FixedIPStatus{ExpiresAt: &at, Conditions: []metav1.Condition{{Type: "Projected", Status: "True", LastTransitionTime: at}}}
	for _, o := range []client.Object{pod, node, cn, cep, record, &corev1.Pod{}} {
		c := codecOf(o)
		packed, err := c.pack(o)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(o, c.unpack(packed).(client.Object)); diff != "" {
			t.Errorf("%T (-packed +unpacked): %s", o, diff)
		}
		if m := packed.GetObjectMeta(); m.GetName() != o.GetName() || m.GetNamespace() != o.GetNamespace() || m.GetResourceVersion() != o.GetResourceVersion() {
			t.Errorf("%T is known as %s/%s at %s", o, m.GetNamespace(), m.GetName(), m.GetResourceVersion())
		}
	}
	if _, err := codecOf(pod).pack(node); err == nil {
		t.Error("a Node was packed as a Pod")
	}
}

// Whatever a string looks like, it is the same afterwards.
func TestStrings(t *testing.T) {
	same := func(s string, once bool) bool {
		r := &reader{string(appendString(nil, s, once))}
		return r.string() == s && r.rest == ""
	}
	for _, s := range []string{
		"", "0", "00", "007", "+1", "-1", "1e3", "18446744073709551616", "72057594037927935", "72057594037927936", "1.2.3.4", "01.2.3.4", "1.2.3.4.5", "255.255.255.255", "::ffff:1.2.3.4", "fd00::1",
		"0f8fad5b-d9cb-469f-a165-70867728950e", "0F8FAD5B-D9CB-469F-A165-70867728950E", "0f8fad5b-d9cb-469f-a165-70867728950g", "0f8fad5bd-9cb-469f-a165-70867728950e",
	} {
		if !same(s, false) || !same(s, true) {
			t.Errorf("%q is changed", s)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.StringMatching(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), rapid.StringMatching(`[0-9]{1,20}`), rapid.StringMatching(`[0-9]{1,3}(\.[0-9]{1,3}){3}`)).Draw(t, "s")
		if !same(s, false) {
			t.Fatalf("%q is changed", s)
		}
	})
}

// apiServer has pods, which it lists in pages, and tells of changes.
type apiServer struct {
	mu      sync.Mutex
	pods    []corev1.Pod
	watches *watch.FakeWatcher
	// limits are those of the lists that were asked for.
	limits []int64
	// fail is the answer to the list that it counts down to.
	fail int
}

func (s *apiServer) List(o metav1.ListOptions) (runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limits = append(s.limits, o.Limit)
	if s.fail--; s.fail == 0 {
		return nil, errors.New("gone")
	}
	first, _ := strconv.Atoi(o.Continue)
	end := min(first+int(o.Limit), len(s.pods))
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: s.pods[first:end]}
	if end < len(s.pods) {
		list.Continue = strconv.Itoa(end)
	}
	return list, nil
}

func (s *apiServer) Watch(metav1.ListOptions) (watch.Interface, error) { return s.watches, nil }

func pod(namespace, name, node string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: "1", Labels: map[string]string{"a": "b"}}}
	p.Spec.NodeName = node
	return p
}

// An informer that packs shows what one that does not would show: to handlers, by keys and by indexes,
// with the values for namespaces that controller-runtime asks for.
func TestInformer(t *testing.T) {
	const many = pageSize + 3
	api := &apiServer{watches: watch.NewFake(), fail: 2}
	for i := range many {
		api.pods = append(api.pods, pod([]string{"x", "y"}[i%2], fmt.Sprintf("p-%d", i), fmt.Sprintf("node-%d", i%5)))
	}
	i := NewInformer(toolscache.ToListerWatcherWithContext(&toolscache.ListWatch{ListFunc: api.List, WatchFunc: api.Watch}).(toolscache.ListerWatcher), &corev1.Pod{}, 0, nil)
	// As a transform of the controller does.
	if err := i.SetTransform(func(obj any) (any, error) {
		p := obj.(*corev1.Pod)
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, ResourceVersion: p.ResourceVersion}, Spec: p.Spec}, nil
	}); err != nil {
		t.Fatal(err)
	}
	const byNode = fieldIndex + "node"
	// As controller-runtime makes an index over a field.
	err := i.AddIndexers(toolscache.Indexers{byNode: func(obj any) ([]string, error) {
		p := obj.(*corev1.Pod)
		return []string{p.Namespace + "/" + p.Spec.NodeName, allNamespaces + p.Spec.NodeName}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	told := map[string]string{}
	tell := func(what string, obj any) {
		mu.Lock()
		defer mu.Unlock()
		told[obj.(*corev1.Pod).Name] = what + " " + obj.(*corev1.Pod).Spec.NodeName
	}
	if _, err := i.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { tell("came", obj) },
		UpdateFunc: func(before, after any) { tell("was on "+before.(*corev1.Pod).Spec.NodeName+" and is on", after) },
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			tell("went", obj)
		},
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() { i.RunWithContext(ctx) })
	until := func(what string, so func() bool) {
		t.Helper()
		if err := wait.PollUntilContextCancel(ctx, time.Millisecond, true, func(context.Context) (bool, error) { return so(), nil }); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	tells := func(name, what string) func() bool {
		return func() bool { mu.Lock(); defer mu.Unlock(); return told[name] == what }
	}
	until("wait for all pods", func() bool { mu.Lock(); defer mu.Unlock(); return len(told) == many })
	if slices.ContainsFunc(api.limits, func(l int64) bool { return l != pageSize }) || len(api.limits) != 4 {
		t.Errorf("lists of %v were asked for: two pages, the second of which fails once, are four of %d", api.limits, pageSize)
	}

	found, exists, err := i.GetIndexer().GetByKey("x/p-0")
	want := pod("x", "p-0", "node-0")
	want.Labels = nil
	if diff := cmp.Diff(&want, found); diff != "" || !exists || err != nil {
		t.Errorf("by key: %v, %v (-want +got): %s", exists, err, diff)
	}
	if _, exists, _ := i.GetIndexer().GetByKey("x/none"); exists {
		t.Error("a pod is found that is not there")
	}
	if all := i.GetStore().List(); len(all) != many || reflect.TypeOf(all[0]) != reflect.TypeFor[*corev1.Pod]() {
		t.Errorf("%d pods are listed", len(all))
	}
	count := func(index, value string, namespaces ...string) {
		t.Helper()
		found, err := i.GetIndexer().ByIndex(index, value)
		if err != nil {
			t.Fatal(err)
		}
		expected := slices.DeleteFunc(slices.Clone(api.pods), func(p corev1.Pod) bool {
			return !slices.Contains(namespaces, p.Namespace) || index == byNode && p.Spec.NodeName != "node-1"
		})
		if len(found) != len(expected) || len(found) == 0 {
			t.Errorf("%d pods have %s %s, want %d", len(found), index, value, len(expected))
		}
		for _, obj := range found {
			values, err := i.GetIndexer().GetIndexers()[byNode](obj)
			if err != nil || index == byNode && !slices.Contains(values, value) {
				t.Errorf("pod %s has the values %v in index %s, and was found by %s", obj.(*corev1.Pod).Name, values, index, value)
			}
		}
	}
	count(byNode, allNamespaces+"node-1", "x", "y")
	count(byNode, "y/node-1", "y")
	count(toolscache.NamespaceIndex, "x", "x")

	moved := pod("x", "p-0", "node-9")
	moved.ResourceVersion = "8"
	api.watches.Modify(&moved)
	until("wait for a pod to move", tells("p-0", "was on node-0 and is on node-9"))
	if found, err := i.GetIndexer().ByIndex(byNode, allNamespaces+"node-9"); err != nil || len(found) != 1 {
		t.Errorf("%d pods are on the node that one has moved to: %v", len(found), err)
	}
	api.watches.Delete(&moved)
	until("wait for a pod to go", tells("p-0", "went node-9"))
	// What is missing when all are listed anew has gone, too.
	api.mu.Lock()
	api.pods = api.pods[2:]
	before := api.watches
	api.watches = watch.NewFake()
	api.mu.Unlock()
	before.Error(&metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: 410})
	until("wait for a pod to be missed", tells("p-1", "went node-1"))
	cancel()
	running.Wait()
}
