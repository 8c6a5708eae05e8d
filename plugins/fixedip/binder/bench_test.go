// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/workloads"
	"fixedip.io/fixedip/plugins/fixedip/cache"
)

// hotPaths returns a Binder, nodes that each have free addresses, and plans with which Fits accepts every node. Key of
// the plans: a description. Every node is strict.
func hotPaths(t testing.TB, count int) (*Binder, []*corev1.Node, map[string]*Plan) {
	t.Helper()
	b := &Binder{
		Shared:   &Shared{Cache: &cache.Cache{Ledger: ledger.New()}},
		families: []address.Family{address.IPv4}, strict: labels.Everything(),
	}
	indexer := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, nil)
	var nodes []*corev1.Node
	for i := range count {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)}}
		if err := indexer.Add(node); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, node)
		b.Cache.Ledger.SetNode(pool.NodePool{
			Name: node.Name, UID: node.Name, Generation: 1, HasPool: true, HasUsed: true, Entries: map[netip.Addr]pool.Entry{}, Used: map[netip.Addr]string{},
			Subnets: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)},
		})
	}
	b.Nodes = corelisters.NewNodeLister(indexer)
	id := identity.Identity{Namespace: "db", PodName: "web-0", Owner: identity.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web"}}
	return b, nodes, map[string]*Plan{
		"first placement":          {id: id},
		"unreserved, strict nodes": {id: identity.Identity{Namespace: "db", PodName: "web-0"}, Unreserved: true},
	}
}

// TestFitsAllocatesNothing checks that Fits and Score, which run for each node, allocate no memory for a node that can take
// the pod.
func TestFitsAllocatesNothing(t *testing.T) {
	b, nodes, plans := hotPaths(t, 1)
	for name, p := range plans {
		for what, f := range map[string]func(){
			"Fits": func() {
				if err := b.Fits(p, nodes[0]); err != nil {
					t.Fatal(err)
				}
			},
			"Score": func() { b.Score(p, nodes[0].Name) },
		} {
			if n := testing.AllocsPerRun(100, f); n != 0 {
				t.Errorf("%s: %s allocates %v times, want none", name, what, n)
			}
		}
	}
}

// oneFixedIP is a client.Reader with one FixedIP. As the cache does, it returns a copy.
type oneFixedIP struct {
	client.Reader
	fip *v1alpha1.FixedIP
}

// Get implements client.Reader.
func (r oneFixedIP) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if key != client.ObjectKeyFromObject(r.fip) {
		return apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("fixedips").GroupResource(), key.Name)
	}
	r.fip.DeepCopyInto(into.(*v1alpha1.FixedIP))
	return nil
}

// BenchmarkFind measures the plan for a pod, which PreFilter makes: for a pod without a fixed address, for a first
// placement, and for a restart in place.
func BenchmarkFind(b *testing.B) {
	owned := func(name string) *corev1.Pod {
		pod := namedPod(name)
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "set", Controller: ptr.To(true)}}
		return pod
	}
	binder, nodes, _ := hotPaths(b, 5000)
	fip := &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web-0"}, Spec: v1alpha1.FixedIPSpec{
		IPs: []string{"10.0.7.9"}, NodeName: nodes[7].Name, PodName: "web-0", Owner: v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "set"},
	}}
	binder.Cache.FixedIPs, binder.Cache.Workloads, binder.Cache.Kinds = oneFixedIP{fip: fip}, workloads.New(nil, nil), identity.NewKinds()
	sets := toolscache.NewSharedIndexInformer(&toolscache.ListWatch{}, &appsv1.StatefulSet{}, 0, nil)
	if err := binder.Cache.Workloads.UseInformer(identity.StatefulSets, sets); err != nil {
		b.Fatal(err)
	}
	if err := sets.GetStore().Add(&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web", UID: "set"}}); err != nil {
		b.Fatal(err)
	}
	home := framework.NewNodeInfo()
	home.SetNode(nodes[7])
	binder.snapshot = func(string) fwk.NodeInfo { return home }
	binder.Quotas = corelisters.NewResourceQuotaLister(toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc}))
	n, _ := binder.Cache.Ledger.Node(nodes[7].Name)
	n.Generation, n.Entries = 2, map[netip.Addr]pool.Entry{netip.MustParseAddr("10.0.7.9"): pool.OwnedEntry("db", "web-0", "StatefulSet", "web")}
	binder.Cache.Ledger.SetNode(n)
	for name, c := range map[string]struct {
		pod *corev1.Pod
		// nodes is the number of nodes of the plan; 0 means all nodes.
		nodes int
	}{
		"unreserved":       {namedPod("service-0"), 0},
		"first placement":  {owned("web-1"), 0},
		"restart in place": {owned("web-0"), 1},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p, err := binder.Find(b.Context(), c.pod)
				if err != nil {
					b.Fatal(err)
				}
				if len(p.Nodes) != c.nodes || p.Unreserved != (name == "unreserved") {
					b.Fatalf("got a plan with %d nodes, unreserved %t; want %d nodes, unreserved %t", len(p.Nodes), p.Unreserved, c.nodes, name == "unreserved")
				}
			}
		})
	}
}

// BenchmarkFits measures the decision about one node.
func BenchmarkFits(b *testing.B) {
	binder, nodes, plans := hotPaths(b, 5000)
	for name, p := range plans {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := binder.Fits(p, nodes[i%len(nodes)]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkScore measures the score of one node.
func BenchmarkScore(b *testing.B) {
	binder, nodes, plans := hotPaths(b, 5000)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		binder.Score(plans["first placement"], nodes[i%len(nodes)].Name)
	}
}
