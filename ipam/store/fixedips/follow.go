// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedips

import (
	"context"
	"fmt"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
)

// ReservationOf returns the reservation of a FixedIP. It lasts until the FixedIP is gone, not until it is deleted: the
// controller releases its addresses in between.
func ReservationOf(fip *v1alpha1.FixedIP) ledger.Reservation {
	k := ledger.Reservation{
		Record: fip.Namespace + "/" + fip.Name,
		Since:  fip.CreationTimestamp.Time,
		Owner:  pool.OwnerKey(fip.Namespace, fip.Spec.PodName),
	}
	for _, kept := range plan.ReservedAddresses(fip) {
		k.Addrs = append(k.Addrs, kept.Addr)
	}
	return k
}

// SyncLedger keeps a ledger in sync with the informer of FixedIPs. After each change that may affect where a pod can be
// placed it calls changed; freed are the nodes on which an address is no longer reserved. synced reports whether the
// ledger has all FixedIPs that existed at the start.
func SyncLedger(ctx context.Context, watches cache.Cache, l *ledger.Ledger, changed func(fip *v1alpha1.FixedIP, freed []string)) (synced func() bool, err error) {
	set := func(fip *v1alpha1.FixedIP) { changed(fip, l.SetRecord(ReservationOf(fip))) }
	// BlockUntilSynced is false because the cache may not be started yet.
	informer, err := watches.GetInformer(ctx, &v1alpha1.FixedIP{}, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch FixedIPs: %w", err)
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { set(obj.(*v1alpha1.FixedIP)) },
		UpdateFunc: func(before, after any) {
			if a, b := before.(*v1alpha1.FixedIP), after.(*v1alpha1.FixedIP); Reserves(a, b) || HandsOver(a, b) {
				set(b)
			}
		},
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			fip := obj.(*v1alpha1.FixedIP)
			changed(fip, l.RemoveRecord(ReservationOf(fip).Record))
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch FixedIPs: %w", err)
	}
	return registration.HasSynced, nil
}

// Reserves reports whether a change of a FixedIP may affect where its pod can be placed. A change of its status does
// not.
func Reserves(before, after *v1alpha1.FixedIP) bool {
	return before.UID != after.UID || before.Generation != after.Generation ||
		before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero()
}

// HandsOver reports whether the status has begun to say that another pod may take the addresses over, or that their pod may
// take them to another node.
func HandsOver(before, after *v1alpha1.FixedIP) bool {
	return before.Status.VacatedBy != after.Status.VacatedBy || before.Status.MovableFor != after.Status.MovableFor
}
