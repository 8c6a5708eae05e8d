// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package controllertest provides Stage for tests of controllers: a CiliumNode with the entries of three pods of a
// StatefulSet, a fake API server, caches that may differ from the API server, and a hook for changes during a write.
package controllertest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// Stage is a CiliumNode "n" with the entries of three pods of StatefulSet web in namespace db, and the clients of a
// controller.
type Stage struct {
	t *testing.T
	// API is the API server, and Cached the caches. Their objects are independent of each other.
	API, Cached client.WithWatch
	Ledger      *ledger.Ledger
	Writer      *ciliumpool.Writer
	Clock       *clocktesting.FakeClock
	Recorder    *events.FakeRecorder
	// mu guards WorkloadReads and Reads.
	mu sync.Mutex
	// Patches counts the patches of objects and of the status of CiliumNodes, but not those of the status of other objects.
	// WorkloadReads counts the calls of Live, and Reads the reads of CiliumNodes at the API server.
	Patches, WorkloadReads, Reads int
	// OnPatch is called before each patch that Patches counts; nil: nothing is called. If fail is not nil, the patch writes
	// nothing and returns fail. Otherwise after, which must not be nil, is called after the patch.
	OnPatch func() (after func(), fail error)
}

// Begin is the time of Clock in a new Stage.
var Begin = time.Unix(1_700_000_000, 0)

// Cooldown is the owner of a cooldown entry in a CiliumNode.
const Cooldown = "fixedip.io/cooldown"

// IP returns the address of pod web-i.
func IP(i int) string { return fmt.Sprintf("10.0.1.%d", 200+i) }

// Record returns the FixedIP of pod web-i. If deleted is true, its deletionTimestamp is one minute before Begin.
func Record(i int, deleted bool) *v1alpha1.FixedIP {
	f := &v1alpha1.FixedIP{
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: fmt.Sprintf("web-%d", i), UID: types.UID(fmt.Sprintf("record-%d", i)), Finalizers: []string{v1alpha1.Finalizer}, Annotations: map[string]string{v1alpha1.AnnotationUID: fmt.Sprintf("record-%d", i)}},
		Spec: v1alpha1.FixedIPSpec{
			IPs: []string{IP(i)}, NodeName: "n", PodName: fmt.Sprintf("web-%d", i), Reclaim: identity.DefaultReclaim(),
			Owner: v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "web-1"},
		},
		Status: v1alpha1.FixedIPStatus{PodUID: "pod"},
	}
	if deleted {
		f.DeletionTimestamp = &metav1.Time{Time: Begin.Add(-time.Minute)}
	}
	return f
}

// Pod returns pod web-i, bound to node n.
func Pod(i int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: fmt.Sprintf("web-%d", i), UID: types.UID(fmt.Sprintf("pod-%d", i))}, Spec: corev1.PodSpec{NodeName: "n"}}
}

// Indexes calls add for each index that the controller needs.
type Indexes func(add func(of client.Object, name string, fn client.IndexerFunc) error) error

// New returns a Stage. The API server contains the objects in api and the CiliumNode, and the caches contain the objects in
// cached. Ledger contains only the pool of the CiliumNode.
func New(t *testing.T, indexes Indexes, api, cached []client.Object) *Stage {
	t.Helper()
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	node := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "node"}}
	node.Spec.IPAM.PodCIDRs = []string{"10.0.1.0/24"}
	node.Spec.IPAM.Pool = ipamtypes.AllocationMap{"10.0.1.1": {}}
	for i := range 3 {
		node.Spec.IPAM.Pool[IP(i)] = ipamtypes.AllocationIP{Owner: fmt.Sprintf("db/web-%d", i), Resource: "db/StatefulSet/web"}
	}
	s := &Stage{t: t, Clock: clocktesting.NewFakeClock(Begin), Recorder: events.NewFakeRecorder(100)}
	build := func(objects []client.Object) *fake.ClientBuilder {
		b := fake.NewClientBuilder().WithScheme(kinds).WithObjects(objects...).WithStatusSubresource(&v1alpha1.FixedIP{}).
			WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} })
		_ = indexes(func(of client.Object, name string, fn client.IndexerFunc) error {
			b = b.WithIndex(of, name, fn)
			return nil
		})
		return b
	}
	s.Cached = build(cached).Build()
	s.API = build(append(api, node)).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if _, ok := obj.(*ciliumv2.CiliumNode); ok {
				s.mu.Lock()
				s.Reads++
				s.mu.Unlock()
			}
			return c.Get(ctx, key, obj, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			s.Patches++
			var fail error
			after := func() {}
			if s.OnPatch != nil {
				after, fail = s.OnPatch()
			}
			if fail != nil {
				return fail
			}
			defer after()
			return c.Patch(ctx, obj, patch, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, name string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			if _, ok := obj.(*ciliumv2.CiliumNode); !ok {
				return c.SubResource(name).Patch(ctx, obj, patch, opts...)
			}
			// s.API.Patch counts this patch. The fake API server has no status subresource for CiliumNodes.
			return s.API.Patch(ctx, obj, patch)
		},
	}).Build()
	l := ledger.New()
	l.SetNode(ciliumpool.FromCiliumNode(node))
	s.Ledger, s.Writer = l, ciliumpool.NewWriter(t.Context(), ciliumpool.New(s.API), l.Node)
	return s
}

// Get reads a StatefulSet from the caches. It ignores the kind, and returns nil without an error if there is no such
// StatefulSet.
func (s *Stage) Get(_ schema.GroupKind, namespace, name string) (*identity.Workload, error) {
	return workloadFrom(s.t.Context(), s.Cached, namespace, name)
}

// Controller has the type identity.Controllers. It always returns nil and false, because it knows no ReplicaSet.
func (*Stage) Controller(string, metav1.OwnerReference) (by *metav1.OwnerReference, known bool) {
	return nil, false
}

// Live is like Get, but reads from the API server, and counts the read in WorkloadReads.
func (s *Stage) Live(ctx context.Context, _ schema.GroupKind, namespace, name string) (*identity.Workload, error) {
	s.mu.Lock()
	s.WorkloadReads++
	s.mu.Unlock()
	return workloadFrom(ctx, s.API, namespace, name)
}

func workloadFrom(ctx context.Context, from client.Reader, namespace, name string) (*identity.Workload, error) {
	var sts appsv1.StatefulSet
	err := from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &sts)
	if err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return &identity.Workload{GroupKind: identity.StatefulSets, APIVersion: "apps/v1", Namespace: namespace, Name: name, UID: sts.UID, Template: sts.Spec.Template.Annotations, Replicas: sts.Spec.Replicas}, nil
}

// Owners returns the owners of the entries of IP(0), IP(1) and IP(2) in the CiliumNode, separated by spaces. The owner of a
// missing entry is empty.
func (s *Stage) Owners() string {
	s.t.Helper()
	var node ciliumv2.CiliumNode
	if err := s.API.Get(s.t.Context(), client.ObjectKey{Name: "n"}, &node); err != nil {
		s.t.Fatal(err)
	}
	var all []string
	for i := range 3 {
		all = append(all, node.Spec.IPAM.Pool[IP(i)].Owner)
	}
	return strings.Join(all, " ")
}

// Event reports whether a recorded event contains the reason. It discards the recorded events up to that event, or all
// of them if none contains the reason.
func (s *Stage) Event(reason string) bool {
	for {
		select {
		case e := <-s.Recorder.Events:
			if strings.Contains(e, reason) {
				return true
			}
		default:
			return false
		}
	}
}

// Objects returns its arguments.
func Objects(o ...client.Object) []client.Object { return o }
