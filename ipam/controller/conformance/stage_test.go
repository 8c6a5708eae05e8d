// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"testing"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
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
	"fixedip.io/fixedip/ipam/controller/internal/allocate"
	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/agentview"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/test/gen"
)

var begin = time.Unix(1_700_000_000, 0)

// stage is a cluster with node n. Its objects may differ between the API server and the caches.
type stage struct {
	t           *testing.T
	cached, api client.WithWatch
	d           *Controller
	recorder    *events.FakeRecorder
	clock       *clocktesting.FakeClock
	// evicted are the names of the evicted pods. refuse is the error of an eviction; nil: evictions succeed.
	evicted []string
	refuse  error
	agents  *stageAgents
	// onPatch is called after a CiliumNode was patched.
	onPatch func()
}

// noWorkloads is a gather.Workloads without workloads.
type noWorkloads struct{ gather.Workloads }

func (noWorkloads) Get(schema.GroupKind, string, string) (*identity.Workload, error) { return nil, nil }

// Controller reports that no ReplicaSet has a controller.
func (noWorkloads) Controller(string, metav1.OwnerReference) (by *metav1.OwnerReference, known bool) {
	return nil, true
}

// stageAgents answers each barrier request at once, with the pool and the used addresses at the API server.
type stageAgents struct {
	s *stage
	// asked are the nodes of the barrier requests.
	asked []string
}

func (a *stageAgents) Ask(node, _ string, _ func()) (agentview.Evidence, time.Time) {
	a.asked = append(a.asked, node)
	n := a.s.node()
	return agentview.Evidence{Node: n.Name, UID: n.UID, Entries: n.Entries, Used: n.Used}, a.s.clock.Now()
}

func (*stageAgents) Forget(string, string) {}

// newStage returns a stage with the given objects at the API server and in the caches. entries are the entries of node n,
// and used the addresses that its agent reports. Key: the IP; value of used: the owner. The pool also gets the dynamic entry
// 10.0.1.2, and the agent also reports 10.0.1.254 as used by the router.
func newStage(t *testing.T, api, cached []client.Object, entries map[string]pool.Entry, used map[string]string) *stage {
	t.Helper()
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	node := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "node", Generation: 1}}
	node.Spec.IPAM.PodCIDRs = []string{"10.0.1.0/24"}
	node.Spec.IPAM.Pool = ipamtypes.AllocationMap{"10.0.1.2": {}}
	for a, e := range entries {
		node.Spec.IPAM.Pool[a] = ciliumpool.EncodeEntry(e)
	}
	node.Status.IPAM.Used = ipamtypes.AllocationMap{"10.0.1.254": {Owner: "router"}}
	for a, owner := range used {
		node.Status.IPAM.Used[a] = ipamtypes.AllocationIP{Owner: owner}
	}
	s := &stage{t: t, clock: clocktesting.NewFakeClock(begin), recorder: events.NewFakeRecorder(100)}
	build := func(objects []client.Object) *fake.ClientBuilder {
		b := fake.NewClientBuilder().WithScheme(kinds).WithStatusSubresource(&v1alpha1.FixedIP{}).
			WithIndex(&v1alpha1.FixedIP{}, restartingIndex, restarting)
		_ = index.Each(func(of client.Object, name string, fn client.IndexerFunc) error {
			b = b.WithIndex(of, name, fn)
			return nil
		})
		for _, o := range objects {
			b = b.WithObjects(o.DeepCopyObject().(client.Object))
		}
		return b
	}
	s.cached = build(cached).Build()
	// A real API server has the field selector spec.nodeName without an index.
	s.api = build(append(api, node)).WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			err := c.Patch(ctx, obj, patch, opts...)
			if s.onPatch != nil {
				s.onPatch()
			}
			return err
		},
		SubResourceCreate: func(ctx context.Context, c client.Client, name string, obj, sub client.Object, opts ...client.SubResourceCreateOption) error {
			if s.refuse != nil {
				return s.refuse
			}
			s.evicted = append(s.evicted, obj.GetName())
			return c.SubResource(name).Create(ctx, obj, sub, opts...)
		},
	}).Build()
	l := ledger.New()
	l.SetNode(ciliumpool.FromCiliumNode(node))
	config := DefaultConfig()
	s.d = &Controller{
		Gatherer: &gather.Gatherer{
			Ledger: l, Cached: s.cached, Live: s.api, Kinds: identity.NewKinds(), Failover: v1alpha1.Wait, Workloads: noWorkloads{},
			Events: s.recorder, Clock: s.clock,
		},
		Config: config, Writer: ciliumpool.NewWriter(t.Context(), ciliumpool.New(s.api), l.Node), Adoption: identity.Adoption{Schedulers: []string{"ours"}},
	}
	s.agents = &stageAgents{s: s}
	s.d.Agents = s.agents
	s.d.Allocator = &allocate.Allocator{Writer: s.d.Writer, Live: s.api, Clock: s.clock}
	return s
}

// node returns node n as the API server has it.
func (s *stage) node() pool.NodePool {
	s.t.Helper()
	var cn ciliumv2.CiliumNode
	if err := s.api.Get(s.t.Context(), client.ObjectKey{Name: "n"}, &cn); err != nil {
		s.t.Fatal(err)
	}
	return ciliumpool.FromCiliumNode(&cn)
}

// owners returns the owners of the entries of node n. Key: the IP.
func (s *stage) owners() map[string]string {
	s.t.Helper()
	var node ciliumv2.CiliumNode
	if err := s.api.Get(s.t.Context(), client.ObjectKey{Name: "n"}, &node); err != nil {
		s.t.Fatal(err)
	}
	owners := map[string]string{}
	for a, e := range node.Spec.IPAM.Pool {
		owners[a] = e.Owner
	}
	return owners
}

// fixedIP returns the FixedIP of web-0; nil if there is none.
func (s *stage) fixedIP() *v1alpha1.FixedIP {
	s.t.Helper()
	record, err := index.Get[v1alpha1.FixedIP](s.t.Context(), s.api, client.ObjectKey{Namespace: "db", Name: "web-0"})
	if err != nil {
		s.t.Fatal(err)
	}
	return record
}

// reported returns the events that were recorded since the last call.
func (s *stage) reported() []string {
	var all []string
	for len(s.recorder.Events) > 0 {
		all = append(all, <-s.recorder.Events)
	}
	return all
}

// boundPod returns pod web-0, which our scheduler bound to node n a minute ago.
func boundPod(ip string, change ...func(*corev1.Pod)) *corev1.Pod {
	bound := []func(*corev1.Pod){gen.Controlled("web", "web-1"), gen.On("n"), func(p *corev1.Pod) {
		p.CreationTimestamp, p.Spec.SchedulerName = metav1.Time{Time: begin.Add(-time.Minute)}, "ours"
	}}
	if ip != "" {
		bound = append(bound, gen.On("n", ip), gen.Running)
	}
	return gen.Pod("web-0", append(bound, change...)...)
}

// recordOf returns the FixedIP of a pod of StatefulSet web.
func recordOf(name string, ips ...string) *v1alpha1.FixedIP {
	return gen.FixedIP(name, gen.Owner("web"), func(r *v1alpha1.FixedIP) {
		r.UID, r.Finalizers = types.UID("fixedip-"+name), []string{v1alpha1.Finalizer}
		r.Spec.IPs, r.Spec.NodeName, r.Spec.Reclaim, r.Spec.Owner.UID = ips, "n", identity.DefaultReclaim(), "web-1"
	})
}
