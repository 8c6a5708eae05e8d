// Package identity says which pods have a fixed address and to whom it belongs.
//
// It is pure: it reads Kubernetes objects as values. It may not read a cache or call an API.
package identity

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/core/pool"
)

// AnnotationEnabled on a pod says "true" or "false": whether it has a fixed address. Without it a
// pod of a StatefulSet has one.
const AnnotationEnabled = "fixedip.io/enabled"

// Owner is the workload that an address is kept for.
type Owner struct {
	APIVersion, Kind, Name string
	UID                    types.UID
}

// Identity is who keeps an address for life. For a StatefulSet it is the pod's name: a pod that
// comes back under it is the same to its peers.
type Identity struct {
	Namespace, PodName string
	Owner              Owner
}

// Key is the identity as pool entries name it.
func (i Identity) Key() string { return pool.OwnerKey(i.Namespace, i.PodName) }

// Entry is the pool entry that gives an address to the identity.
func (i Identity) Entry() pool.Entry {
	return pool.Owned(i.Namespace, i.PodName, i.Owner.Kind, i.Owner.Name)
}

// Of is the identity of a pod. fixed is false where the pod has no fixed address: it is not of a
// StatefulSet, it opted out, or it uses the network of its host. An annotation that cannot be read
// is an error: the pod must not start with an address that its author did not mean.
func Of(pod *corev1.Pod) (id Identity, fixed bool, err error) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || pod.Spec.HostNetwork || !statefulSet(owner) {
		return Identity{}, false, nil
	}
	if v, ok := pod.Annotations[AnnotationEnabled]; ok {
		enabled, err := strconv.ParseBool(v)
		if err != nil {
			return Identity{}, false, fmt.Errorf("annotation %s of pod %s/%s is %q; write \"true\" or \"false\"", AnnotationEnabled, pod.Namespace, pod.Name, v)
		}
		if !enabled {
			return Identity{}, false, nil
		}
	}
	return Identity{
		Namespace: pod.Namespace,
		PodName:   pod.Name,
		Owner:     Owner{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID},
	}, true, nil
}

func statefulSet(owner *metav1.OwnerReference) bool {
	group, _, _ := strings.Cut(owner.APIVersion, "/")
	return group == "apps" && owner.Kind == "StatefulSet"
}
