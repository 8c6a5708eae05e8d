// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
)

// InferOwner returns the workload that an entry without a FixedIP is for, whether the scheduler wrote it or a user. The entry
// decides if it names a StatefulSet whose pod can have this name. Otherwise the controller of the pod does, or, if there is
// no pod, its name: then the StatefulSet has to exist.
//
// A pod without a controller is its own workload. ok is false if nothing is to be recorded: pods of other controllers never
// come back under their name, and an Unreserved entry is for one pod only. Their entries are not changed.
func InferOwner(podName string, entry pool.Entry, pod *corev1.Pod) (owner v1alpha1.OwnerReference, ok bool) {
	switch kind, name, _ := entry.WorkloadRef(); {
	case kind == "StatefulSet" && numbers(podName, name):
		return statefulSet(name), true
	case entry.IsUnreserved():
		return v1alpha1.OwnerReference{}, false
	}
	alone := v1alpha1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: podName}
	if pod == nil {
		if entry.IsBarePod() {
			return alone, true
		}
		if name, ok := identity.StatefulSetOf(podName); ok {
			return statefulSet(name), true
		}
		return v1alpha1.OwnerReference{}, false
	}
	switch controller := metav1.GetControllerOfNoCopy(pod); {
	case controller == nil:
		return alone, true
	case controller.Kind == "StatefulSet" && strings.HasPrefix(controller.APIVersion, "apps/"):
		return statefulSet(controller.Name), true
	}
	return v1alpha1.OwnerReference{}, false
}

// NamesWorkload reports whether an entry says that it is for a workload. If it does not, the workload was inferred from the pod, and
// is a guess if there is no pod.
func NamesWorkload(entry pool.Entry, owner v1alpha1.OwnerReference) bool {
	if entry.IsBarePod() {
		return owner.Kind == "Pod"
	}
	kind, name, ok := entry.WorkloadRef()
	return ok && kind == owner.Kind && name == owner.Name
}

// numbers tells whether a StatefulSet names a pod so.
func numbers(podName, workload string) bool {
	_, ok := identity.Ordinal(podName, workload)
	return ok
}

func statefulSet(name string) v1alpha1.OwnerReference {
	return v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: name}
}
