// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"context"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/store/watch"
)

// SyncLedger updates a ledger from the watch of CiliumNodes, and calls changed after each update. The informer should have the
// transform Trim. synced reports whether all CiliumNodes that existed at the start are in the ledger.
func SyncLedger(ctx context.Context, watches cache.Cache, l *ledger.Ledger, changed func(node string, c ledger.NodeChange)) (synced func() bool, err error) {
	return watch.Objects(ctx, watches, &ciliumv2.CiliumNode{}, func(before, after *ciliumv2.CiliumNode) {
		if after == nil {
			changed(before.Name, l.RemoveNode(before.Name))
			return
		}
		changed(after.Name, l.SetNode(FromCiliumNode(after)))
	})
}
