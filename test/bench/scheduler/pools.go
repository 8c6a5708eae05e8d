// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/test/bench/apiserver"
	"fixedip.io/fixedip/test/bench/world"
)

// pageSize is the number of CiliumNodes in one page of a list.
const pageSize = 500

// patchPools runs the arm without a scheduler: it adds an entry for each of b.pods pods to the pools, with one JSON patch
// for each entry, and sets r.PerSecond.
func (b *bench) patchPools(ctx context.Context, r *result) error {
	began := time.Now()
	err := apiserver.InParallel(ctx, b.pods, func(ctx context.Context, i int) error {
		node := world.NodeName(i % b.world.Nodes)
		patch := fmt.Appendf(nil, `[{"op":"add","path":"/spec/ipam/pool/%s","value":{"owner":"team/pod-%d","resource":"team/StatefulSet/pod-%d"}}]`, patchedAddress(i), i, i)
		if err := b.api.Patch(ctx, &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: node}}, client.RawPatch(types.JSONPatchType, patch)); err != nil {
			return fmt.Errorf("patch CiliumNode %s: %w", node, err)
		}
		return nil
	})
	r.PerSecond = float64(b.pods) / time.Since(began).Seconds()
	return err
}

// restorePools gives every CiliumNode the pool that it has in the world.
func (b *bench) restorePools(ctx context.Context) error {
	// changed contains the wanted state of each CiliumNode whose pool differs from that state. Key: the number of the node.
	// number contains the number of each node. Key: the name.
	changed, number := map[int]*ciliumv2.CiliumNode{}, map[string]int{}
	for i := range b.world.Nodes {
		number[world.NodeName(i)] = i
	}
	var list ciliumv2.CiliumNodeList
	for {
		if err := b.api.List(ctx, &list, client.Limit(pageSize), client.Continue(list.Continue)); err != nil {
			return fmt.Errorf("list the CiliumNodes: %w", err)
		}
		for _, cn := range list.Items {
			i := number[cn.Name]
			if want := b.world.CiliumNode(i); !equality.Semantic.DeepEqual(cn.Spec.IPAM.Pool, want.Spec.IPAM.Pool) {
				changed[i] = want
			}
		}
		if list.Continue == "" {
			break
		}
	}
	nodes := slices.Sorted(maps.Keys(changed))
	return apiserver.InParallel(ctx, len(nodes), func(ctx context.Context, i int) error {
		cn := changed[nodes[i]]
		patch := []map[string]any{{"op": "replace", "path": "/spec/ipam/pool", "value": cn.Spec.IPAM.Pool}}
		data, err := json.Marshal(patch)
		if err != nil {
			return fmt.Errorf("encode the pool of CiliumNode %s: %w", cn.Name, err)
		}
		if err := b.api.Patch(ctx, &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: cn.Name}}, client.RawPatch(types.JSONPatchType, data)); err != nil {
			return fmt.Errorf("restore the pool of CiliumNode %s: %w", cn.Name, err)
		}
		return nil
	})
}
