package identity

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Form says what keeps an address: how a pod of a kind of workload is known again.
type Form string

const (
	// PodName: a pod that comes back has the name that it had, as those of a StatefulSet do.
	PodName Form = "PodName"
	// Slot: names say nothing, as those of a Deployment's pods. The workload has a set of addresses,
	// and a new pod takes over the place of one that is gone.
	Slot Form = "Slot"
)

// Enabling says which pods of a kind have a fixed address.
type Enabling string

const (
	// ByDefault: all but those whose annotation AnnotationEnabled says "false".
	ByDefault Enabling = "ByDefault"
	// ByAnnotation: those whose annotation AnnotationEnabled says "true".
	ByAnnotation Enabling = "ByAnnotation"
)

// Kind is a kind of workload whose pods may have fixed addresses.
type Kind struct {
	// APIGroup of the kind; empty for the core group. Which of its versions is read is the API
	// server's choice.
	APIGroup, Kind string
	Identity       Form
	Enabled        Enabling
}

// GroupKind is the kind without what is said about it.
func (k Kind) GroupKind() schema.GroupKind { return schema.GroupKind{Group: k.APIGroup, Kind: k.Kind} }

// The kinds of Kubernetes that matter here.
var (
	// StatefulSets are always among the kinds.
	StatefulSets = schema.GroupKind{Group: "apps", Kind: "StatefulSet"}
	// ReplicaSets stand between a Deployment and its pods, and under other kinds as well.
	ReplicaSets = schema.GroupKind{Group: "apps", Kind: "ReplicaSet"}
)

// forms are the kinds of Kubernetes whose form is known. Key: the kind. Value: its form; empty where
// it has none that would do.
var forms = map[schema.GroupKind]Form{
	StatefulSets:                        PodName,
	ReplicaSets:                         Slot,
	{Group: "apps", Kind: "Deployment"}: Slot,
	{Kind: "ReplicationController"}:     Slot,
	{Group: "apps", Kind: "DaemonSet"}:  "",
	{Group: "batch", Kind: "CronJob"}:   "",
	{Kind: "Pod"}:                       "",
}

// Kinds are the kinds of workloads whose pods may have fixed addresses. The zero value has none:
// use NewKinds.
type Kinds struct{ list []Kind }

// NewKinds adds kinds to that which is always there: the StatefulSet, by default, unless the list
// says otherwise of it. What the list leaves out is ByAnnotation. The list has to pass
// ValidateKinds.
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

// All are the kinds, the StatefulSet first.
func (k Kinds) All() []Kind { return slices.Clone(k.list) }

// Of is what is said about a kind.
func (k Kinds) Of(gk schema.GroupKind) (Kind, bool) {
	i := slices.IndexFunc(k.list, func(k Kind) bool { return k.GroupKind() == gk })
	if i < 0 {
		return Kind{}, false
	}
	return k.list[i], true
}

// Labelled is the kind that pool entries give a name to: the inverse of Label.
func (k Kinds) Labelled(label string) (Kind, bool) {
	i := slices.IndexFunc(k.list, func(k Kind) bool { return Label(k.GroupKind()) == label })
	if i < 0 {
		return Kind{}, false
	}
	return k.list[i], true
}

// Slots tells whether any kind has slots.
func (k Kinds) Slots() bool {
	return slices.ContainsFunc(k.list, func(k Kind) bool { return k.Identity == Slot })
}

// Label is the name of a kind in a pool entry. The kinds of Kubernetes go by their kind alone, as
// they always did; the groups of others have a dot, and are named: two kinds may be called
// StatefulSet. So is any group whose kind is called Pod: an entry for a Pod in so many words goes with
// that pod (pool.UnreservedKind).
func Label(gk schema.GroupKind) string {
	if strings.Contains(gk.Group, ".") || gk.Kind == podKind && gk.Group != "" {
		return gk.Kind + "." + gk.Group
	}
	return gk.Kind
}

// ParseKind reads a kind as a flag has it: Kind.group=Identity, or Kind.group=Identity:Enabled, such
// as Deployment.apps=Slot. What it reads is for ValidateKinds to judge.
func ParseKind(text string) (Kind, error) {
	name, rest, ok := strings.Cut(text, "=")
	if !ok || name == "" || rest == "" {
		return Kind{}, fmt.Errorf("%q is not a kind of workload; write Kind.group=Identity, such as Deployment.apps=Slot", text)
	}
	gk := schema.ParseGroupKind(name)
	form, enabled, _ := strings.Cut(rest, ":")
	return Kind{APIGroup: gk.Group, Kind: gk.Kind, Identity: Form(form), Enabled: Enabling(enabled)}, nil
}

var kindPattern = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)

// ValidateKinds checks a list for NewKinds and names each field and value that is wrong.
func ValidateKinds(path *field.Path, list []Kind) field.ErrorList {
	var errs field.ErrorList
	seen := map[schema.GroupKind]bool{}
	// labelled are the kinds by the names that pool entries give them.
	labelled := map[string]schema.GroupKind{Label(StatefulSets): StatefulSets}
	for i, k := range list {
		errs = append(errs, k.validate(path.Index(i))...)
		if seen[k.GroupKind()] {
			errs = append(errs, field.Duplicate(path.Index(i), k.GroupKind().String()))
		}
		seen[k.GroupKind()] = true
		label := Label(k.GroupKind())
		if other, taken := labelled[label]; taken && other != k.GroupKind() {
			errs = append(errs, field.Invalid(path.Index(i).Child("apiGroup"), k.APIGroup, fmt.Sprintf("pool entries could not tell a %s from that of group %q", k.Kind, other.Group)))
		}
		labelled[label] = k.GroupKind()
	}
	return errs
}

func (k Kind) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if k.APIGroup != "" && len(validation.IsDNS1123Subdomain(k.APIGroup)) > 0 {
		errs = append(errs, field.Invalid(path.Child("apiGroup"), k.APIGroup, "must be an API group without its version, such as apps"))
	}
	switch {
	case k.Kind == "":
		errs = append(errs, field.Required(path.Child("kind"), "name the kind of the workload, such as Deployment"))
	case !kindPattern.MatchString(k.Kind):
		errs = append(errs, field.Invalid(path.Child("kind"), k.Kind, "must be a kind in the singular, such as Deployment"))
	}
	known, ok := forms[k.GroupKind()]
	switch {
	case ok && known == "":
		errs = append(errs, field.Invalid(path.Child("kind"), k.Kind, "its pods can't have fixed addresses: neither their names nor their number are lasting"))
	case k.Identity == "":
		errs = append(errs, field.Required(path.Child("identity"), "write PodName where pods come back under their names, and Slot where they don't"))
	case k.Identity != PodName && k.Identity != Slot:
		errs = append(errs, field.NotSupported(path.Child("identity"), k.Identity, []Form{PodName, Slot}))
	case ok && known != k.Identity:
		errs = append(errs, field.Invalid(path.Child("identity"), k.Identity, fmt.Sprintf("must be %s for a %s", known, k.Kind)))
	}
	if k.Enabled != "" && k.Enabled != ByDefault && k.Enabled != ByAnnotation {
		errs = append(errs, field.NotSupported(path.Child("enabled"), k.Enabled, []Enabling{ByDefault, ByAnnotation}))
	}
	return errs
}
