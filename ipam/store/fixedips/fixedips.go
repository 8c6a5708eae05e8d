// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedips

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reservation"
	"fixedip.io/fixedip/ipam/store/watch"
)

// ReservationOf returns the reservation of a FixedIP. A FixedIP that is being deleted reserves its addresses until it no
// longer exists, because the controller releases the addresses before that.
func ReservationOf(fip *v1alpha1.FixedIP) ledger.Reservation {
	r := ledger.Reservation{
		Record: fip.Namespace + "/" + fip.Name,
		Since:  fip.CreationTimestamp.Time,
		Owner:  pool.OwnerKey(fip.Namespace, fip.Spec.PodName),
		Addrs:  address.ParseAll(fip.Spec.IPs),
	}
	if r.Owner == r.Record {
		// This is the usual case. Both fields share one string then.
		r.Owner = r.Record
	}
	return r
}

// SyncLedger keeps a ledger in sync with the informer of FixedIPs. After each change that may affect which node can take a
// pod, it calls changed. freed contains the nodes on which an address is no longer reserved. synced reports whether the
// ledger has all FixedIPs that existed at the start.
func SyncLedger(ctx context.Context, caches cache.Cache, l *ledger.Ledger, changed func(fip *v1alpha1.FixedIP, freed []string)) (synced func() bool, err error) {
	return watch.Objects(ctx, caches, &v1alpha1.FixedIP{}, func(before, after *v1alpha1.FixedIP) {
		switch {
		case after == nil:
			changed(before, l.RemoveReservation(ReservationOf(before).Record))
		case before == nil || Reserves(before, after) || HandsOver(before, after) || reservation.InheritancePending(before) != reservation.InheritancePending(after):
			changed(after, l.SetReservation(ReservationOf(after)))
		}
	})
}

// Reserves reports whether a FixedIP was deleted and created again, its spec has changed, or its deletion has begun.
func Reserves(before, after *v1alpha1.FixedIP) bool {
	return before.UID != after.UID || before.Generation != after.Generation ||
		before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero()
}

// HandsOver reports whether a change of the status of a FixedIP affects which pod may take over its addresses (vacatedBy),
// or which pod may move them to another node (movableFor).
func HandsOver(before, after *v1alpha1.FixedIP) bool {
	return before.Status.VacatedBy != after.Status.VacatedBy || before.Status.MovableFor != after.Status.MovableFor
}

// Read returns the FixedIPs of the given reservations from a cache, except those that the cache does not have. Reading
// known FixedIPs is cheaper than listing all FixedIPs of a large cluster.
func Read(ctx context.Context, cached client.Reader, known []ledger.Reservation) ([]*v1alpha1.FixedIP, error) {
	var found []*v1alpha1.FixedIP
	for _, k := range known {
		namespace, name, _ := strings.Cut(k.Record, "/")
		fip := &v1alpha1.FixedIP{}
		switch err := cached.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, fip); {
		case err == nil:
			found = append(found, fip)
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("read FixedIP %s from the cache: %w", k.Record, err)
		}
	}
	return found, nil
}
