// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Slots returns the states of the slots of a workload, from its FixedIPs and the slots in the pools. It sets Slot,
// Record, Held and Holder; the caller sets the other fields.
func Slots(records []v1alpha1.FixedIP, entries []ledger.Slot) []State {
	var slots []State
	taken := make([]bool, len(entries))
	for i := range records {
		s := State{Slot: true, Record: &records[i], Holder: records[i].Spec.PodName}
		for j, e := range entries {
			if !taken[j] && slices.ContainsFunc(address.Strings(e.Addrs), func(a string) bool { return slices.Contains(s.Record.Spec.IPs, a) }) {
				taken[j], s.Held, s.Holder = true, []ledger.NodeAddresses{e.NodeAddresses}, podOf(e.Owner)
				break
			}
		}
		slots = append(slots, s)
	}
	for j, e := range entries {
		if !taken[j] {
			slots = append(slots, State{Slot: true, Held: []ledger.NodeAddresses{e.NodeAddresses}, Holder: podOf(e.Owner)})
		}
	}
	return slots
}

// Surplus reports for each slot whether the workload no longer needs it. The workload needs one slot for each replica and for
// each pod that an update may add (Surge): otherwise an update would release one address and claim another for each pod. Only
// slots without a pod are surplus: first those that are about to expire, then those with the lowest addresses, which were
// claimed last. A slot whose FixedIP is being deleted does not count. A workload without Replicas needs all slots.
func Surplus(slots []State, w identity.Workload) []bool {
	surplus := make([]bool, len(slots))
	if w.Replicas == nil {
		return surplus
	}
	var vacant []int
	counted := 0
	for i, s := range slots {
		if s.Record != nil && s.Record.DeletionTimestamp != nil {
			continue
		}
		counted++
		if s.Pod == nil {
			vacant = append(vacant, i)
		}
	}
	slices.SortFunc(vacant, func(x, y int) int {
		return cmp.Or(cmp.Compare(slots[x].expiryOrder(), slots[y].expiryOrder()), slots[x].firstAddress().Compare(slots[y].firstAddress()))
	})
	for _, i := range vacant[:max(0, min(len(vacant), counted-int(*w.Replicas)-int(w.Surge)))] {
		surplus[i] = true
	}
	return surplus
}

// expiryOrder returns 0 for a slot that is about to expire and 1 for any other, so that the former sort first.
func (s State) expiryOrder() int {
	if s.Record != nil && s.Record.Status.ExpiresAt != nil {
		return 0
	}
	return 1
}

// firstAddress returns the lowest address that the slot has an entry for, or else the first recorded one, or else the zero
// Addr.
func (s State) firstAddress() netip.Addr {
	if len(s.Held) > 0 {
		return s.Held[0].Addrs[0]
	}
	if s.Record != nil && len(recorded(s.Record)) > 0 {
		return recorded(s.Record)[0]
	}
	return netip.Addr{}
}

func podOf(owner string) string {
	_, name, _ := pool.SplitOwnerKey(owner)
	return name
}

// InferOwner returns the workload that an entry without a FixedIP is for, whether the scheduler or a user wrote the entry.
// If the entry names a StatefulSet whose pod can have this name, that is the workload. Otherwise it is the StatefulSet that
// controls the pod or, if there is no pod, the StatefulSet that the name of the pod implies. The result has no UID, and the
// workload may not exist.
//
// A pod without a controller is its own workload. If no pod exists, the result for a BarePodEntry is the pod that the entry
// names.
//
// ok is false in three cases, in which a FixedIP must not be created. The pod has another controller, so that no pod returns
// under its name. The entry is Unreserved and so for one pod only. Or no pod exists, and the name of the pod has no ordinal, so
// that the name implies no workload. The controller of FixedIPs does not change entries for which ok is false. The controller
// of node pools releases Unreserved entries.
func InferOwner(podName string, entry pool.Entry, pod *corev1.Pod) (owner v1alpha1.OwnerReference, ok bool) {
	kind, name, _ := entry.WorkloadRef()
	_, numbered := identity.Ordinal(podName, name)
	switch {
	case kind == "StatefulSet" && numbered:
		return statefulSet(name), true
	case entry.IsUnreserved():
		return v1alpha1.OwnerReference{}, false
	}
	bare := v1alpha1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: podName}
	if pod == nil {
		if entry.IsBarePod() {
			return bare, true
		}
		if name, ok := identity.StatefulSetOf(podName); ok {
			return statefulSet(name), true
		}
		return v1alpha1.OwnerReference{}, false
	}
	switch controller := metav1.GetControllerOfNoCopy(pod); {
	case controller == nil:
		return bare, true
	case controller.Kind == "StatefulSet" && strings.HasPrefix(controller.APIVersion, "apps/"):
		return statefulSet(controller.Name), true
	}
	return v1alpha1.OwnerReference{}, false
}

// NamesWorkload reports whether the entry itself names the workload owner. If it does not, the workload was inferred from
// the pod or from the name of the pod: see InferOwner.
func NamesWorkload(entry pool.Entry, owner v1alpha1.OwnerReference) bool {
	if entry.IsBarePod() {
		return owner.Kind == "Pod"
	}
	kind, name, ok := entry.WorkloadRef()
	return ok && kind == owner.Kind && name == owner.Name
}

func statefulSet(name string) v1alpha1.OwnerReference {
	return v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: name}
}
