// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// podKind is the kind of the owner of a pod without a controller: it is its own workload.
const podKind = "Pod"

// HolderOf returns the pod that has the IPs of a FixedIP, or had them last, as pool entries name it.
func HolderOf(record *v1alpha1.FixedIP) string {
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

// slotsOf returns the workload whose slots these entries are. ok is false if they are none.
func (r *verifier) slotsOf(held []ledger.Holding) (w workloadKey, ok bool) {
	if len(held) == 0 {
		return workloadKey{}, false
	}
	label, name, ok := r.Ledger.EntryOf(held[0]).WorkloadRef()
	kind, known := r.Kinds.Labelled(label)
	if !ok || !known || kind.Identity != identity.Slot {
		return workloadKey{}, false
	}
	return workloadKey{kind.GroupKind(), name}, true
}

// slotNames returns the names that the FixedIP of a slot may have, by its IPs.
func slotNames(workload string, held []ledger.Holding) []string {
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

// reservedFor reports whether a FixedIP is for a pod, and not only for one of its name.
func (r *verifier) reservedFor(record *v1alpha1.FixedIP, pod *corev1.Pod, slots workloadKey, isSlot bool) bool {
	of := workloadKey{schema.GroupKind{Kind: podKind}, pod.Name}
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		of = workloadKey{schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind(), owner.Name}
		if isSlot && of.GroupKind == identity.ReplicaSets {
			// Names of its pods are used once, so that the pod of the name is the holder.
			of = slots
		}
	}
	o := identity.OwnerOf(record)
	return o.GroupKind() == of.GroupKind && o.Name == of.Name
}
