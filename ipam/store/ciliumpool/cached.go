// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"context"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/watch"
)

// cachedNode is the part of a CiliumNode that a cache stores. The ledger refers to the same maps, so that each pool is in
// memory only once: pools take most of the memory that the plugin adds to a scheduler.
type cachedNode struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	pool pool.NodePool
}

// DeepCopyObject returns a copy that refers to the same pool. A pool is not modified after it has been decoded.
func (n *cachedNode) DeepCopyObject() runtime.Object {
	return &cachedNode{TypeMeta: n.TypeMeta, ObjectMeta: *n.ObjectMeta.DeepCopy(), pool: n.pool}
}

// ForCache is a cache transform for CiliumNodes. A cache with ForCache serves only SyncLedger: it does not return
// CiliumNodes. ForCache returns other objects unchanged.
func ForCache(obj any) (any, error) {
	cn, ok := obj.(*ciliumv2.CiliumNode)
	if !ok {
		return obj, nil
	}
	meta := metav1.ObjectMeta{Name: cn.Name, UID: cn.UID, ResourceVersion: cn.ResourceVersion}
	return &cachedNode{TypeMeta: cn.TypeMeta, ObjectMeta: meta, pool: FromCiliumNode(cn)}, nil
}

// SyncLedger updates a ledger from the watch of CiliumNodes, and calls changed after each update. The informer of
// CiliumNodes must have the transform ForCache. synced reports whether all CiliumNodes that existed at the start are in the
// ledger.
func SyncLedger(ctx context.Context, caches cache.Cache, l *ledger.Ledger, changed func(node string, c ledger.NodeChange)) (synced func() bool, err error) {
	return watch.Objects(ctx, caches, &ciliumv2.CiliumNode{}, func(before, after *cachedNode) {
		if after == nil {
			changed(before.Name, l.RemoveNode(before.Name))
			return
		}
		changed(after.Name, l.SetNode(after.pool))
	})
}
