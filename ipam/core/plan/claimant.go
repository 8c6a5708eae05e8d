package plan

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Claimant finds the workload that an entry without a record is for: one that the scheduler wrote, a
// person, or another controller of fixed addresses before us. resource is what the entry says it is
// for. It counts where it names a StatefulSet whose pod can have this name. Otherwise the pod tells
// by its controller, or, while there is none, by its name: then the StatefulSet has to be there.
//
// A pod without a controller is its own workload, and an entry that was claimed for one is for nobody else:
// while the pod is not there it is gone. ok is false where nothing is to be recorded: the
// pods of other controllers never come back under their name, and an entry that is for a Pod in so
// many words is for that one pod. Their entries are respected as they stand.
func Claimant(podName, resource string, pod *corev1.Pod) (owner v1alpha1.OwnerReference, ok bool) {
	switch kind, name, _ := (pool.Entry{Resource: resource}).Workload(); {
	case kind == "StatefulSet" && numbers(podName, name):
		return statefulSet(name), true
	case kind == "Pod":
		return v1alpha1.OwnerReference{}, false
	}
	alone := v1alpha1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: podName}
	if pod == nil {
		if (pool.Entry{Resource: resource}).Alone() {
			return alone, true
		}
		if i := strings.LastIndex(podName, "-"); i > 0 && numbers(podName, podName[:i]) {
			return statefulSet(podName[:i]), true
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

// Names tells whether the resource of an entry names a workload: what it does not name was found out
// from the pod, and is a guess while there is none.
func Names(resource string, owner v1alpha1.OwnerReference) bool {
	e := pool.Entry{Resource: resource}
	if e.Alone() {
		return owner.Kind == "Pod"
	}
	kind, name, ok := e.Workload()
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
