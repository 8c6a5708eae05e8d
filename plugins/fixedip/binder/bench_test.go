// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
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
