// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// HolderOf returns the pod that has the IPs of a FixedIP, or had them last, as pool entries name it.
func HolderOf(record *v1alpha1.FixedIP) string {
	if record.Spec.Slot {
		return pool.OwnerKey(record.Namespace, record.Spec.PodName)
	}
	return pool.OwnerKey(record.Namespace, record.Name)
}

// slotsOf returns the workload whose slots these entries are. ok is false if they are none.
func (r *verifier) slotsOf(held []ledger.NodeAddresses, namespace string) (w identity.Workload, ok bool) {
	if len(held) == 0 {
		return w, false
	}
	label, name, named := r.Ledger.EntryOf(held[0]).WorkloadRef()
	kind, known := r.Kinds.Labelled(label)
	return identity.Workload{GroupKind: kind.GroupKind(), Namespace: namespace, Name: name}, named && known && kind.Identity == identity.Slot
}

// slotNames returns the names that the FixedIP of a slot may have, by its IPs.
func slotNames(workload string, held []ledger.NodeAddresses) []string {
	var names []string
	for _, h := range held {
		for _, a := range h.Addrs {
			names = append(names, identity.SlotName(workload, a))
		}
	}
	return names
}

// readFirst reads the first FixedIP that exists under one of the names; nil if there is none.
func readFirst(ctx context.Context, from client.Reader, namespace string, names []string) (*v1alpha1.FixedIP, error) {
	for _, name := range names {
		if record, err := index.Get[v1alpha1.FixedIP](ctx, from, types.NamespacedName{Namespace: namespace, Name: name}); record != nil || err != nil {
			return record, err
		}
	}
	return nil, nil
}

// reservedFor reports whether a FixedIP is for a pod, and not only for one of its name.
func reservedFor(record *v1alpha1.FixedIP, pod *corev1.Pod, slots identity.Workload, isSlot bool) bool {
	owner := identity.Owner{Kind: identity.PodKind, Name: pod.Name}
	if o := metav1.GetControllerOfNoCopy(pod); o != nil {
		owner = identity.Owner{APIVersion: o.APIVersion, Kind: o.Kind, Name: o.Name}
	}
	of := owner.Resource(pod.Namespace)
	if isSlot && owner.GroupKind() == identity.ReplicaSets {
		// Names of its pods are used once, so that the pod of the name is the holder.
		of = slots.Resource()
	}
	return identity.OwnerOf(record).Resource(record.Namespace) == of
}
