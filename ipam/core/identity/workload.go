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
}

// Resource names the workload as pool entries do: "namespace/Kind/name".
func (w Workload) Resource() string { return Resource(w.Namespace, w.GroupKind, w.Name) }

// Excludes tells whether the workload has fewer replicas than would take in a pod of that name. Of
// one whose pods have no ordinals it can't be told.
func (w Workload) Excludes(podName string) bool {
	ordinal, ok := Ordinal(podName, w.Name)
	if !ok || w.Replicas == nil {
		return false
	}
	// Their sum may be more than 32 bits hold.
	return ordinal < w.FirstOrdinal || int64(ordinal) >= int64(w.FirstOrdinal)+int64(*w.Replicas)
}

// Resource is how pool entries name a workload.
func Resource(namespace string, gk schema.GroupKind, name string) string {
	return namespace + "/" + Label(gk) + "/" + name
}
