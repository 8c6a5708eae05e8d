// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
)

// holderOf is the pod that has the addresses of a record, or had them last, as pool entries name it.
func holderOf(record *v1alpha1.FixedIP) string {
	if record.Spec.Slot {
		return pool.OwnerKey(record.Namespace, record.Spec.PodName)
	}
	return pool.OwnerKey(record.Namespace, record.Name)
}

// workloadKey names a workload in the namespace of its pods.
type workloadKey struct {
	schema.GroupKind
	Name string
}

// slotsOf is the workload that has slots among which these holdings are; ok is false where they are
// none.
func (r *verifyReconciler) slotsOf(held []ledger.Holding) (w workloadKey, ok bool) {
	if len(held) == 0 {
		return workloadKey{}, false
	}
	label, name, ok := r.ledger.EntryOf(held[0]).WorkloadRef()
	kind, known := r.kinds.Labelled(label)
	if !ok || !known || kind.Identity != identity.Slot {
		return workloadKey{}, false
	}
	return workloadKey{kind.GroupKind(), name}, true
}

// slotNames are the names that the FixedIP of a slot may have, by the addresses that it holds.
func slotNames(workload string, held []ledger.Holding) []string {
	var names []string
	for _, h := range held {
		for _, a := range h.Addrs {
			names = append(names, identity.SlotName(workload, a))
		}
	}
	return names
}

// readFirst reads the first FixedIP that there is among some names; nil where there is none.
func readFirst(ctx context.Context, from client.Reader, namespace string, names []string) (*v1alpha1.FixedIP, error) {
	for _, name := range names {
		var record v1alpha1.FixedIP
		switch err := from.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &record); {
		case err == nil:
			return &record, nil
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("read FixedIP %s/%s: %w", namespace, name, err)
		}
	}
	return nil, nil
}

// keptFor tells whether what is kept is kept for the pods of a workload.
func (r *verifyReconciler) keptFor(o plan.Observed, of workloadKey) bool {
	if o.Record != nil {
		kept := identity.OwnerOf(o.Record)
		return kept.GroupKind() == of.GroupKind && kept.Name == of.Name
	}
	// Entries name kinds by their labels.
	label, name, ok := r.ledger.EntryOf(o.Held[0]).WorkloadRef()
	return ok && label == identity.Label(of.GroupKind) && name == of.Name
}

// keptForItself tells whether what is kept is kept for a pod without a workload. Its entries name none.
func (r *verifyReconciler) keptForItself(o plan.Observed, pod types.NamespacedName) bool {
	if o.Record != nil {
		return r.keptFor(o, workloadKey{schema.GroupKind{Kind: gather.PodKind}, pod.Name})
	}
	_, _, ok := r.ledger.EntryOf(o.Held[0]).WorkloadRef()
	return !ok
}
