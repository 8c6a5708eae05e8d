// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

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
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// stage is a node with the entries of three pods of StatefulSet web, as the API server has it and as
// the caches do. What happens in between is up to the test.
type stage struct {
	t           *testing.T
	cached, api client.WithWatch
	ledger      *ledger.Ledger
	clock       *clocktesting.FakeClock
	recorder    *events.FakeRecorder
	// mu guards looks, those at workloads, and reads, those of the CiliumNode.
	mu                    sync.Mutex
	patches, looks, reads int
	// onPatch is asked before a CiliumNode is patched, and then called after it.
	onPatch func() (after func(), fail error)
}

var begin = time.Unix(1_700_000_000, 0)

func fixed(i int) string { return fmt.Sprintf("10.0.1.%d", 200+i) }

func podOf(i int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: fmt.Sprintf("web-%d", i), UID: types.UID(fmt.Sprintf("pod-%d", i))}, Spec: corev1.PodSpec{NodeName: "n"}}
}

// newStage has the given objects at the API server and in the caches.
func newStage(t *testing.T, api, cached []client.Object) *stage {
	t.Helper()
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	node := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "node"}}
	node.Spec.IPAM.PodCIDRs = []string{"10.0.1.0/24"}
	node.Spec.IPAM.Pool = ipamtypes.AllocationMap{"10.0.1.1": {}}
	for i := range 3 {
		node.Spec.IPAM.Pool[fixed(i)] = ipamtypes.AllocationIP{Owner: fmt.Sprintf("db/web-%d", i), Resource: "db/StatefulSet/web"}
	}
	s := &stage{t: t, clock: clocktesting.NewFakeClock(begin), recorder: events.NewFakeRecorder(100)}
	build := func(objects []client.Object) *fake.ClientBuilder {
		b := fake.NewClientBuilder().WithScheme(kinds).WithObjects(objects...).WithStatusSubresource(&v1alpha1.FixedIP{}).
			WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} })
		_ = index.Each(func(of client.Object, name string, fn client.IndexerFunc) error {
			b = b.WithIndex(of, name, fn)
			return nil
		})
		return b
	}
	s.cached = build(cached).Build()
	s.api = build(append(api, node)).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if _, ok := obj.(*ciliumv2.CiliumNode); ok {
				s.mu.Lock()
				s.reads++
				s.mu.Unlock()
			}
			return c.Get(ctx, key, obj, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			s.patches++
			var fail error
			after := func() {}
			if s.onPatch != nil {
				after, fail = s.onPatch()
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
			// The client above counts it. Here the status of a CiliumNode is written with the rest.
			return s.api.Patch(ctx, obj, patch)
		},
	}).Build()
	l := ledger.New()
	l.SetNode(ciliumpool.FromCiliumNode(node))
	s.ledger = l
	return s
}

// Get reads a StatefulSet from the caches, and Live at the API server: a stage has its workloads.
func (s *stage) Get(_ schema.GroupKind, namespace, name string) (*identity.Workload, error) {
	return workloadFrom(s.t.Context(), s.cached, namespace, name)
}

func (s *stage) Live(ctx context.Context, _ schema.GroupKind, namespace, name string) (*identity.Workload, error) {
	s.mu.Lock()
	s.looks++
	s.mu.Unlock()
	return workloadFrom(ctx, s.api, namespace, name)
}

func workloadFrom(ctx context.Context, from client.Reader, namespace, name string) (*identity.Workload, error) {
	var sts appsv1.StatefulSet
	err := from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &sts)
	if err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return &identity.Workload{GroupKind: identity.StatefulSets, APIVersion: "apps/v1", Namespace: namespace, Name: name, UID: sts.UID, Template: sts.Spec.Template.Annotations, Replicas: sts.Spec.Replicas}, nil
}

// event finds the next event that has the reason.
func (s *stage) event(reason string) bool {
	for {
		select {
		case e := <-s.recorder.Events:
			if strings.Contains(e, reason) {
				return true
			}
		default:
			return false
		}
	}
}

func objects(o ...client.Object) []client.Object { return o }
