// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"context"
	"fmt"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"fixedip.io/fixedip/ipam/core/ledger"
)

// SyncLedger updates a ledger from the watch of CiliumNodes, and calls changed after each update. The informer should have the
// transform Trim. synced reports whether all CiliumNodes that existed at the start are in the ledger.
func SyncLedger(ctx context.Context, watches cache.Cache, l *ledger.Ledger, changed func(node string, c ledger.NodeChange)) (synced func() bool, err error) {
	set := func(obj any) {
		cn := obj.(*ciliumv2.CiliumNode)
		changed(cn.Name, l.SetNode(FromCiliumNode(cn)))
	}
	// BlockUntilSynced false: the cache may not be started yet.
	informer, err := watches.GetInformer(ctx, &ciliumv2.CiliumNode{}, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch CiliumNodes: %w", err)
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    set,
		UpdateFunc: func(_, obj any) { set(obj) },
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			name := obj.(*ciliumv2.CiliumNode).Name
			changed(name, l.RemoveNode(name))
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch CiliumNodes: %w", err)
	}
	return registration.HasSynced, nil
}
