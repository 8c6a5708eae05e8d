package identity

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Workload is what is read of an owner, of whatever kind.
type Workload struct {
	schema.GroupKind
	// APIVersion is the one that it was read in.
	APIVersion      string
	Namespace, Name string
	UID             types.UID
	// Annotations are its own, Template those of its pod template.
	Annotations, Template map[string]string
	// Replicas is spec.replicas; nil where the kind has no such field.
	Replicas *int32
	// Surge is how many pods an update may add to the replicas for a while.
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

// Resource names the workload as pool entries do: "namespace/Kind/name".
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

// Resource is how pool entries name a workload.
func Resource(namespace string, gk schema.GroupKind, name string) string {
	return namespace + "/" + Label(gk) + "/" + name
}
