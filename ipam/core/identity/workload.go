// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Workload is the part of a workload that matters here. It may be of any kind.
type Workload struct {
	schema.GroupKind
	// APIVersion is the version in which it was read.
	APIVersion      string
	Namespace, Name string
	UID             types.UID
	// Annotations are those of the workload, Template those of its pod template.
	Annotations, Template map[string]string
	// Replicas is spec.replicas; nil if the kind has no such field.
	Replicas *int32
	// Surge is the number of pods that an update may add to the replicas temporarily.
	Surge int32
	// FirstOrdinal is spec.ordinals.start.
	FirstOrdinal int32
	// Reserved are the ordinals that the workload skips (spec.reserveOrdinals of OpenKruise), sorted and disjoint.
	Reserved []OrdinalRange
	// Uncounted is true if the ordinals of the workload cannot be counted: its pods keep their addresses.
	Uncounted bool
}

// OrdinalRange is a range of ordinals, both ends included.
type OrdinalRange struct{ First, Last int32 }

// Resource returns the name of the workload in pool entries: "namespace/Kind/name".
func (w Workload) Resource() string { return Resource(w.Namespace, w.GroupKind, w.Name) }

// Excludes reports whether the workload has no replica with this pod name. It counts ordinals as StatefulSets do:
// from FirstOrdinal, past the reserved ones, until there are Replicas of them. It returns false if that cannot be
// counted.
func (w Workload) Excludes(podName string) bool {
	n, ok := Ordinal(podName, w.Name)
	if !ok || w.Replicas == nil || w.Uncounted {
		return false
	}
	// Sums of two ordinals may need more than 32 bits.
	ordinal, first := int64(n), int64(w.FirstOrdinal)
	skipped := int64(0)
	for _, r := range w.Reserved {
		if int64(r.First) <= ordinal && ordinal <= int64(r.Last) {
			return true
		}
		if int64(r.First) < ordinal {
			skipped += max(0, int64(r.Last)-max(int64(r.First), first)+1)
		}
	}
	return ordinal < first || ordinal-first-skipped >= int64(*w.Replicas)
}

// annotation returns an annotation of the first object that has it.
func annotation(key string, objects ...map[string]string) (value string, ok bool) {
	for _, annotations := range objects {
		if value, ok = annotations[key]; ok {
			return value, true
		}
	}
	return "", false
}

// Resource returns the name of a workload in pool entries.
func Resource(namespace string, gk schema.GroupKind, name string) string {
	return namespace + "/" + Label(gk) + "/" + name
}
