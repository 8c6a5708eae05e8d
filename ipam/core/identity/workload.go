// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"fixedip.io/fixedip/ipam/core/pool"
)

// Workload contains the fields of a workload, of any kind, on which the addresses of its pods depend.
type Workload struct {
	schema.GroupKind
	// APIVersion is the API version in which the workload was read.
	APIVersion      string
	Namespace, Name string
	UID             types.UID
	// Annotations are the annotations of the workload, Template the annotations of its pod template.
	Annotations, Template map[string]string
	// HostNetwork is true if the pods of the workload use the host network and so have no addresses of their own.
	HostNetwork bool
	// Replicas is spec.replicas; nil if the workload has no such field, or no valid value in it.
	Replicas *int32
	// Surge is the number of pods that an update may add to the replicas temporarily.
	Surge int32
	// FirstOrdinal is spec.ordinals.start.
	FirstOrdinal int32
	// Reserved are the ordinals that the workload skips (spec.reserveOrdinals of OpenKruise), sorted and disjoint.
	Reserved []OrdinalRange
	// Uncounted is true if the reserved ordinals of the workload cannot be read. Excludes returns false then, so that the pods
	// of the workload keep their addresses.
	Uncounted bool
}

// OptsOut reports whether the pods that the workload creates from now on exclude themselves from fixed addresses, by
// AnnotationEnabled in the pod template or by using the host network. It does not check whether the kind of the workload
// requires the annotation (ByAnnotation).
func (w Workload) OptsOut() bool { return w.HostNetwork || disables(w.Template) }

// OrdinalRange is a range of ordinals, both ends included.
type OrdinalRange struct{ First, Last int32 }

// Resource returns the name of the workload in pool entries: "namespace/Kind/name".
func (w Workload) Resource() string { return Resource(w.Namespace, w.GroupKind, w.Name) }

// Excludes reports whether the workload has no replica with this pod name. It counts ordinals as StatefulSets do: from
// FirstOrdinal upwards, without the reserved ones, until there are Replicas of them. It returns false if the name has no
// ordinal, the workload has no Replicas, or the ordinals cannot be read (Uncounted).
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

// annotation returns the value of the annotation key of the first object that has it, and false if none has it.
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
	return pool.WorkloadKey(namespace, Label(gk), name)
}

// Mode is the identity mode of a kind of workload.
type Mode string

const (
	// PodName means that the next pod has the same name, as in a StatefulSet.
	PodName Mode = "PodName"
	// Slot means that pod names are not stable, as in a Deployment. The workload has a set of addresses, and a new pod takes
	// over a slot whose pod has stopped.
	Slot Mode = "Slot"
)

// EnablePolicy defines which pods of a kind have a fixed address.
type EnablePolicy string

const (
	// ByDefault enables all pods except those with AnnotationEnabled "false".
	ByDefault EnablePolicy = "ByDefault"
	// ByAnnotation enables pods with AnnotationEnabled "true".
	ByAnnotation EnablePolicy = "ByAnnotation"
)

// Kind is a kind of workload whose pods may have fixed addresses.
type Kind struct {
	// APIGroup is the API group of the kind; empty for the core group. The API server chooses the version.
	APIGroup string       `json:"apiGroup,omitempty"`
	Kind     string       `json:"kind"`
	Identity Mode         `json:"identity"`
	Enabled  EnablePolicy `json:"enabled,omitempty"`
}

// GroupKind returns the group and kind.
func (k Kind) GroupKind() schema.GroupKind { return schema.GroupKind{Group: k.APIGroup, Kind: k.Kind} }

// Kinds of Kubernetes with special treatment.
var (
	// StatefulSets are always among the Kinds.
	StatefulSets = schema.GroupKind{Group: "apps", Kind: "StatefulSet"}
	// ReplicaSets control the pods of Deployments and of other kinds. The owner of such a pod is the controller of the
	// ReplicaSet, or the ReplicaSet if it has no controller.
	ReplicaSets = schema.GroupKind{Group: "apps", Kind: "ReplicaSet"}
)

// modes contains the built-in kinds of Kubernetes whose identity mode is known. Key: the kind. Value: the mode; empty if the
// configuration must not name the kind.
var modes = map[schema.GroupKind]Mode{
	StatefulSets:                        PodName,
	ReplicaSets:                         Slot,
	{Group: "apps", Kind: "Deployment"}: Slot,
	{Kind: "ReplicationController"}:     Slot,
	{Group: "apps", Kind: "DaemonSet"}:  "",
	{Group: "batch", Kind: "CronJob"}:   "",
	{Kind: "Pod"}:                       "",
}

// Configurable reports whether the configuration may name a kind of workload (see ValidateKinds). It returns false for built-in
// kinds of Kubernetes whose pods have neither stable names nor a stable number, such as DaemonSets, and for bare pods.
func Configurable(gk schema.GroupKind) bool {
	mode, known := modes[gk]
	return !known || mode != ""
}

// HasSlots reports whether gk is a built-in kind of Kubernetes whose pods have slots.
func HasSlots(gk schema.GroupKind) bool { return modes[gk] == Slot }

// Kinds contains the kinds of workloads whose pods may have fixed addresses. Create it with NewKinds: the zero value is
// empty.
type Kinds struct{ list []Kind }

// NewKinds returns the listed kinds (ByAnnotation, unless they set Enabled) and StatefulSets, which are ByDefault if the list
// does not contain them. The list has to pass ValidateKinds.
func NewKinds(list ...Kind) Kinds {
	all := []Kind{{APIGroup: StatefulSets.Group, Kind: StatefulSets.Kind, Identity: PodName, Enabled: ByDefault}}
	for _, k := range list {
		if k.Enabled == "" {
			k.Enabled = ByAnnotation
		}
		if k.GroupKind() == StatefulSets {
			all[0] = k
			continue
		}
		all = append(all, k)
	}
	return Kinds{all}
}

// All returns the kinds, StatefulSets first.
func (k Kinds) All() []Kind { return slices.Clone(k.list) }

// Of returns the configuration of a kind, and false if the kind is not configured.
func (k Kinds) Of(gk schema.GroupKind) (Kind, bool) {
	return k.find(func(k Kind) bool { return k.GroupKind() == gk })
}

// Labelled returns the kind with the given label in pool entries, and false if there is none. It is the inverse of Label.
func (k Kinds) Labelled(label string) (Kind, bool) {
	return k.find(func(k Kind) bool { return Label(k.GroupKind()) == label })
}

// Slots reports whether any kind has slots.
func (k Kinds) Slots() bool {
	_, found := k.find(func(k Kind) bool { return k.Identity == Slot })
	return found
}

// ResolveReplicaSets reports whether ReplicaSets have to be watched although they are not configured: a pod of a Deployment, or
// of another kind with slots, names only its ReplicaSet, and the ReplicaSet names the workload.
func (k Kinds) ResolveReplicaSets() bool {
	_, configured := k.Of(ReplicaSets)
	return k.Slots() && !configured
}

func (k Kinds) find(is func(Kind) bool) (Kind, bool) {
	i := slices.IndexFunc(k.list, is)
	if i < 0 {
		return Kind{}, false
	}
	return k.list[i], true
}

// Label returns the name of a kind in pool entries: the kind, followed by its group if the group has a dot, because two
// groups may have a kind StatefulSet. The group also follows if the kind is Pod and the group is not the core group, because
// an entry for the kind Pod is removed with its pod (pool.UnreservedKind).
func Label(gk schema.GroupKind) string {
	if strings.Contains(gk.Group, ".") || gk.Kind == PodKind && gk.Group != "" {
		return gk.Kind + "." + gk.Group
	}
	return gk.Kind
}

// dotlessGroups are the API groups of Kubernetes whose names have no dot and that have kinds of workloads. The group of a
// CustomResourceDefinition has a dot.
var dotlessGroups = []string{"apps", "", "batch"}

// LabelledKinds returns the kinds that may have the given label in pool entries, for callers that do not know which kinds
// are configured.
func LabelledKinds(label string) (kinds []schema.GroupKind) {
	gk := schema.ParseGroupKind(label)
	if gk.Group != "" {
		return []schema.GroupKind{gk}
	}
	for _, group := range dotlessGroups {
		kinds = append(kinds, schema.GroupKind{Group: group, Kind: gk.Kind})
	}
	return kinds
}

// ParseKind parses a kind as written in a flag: Kind.group=Identity or Kind.group=Identity:Enabled, such as
// Deployment.apps=Slot. It does not check the parts: callers check the result with ValidateKinds.
func ParseKind(text string) (Kind, error) {
	name, value, ok := strings.Cut(text, "=")
	if !ok || name == "" || value == "" {
		return Kind{}, fmt.Errorf("%q is not a kind of workload; write Kind.group=Identity or Kind.group=Identity:Enabled, such as Deployment.apps=Slot", text)
	}
	gk := schema.ParseGroupKind(name)
	mode, enabled, _ := strings.Cut(value, ":")
	return Kind{APIGroup: gk.Group, Kind: gk.Kind, Identity: Mode(mode), Enabled: EnablePolicy(enabled)}, nil
}

var kindPattern = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)

// ValidateKinds validates a list for NewKinds. Errors name the field and the value.
func ValidateKinds(path *field.Path, list []Kind) field.ErrorList {
	var errs field.ErrorList
	seen := map[schema.GroupKind]bool{}
	// labelled contains the kinds. Key: the label in pool entries.
	labelled := map[string]schema.GroupKind{Label(StatefulSets): StatefulSets}
	for i, k := range list {
		errs = append(errs, k.validate(path.Index(i))...)
		if seen[k.GroupKind()] {
			errs = append(errs, field.Duplicate(path.Index(i), k.GroupKind().String()))
		}
		seen[k.GroupKind()] = true
		label := Label(k.GroupKind())
		if other, taken := labelled[label]; taken && other != k.GroupKind() {
			errs = append(errs, field.Invalid(path.Index(i).Child("apiGroup"), k.APIGroup, fmt.Sprintf("pool entries cannot distinguish %[1]s of this group from %[1]s of group %[2]q; only one of the two can have fixed addresses", k.Kind, other.Group)))
		}
		labelled[label] = k.GroupKind()
	}
	return errs
}

func (k Kind) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if k.APIGroup != "" && len(validation.IsDNS1123Subdomain(k.APIGroup)) > 0 {
		errs = append(errs, field.Invalid(path.Child("apiGroup"), k.APIGroup, "must be an API group without a version, such as apps"))
	}
	switch {
	case k.Kind == "":
		errs = append(errs, field.Required(path.Child("kind"), "must be the kind of the workload, such as Deployment"))
	case !kindPattern.MatchString(k.Kind):
		errs = append(errs, field.Invalid(path.Child("kind"), k.Kind, "must be the kind as in a manifest, such as Deployment: a capital letter, followed by letters and digits"))
	}
	known, ok := modes[k.GroupKind()]
	switch {
	case !Configurable(k.GroupKind()):
		errs = append(errs, field.Invalid(path.Child("kind"), k.Kind, "must be a kind whose pods have stable names or a stable number; bare pods need no configuration"))
	case k.Identity == "":
		errs = append(errs, field.Required(path.Child("identity"), "must be PodName if pods return with the same name, otherwise Slot"))
	case k.Identity != PodName && k.Identity != Slot:
		errs = append(errs, field.NotSupported(path.Child("identity"), k.Identity, []Mode{PodName, Slot}))
	case ok && known != k.Identity:
		errs = append(errs, field.Invalid(path.Child("identity"), k.Identity, fmt.Sprintf("must be %s for a %s", known, k.Kind)))
	}
	if k.Enabled != "" && k.Enabled != ByDefault && k.Enabled != ByAnnotation {
		errs = append(errs, field.NotSupported(path.Child("enabled"), k.Enabled, []EnablePolicy{ByDefault, ByAnnotation}))
	}
	return errs
}
