// Package identity says which pods have a fixed address and to whom it belongs.
//
// It is pure: it reads Kubernetes objects as values. It may not read a cache or call an API.
package identity

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/pool"
)

// AnnotationEnabled on a pod says "true" or "false": whether it has a fixed address. Without it that
// goes by its kind of workload: a pod of a StatefulSet has one.
const AnnotationEnabled = "fixedip.io/enabled"

// Annotations of a pod that ask for certain addresses, which package request reads. A pod without a
// controller has a fixed address where it has one of them.
const (
	AnnotationIPs    = "fixedip.io/ips"
	AnnotationCalico = "cni.projectcalico.org/ipAddrs"
)

// podKind is the owner's kind of a pod that has no controller: it is its own workload.
const podKind = "Pod"

// Owner is the workload that an address is kept for.
type Owner struct {
	APIVersion, Kind, Name string
	UID                    types.UID
}

// OwnerOf is the owner that a record names.
func OwnerOf(r *v1alpha1.FixedIP) Owner {
	o := r.Spec.Owner
	return Owner{APIVersion: o.APIVersion, Kind: o.Kind, Name: o.Name, UID: o.UID}
}

// GroupKind is the owner's kind, in whatever version.
func (o Owner) GroupKind() schema.GroupKind {
	return schema.FromAPIVersionAndKind(o.APIVersion, o.Kind).GroupKind()
}

// Label is the owner's kind as pool entries name it.
func (o Owner) Label() string { return Label(o.GroupKind()) }

// Identity is who keeps an address for life. For a StatefulSet it is the pod's name: a pod that
// comes back under it is the same to its peers. For a workload with slots it is one of them, and the
// pod names its holder.
type Identity struct {
	Namespace, PodName string
	Owner              Owner
	// Slot: the pod's name is not lasting; it has one of the slots of its owner.
	Slot bool
}

// Key is the identity as pool entries name it.
func (i Identity) Key() string { return pool.OwnerKey(i.Namespace, i.PodName) }

// Resource is the identity's workload as pool entries name it.
func (i Identity) Resource() string { return Resource(i.Namespace, i.Owner.GroupKind(), i.Owner.Name) }

// Itself tells whether the identity is that of a pod without a controller.
func (i Identity) Itself() bool { return i.Owner.GroupKind() == schema.GroupKind{Kind: podKind} }

// Entry returns the pool entry that gives an address to the identity.
func (i Identity) Entry() pool.Entry {
	if i.Itself() {
		return pool.BarePodEntry(i.Namespace, i.PodName)
	}
	return pool.OwnedEntry(i.Namespace, i.PodName, i.Owner.Label(), i.Owner.Name)
}

// Controllers finds what controls an object that controls a pod: a ReplicaSet, as a rule. seen is
// false where that object, with that UID, is not known.
type Controllers func(namespace string, of metav1.OwnerReference) (by *metav1.OwnerReference, seen bool)

// NoControllers knows none, for those to whom pods with slots are no matter: these are all that a
// ReplicaSet controls.
func NoControllers(string, metav1.OwnerReference) (by *metav1.OwnerReference, seen bool) {
	return nil, false
}

// ErrUnseen: what controls a pod is not known yet, so that nobody can say whom it belongs to.
var ErrUnseen = errors.New("not seen yet")

// Of is the identity of a pod. fixed is false where the pod has no fixed address: it is of no kind
// that has any, it is not meant to have one, or it uses the network of its host. A pod without a
// controller has one where it says so, or asks for certain addresses. An annotation that
// cannot be read is an error: the pod must not start with an address that its author did not mean.
// ErrUnseen is one as well.
func Of(pod *corev1.Pod, kinds Kinds, controllers Controllers) (id Identity, fixed bool, err error) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if pod.Spec.HostNetwork || owner != nil && !kinds.mayOwn(owner) {
		return Identity{}, false, nil
	}
	enabled, said, err := enabled(pod)
	if err != nil || said && !enabled {
		return Identity{}, false, err
	}
	if owner == nil {
		_, ours := pod.Annotations[AnnotationIPs]
		_, calico := pod.Annotations[AnnotationCalico]
		if !said && !ours && !calico {
			return Identity{}, false, nil
		}
		return itself(pod), true, nil
	}
	enabling := ByDefault
	if said {
		enabling = ByAnnotation
	}
	// A kind counts if it is enabled as strongly as the pod needs: one that is so by default, or any
	// where the pod itself says it.
	counts := func(k Kind, known bool) bool { return known && (k.Enabled == ByDefault || enabling == ByAnnotation) }
	if groupKind(owner) == ReplicaSets {
		if !slices.ContainsFunc(kinds.list, func(k Kind) bool { return k.Identity == Slot && counts(k, true) }) {
			return Identity{}, false, nil
		}
		by, seen := controllers(pod.Namespace, *owner)
		if !seen {
			return Identity{}, false, fmt.Errorf("the %s %s of pod %s/%s: %w", owner.Kind, owner.Name, pod.Namespace, pod.Name, ErrUnseen)
		}
		if by != nil {
			// A ReplicaSet hands its pods on to whoever controls it.
			owner = by
		}
	}
	kind, known := kinds.Of(groupKind(owner))
	if !counts(kind, known) {
		return Identity{}, false, nil
	}
	return Identity{
		Namespace: pod.Namespace,
		PodName:   pod.Name,
		Owner:     Owner{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID},
		Slot:      kind.Identity == Slot,
	}, true, nil
}

// enabled is what AnnotationEnabled on a pod says; said is false where it is not there.
func enabled(pod *corev1.Pod) (enabled, said bool, err error) {
	v, said := pod.Annotations[AnnotationEnabled]
	if !said {
		return false, false, nil
	}
	if enabled, err = strconv.ParseBool(v); err != nil {
		return false, true, fmt.Errorf("annotation %s of pod %s/%s is %q; write \"true\" or \"false\"", AnnotationEnabled, pod.Namespace, pod.Name, v)
	}
	return enabled, true, nil
}

// itself is the identity of a pod without a controller.
func itself(pod *corev1.Pod) Identity {
	return Identity{Namespace: pod.Namespace, PodName: pod.Name, Owner: Owner{APIVersion: "v1", Kind: podKind, Name: pod.Name, UID: pod.UID}}
}

// mayOwn tells whether the controller of a pod is of a kind with fixed addresses, or leads to one.
func (k Kinds) mayOwn(owner *metav1.OwnerReference) bool {
	gk := groupKind(owner)
	_, known := k.Of(gk)
	return known || gk == ReplicaSets && k.Slots()
}

func groupKind(owner *metav1.OwnerReference) schema.GroupKind {
	return schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind()
}

// OptsOut tells whether annotations, of a pod or of the template that pods are made from, say that
// there is to be no fixed address. What can't be read says nothing.
func OptsOut(annotations map[string]string) bool {
	enabled, err := strconv.ParseBool(annotations[AnnotationEnabled])
	return err == nil && !enabled
}

// OptsIn tells whether annotations say that there is to be a fixed address.
func OptsIn(annotations map[string]string) bool {
	enabled, err := strconv.ParseBool(annotations[AnnotationEnabled])
	return err == nil && enabled
}
