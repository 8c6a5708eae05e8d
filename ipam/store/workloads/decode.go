// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package workloads

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/core/identity"
)

// seen is the part of an object that an informer keeps: a cluster has many, and most of each is not used here.
type seen struct {
	// ObjectMeta contains name and namespace, which caches use as the key.
	metav1.ObjectMeta
	workload identity.Workload
	// controller is the controller of the object; nil if there is none.
	controller *metav1.OwnerReference
}

// GetObjectKind returns an empty kind, which is not kept.
func (s *seen) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the same object, because it is never changed.
func (s *seen) DeepCopyObject() runtime.Object { return s }

// surges are the fields in which kinds define how many pods an update may add: Deployment, Rollout of Argo, and
// CloneSet of OpenKruise.
var surges = [][]string{
	{"spec", "strategy", "rollingUpdate", "maxSurge"},
	{"spec", "strategy", "canary", "maxSurge"},
	{"spec", "updateStrategy", "maxSurge"},
}

// decode converts an object of an informer: converted already, typed, or unstructured.
func decode(obj any) (*seen, error) {
	switch o := obj.(type) {
	case *seen:
		return o, nil
	case *appsv1.StatefulSet:
		s := described(o, schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "StatefulSet"})
		s.workload.Template = o.Spec.Template.Annotations
		s.workload.Replicas = o.Spec.Replicas
		if o.Spec.Ordinals != nil {
			s.workload.FirstOrdinal = o.Spec.Ordinals.Start
		}
		return s, nil
	case *appsv1.ReplicaSet:
		s := described(o, schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "ReplicaSet"})
		s.workload.Template = o.Spec.Template.Annotations
		s.workload.Replicas = o.Spec.Replicas
		return s, nil
	case *unstructured.Unstructured:
		return fromUnstructured(o), nil
	}
	return nil, fmt.Errorf("a workload of type %T can't be read", obj)
}

func described(o metav1.Object, gvk schema.GroupVersionKind) *seen {
	return &seen{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()},
		workload: identity.Workload{
			GroupKind:   gvk.GroupKind(),
			APIVersion:  gvk.GroupVersion().String(),
			Namespace:   o.GetNamespace(),
			Name:        o.GetName(),
			UID:         o.GetUID(),
			Annotations: o.GetAnnotations(),
		},
		controller: metav1.GetControllerOf(o),
	}
}

// Decode converts a workload of any kind.
func Decode(o *unstructured.Unstructured) *identity.Workload { return &fromUnstructured(o).workload }

// fromUnstructured reads the fields that have the same path as in a StatefulSet or a Deployment. A field of another
// type counts as absent.
func fromUnstructured(o *unstructured.Unstructured) *seen {
	s := described(o, o.GroupVersionKind())
	s.workload.Template, _, _ = unstructured.NestedStringMap(o.Object, "spec", "template", "metadata", "annotations")
	if n, ok := count(o, "spec", "replicas"); ok {
		s.workload.Replicas = &n
	}
	s.workload.FirstOrdinal, _ = count(o, "spec", "ordinals", "start")
	reserved, _, err := unstructured.NestedFieldNoCopy(o.Object, "spec", "reserveOrdinals")
	if s.workload.Reserved, err = ordinals(reserved, err); err != nil {
		s.workload.Uncounted = true
	}
	for _, path := range surges {
		switch v, _, _ := unstructured.NestedFieldNoCopy(o.Object, path...); v := v.(type) {
		case int64:
			s.workload.Surge = int32(min(max(v, 0), math.MaxInt32))
		case string:
			s.workload.Surge = surge(v, s.workload.Replicas)
		}
	}
	return s
}

// ordinals reads spec.reserveOrdinals of OpenKruise's StatefulSet: ordinals, and ranges such as "5-8". The result is
// sorted and disjoint.
func ordinals(v any, err error) ([]identity.OrdinalRange, error) {
	list, isList := v.([]any)
	if err != nil || v != nil && !isList {
		return nil, fmt.Errorf("reserveOrdinals is not a list: %v", v)
	}
	var ranges []identity.OrdinalRange
	for _, v := range list {
		first, last, isRange := strings.Cut(fmt.Sprint(v), "-")
		if !isRange {
			last = first
		}
		from, fromErr := strconv.ParseInt(strings.TrimSpace(first), 10, 32)
		to, toErr := strconv.ParseInt(strings.TrimSpace(last), 10, 32)
		if fromErr != nil || toErr != nil || from < 0 || to < from {
			return nil, fmt.Errorf("reserveOrdinals: %v is neither an ordinal nor a range of ordinals", v)
		}
		ranges = append(ranges, identity.OrdinalRange{First: int32(from), Last: int32(to)})
	}
	slices.SortFunc(ranges, func(a, b identity.OrdinalRange) int { return cmp.Compare(a.First, b.First) })
	var disjoint []identity.OrdinalRange
	for _, r := range ranges {
		if last := len(disjoint) - 1; last >= 0 && r.First <= disjoint[last].Last {
			disjoint[last].Last = max(disjoint[last].Last, r.Last)
			continue
		}
		disjoint = append(disjoint, r)
	}
	return disjoint, nil
}

// count returns a number of pods; negative numbers and numbers of more than 32 bits count as absent, so that no
// address is released because of them.
func count(o *unstructured.Unstructured, path ...string) (int32, bool) {
	n, ok, _ := unstructured.NestedInt64(o.Object, path...)
	if !ok || n < 0 || n > math.MaxInt32 {
		return 0, false
	}
	return int32(n), true
}

// surge is a maxSurge in percent as pods, rounded up as the kinds do that have one.
func surge(percent string, replicas *int32) int32 {
	surge := intstr.FromString(percent)
	n, err := intstr.GetScaledValueFromIntOrPercent(&surge, int(ptr.Deref(replicas, 0)), true)
	if err != nil {
		return 0
	}
	return int32(min(max(n, 0), math.MaxInt32))
}
