// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/json"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/pool"
)

// AnnotationEnabled on a pod defines whether the pod has a fixed address: "true" or "false". The default depends on the
// kind of its workload (Kind.Enabled). Pods of StatefulSets have a fixed address unless the configuration changes that.
const AnnotationEnabled = "fixedip.io/enabled"

// Annotations that request certain addresses: AnnotationIPs on a pod or its workload, AnnotationCalico on a pod. Package
// request reads them. A bare pod with one of them has a fixed address, unless it opts out (OptsOut).
const (
	AnnotationIPs    = "fixedip.io/ips"
	AnnotationCalico = "cni.projectcalico.org/ipAddrs"
)

// PodKind is the kind of the Owner of a bare pod, which is the pod itself.
const PodKind = "Pod"

// Owner is the workload, or the bare pod, that an address is reserved for.
type Owner v1alpha1.OwnerReference

// OwnerOf returns the owner that a FixedIP names.
func OwnerOf(r *v1alpha1.FixedIP) Owner { return Owner(r.Spec.Owner) }

// OwnerFrom returns the owner that an owner reference of a pod names.
func OwnerFrom(r *metav1.OwnerReference) Owner {
	return Owner{APIVersion: r.APIVersion, Kind: r.Kind, Name: r.Name, UID: r.UID}
}

// GroupKind returns the group and kind of the owner.
func (o Owner) GroupKind() schema.GroupKind {
	return schema.FromAPIVersionAndKind(o.APIVersion, o.Kind).GroupKind()
}

// IsPod reports whether the owner is a bare pod.
func (o Owner) IsPod() bool { return o.GroupKind() == schema.GroupKind{Kind: PodKind} }

// Resource returns the text for the owner in pool entries: "namespace/Kind/name". namespace is the namespace of the
// owner.
func (o Owner) Resource(namespace string) string { return Resource(namespace, o.GroupKind(), o.Name) }

// Label returns the text for the kind of the owner in pool entries.
func (o Owner) Label() string { return Label(o.GroupKind()) }

// Identity is a pod name together with its workload, a bare pod, or a slot of a workload. It keeps its addresses when a pod
// ends: the next pod with the same name, or the next pod that takes over the slot, gets them. PodName of a slot is its
// holder.
type Identity struct {
	Namespace, PodName string
	Owner              Owner
	// Slot is true if pod names are not stable: the pod has one of the slots of its owner.
	Slot bool
}

// Key returns the owner text of the identity in pool entries.
func (i Identity) Key() string { return pool.OwnerKey(i.Namespace, i.PodName) }

// Resource returns the text for the workload of the identity in pool entries: "namespace/Kind/name".
func (i Identity) Resource() string { return i.Owner.Resource(i.Namespace) }

// IsBarePod reports whether the identity is that of a bare pod.
func (i Identity) IsBarePod() bool { return i.Owner.IsPod() }

// Entry returns the pool entry that gives an address to the identity.
func (i Identity) Entry() pool.Entry {
	if i.IsBarePod() {
		return pool.BarePodEntry(i.Namespace, i.PodName)
	}
	return pool.OwnedEntry(i.Namespace, i.PodName, i.Owner.Label(), i.Owner.Name)
}

// Controllers is a function that returns the controller of a ReplicaSet; by is nil if the ReplicaSet has none. of is the owner
// reference of a pod that names the ReplicaSet. seen is false if no ReplicaSet with that name and UID is known.
type Controllers func(namespace string, of metav1.OwnerReference) (by *metav1.OwnerReference, seen bool)

// NoControllers is a Controllers function that knows no ReplicaSet. It is for callers that do not need the identities of pods
// with slots.
func NoControllers(string, metav1.OwnerReference) (by *metav1.OwnerReference, seen bool) {
	return nil, false
}

// ErrUnseen means that the controller of a pod has not been seen yet, so its identity is unknown.
var ErrUnseen = errors.New("has not been seen yet")

// Of returns the identity of a pod. fixed is false if the pod has no fixed address: the kind of its workload is not
// configured or requires AnnotationEnabled, which the pod lacks; the annotation disables it; or the pod uses the host
// network. A bare pod has a fixed address if AnnotationEnabled enables it or an annotation requests addresses. An invalid
// AnnotationEnabled is an error, so that the pod does not start with an unintended address, except on a pod that has no fixed
// address whatever the annotation is. If the ReplicaSet of the pod has not been seen yet, the error matches ErrUnseen.
func Of(pod *corev1.Pod, kinds Kinds, controllers Controllers) (id Identity, fixed bool, err error) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if pod.Spec.HostNetwork || owner != nil && !kinds.mayOwn(owner) {
		return Identity{}, false, nil
	}
	enabled, present, err := boolean(pod, AnnotationEnabled)
	if err != nil || present && !enabled {
		return Identity{}, false, err
	}
	if owner == nil {
		if !present && !RequestsIPs(pod.Annotations, nil) {
			return Identity{}, false, nil
		}
		return barePod(pod), true, nil
	}
	// A configured kind counts if all its pods are enabled by default, or if the annotation enables this pod.
	counts := func(k Kind, known bool) bool { return known && (k.Enabled == ByDefault || present) }
	if OwnerFrom(owner).GroupKind() == ReplicaSets {
		if _, found := kinds.find(func(k Kind) bool { return k.Identity == Slot && counts(k, true) }); !found {
			return Identity{}, false, nil
		}
		by, seen := controllers(pod.Namespace, *owner)
		if !seen {
			return Identity{}, false, fmt.Errorf("%s %s of pod %s/%s %w; if that lasts, check that it exists, and that fixedip may list and watch ReplicaSets", owner.Kind, owner.Name, pod.Namespace, pod.Name, ErrUnseen)
		}
		if by != nil {
			// The pods of a ReplicaSet belong to its controller.
			owner = by
		}
	}
	of := OwnerFrom(owner)
	kind, known := kinds.Of(of.GroupKind())
	if !counts(kind, known) {
		return Identity{}, false, nil
	}
	return Identity{Namespace: pod.Namespace, PodName: pod.Name, Owner: of, Slot: kind.Identity == Slot}, true, nil
}

// boolean returns the value of an annotation that is true or false. present is false if the pod does not have the
// annotation. A value that strconv.ParseBool refuses is an error, which names the annotation, the pod and the value.
func boolean(pod *corev1.Pod, annotation string) (value, present bool, err error) {
	v, present := pod.Annotations[annotation]
	if !present {
		return false, false, nil
	}
	if value, err = strconv.ParseBool(v); err != nil {
		return false, true, fmt.Errorf("annotation %s of pod %s/%s is %q; write \"true\" or \"false\"", annotation, pod.Namespace, pod.Name, v)
	}
	return value, true, nil
}

// barePod returns the identity of a bare pod.
func barePod(pod *corev1.Pod) Identity {
	return Identity{Namespace: pod.Namespace, PodName: pod.Name, Owner: Owner{APIVersion: "v1", Kind: PodKind, Name: pod.Name, UID: pod.UID}}
}

// mayOwn reports whether owner, the controller of a pod, is of a configured kind. It also returns true for a ReplicaSet if
// any configured kind has slots, because the controller of the ReplicaSet may be of that kind.
func (k Kinds) mayOwn(owner *metav1.OwnerReference) bool {
	gk := OwnerFrom(owner).GroupKind()
	_, known := k.Of(gk)
	return known || gk == ReplicaSets && k.Slots()
}

// RequestsIPs reports whether the annotations of a pod or of its workload request certain addresses.
func RequestsIPs(pod, workload map[string]string) bool {
	_, requested := annotation(AnnotationIPs, pod, workload)
	_, calico := pod[AnnotationCalico]
	return requested || calico
}

// OptsOut reports whether a pod excludes itself from fixed addresses, by AnnotationEnabled or by using the host network.
func OptsOut(pod *corev1.Pod) bool { return pod.Spec.HostNetwork || disables(pod.Annotations) }

// disables reports whether annotations of a pod or a pod template disable fixed addresses. An invalid value counts as
// absent.
func disables(annotations map[string]string) bool {
	enabled, err := strconv.ParseBool(annotations[AnnotationEnabled])
	return err == nil && !enabled
}

// OptsIn reports whether annotations enable fixed addresses. An invalid value counts as absent.
func OptsIn(annotations map[string]string) bool {
	enabled, err := strconv.ParseBool(annotations[AnnotationEnabled])
	return err == nil && enabled
}

// PodNode returns the node that a pod is bound to. For a DaemonSet pod that is not bound it returns the node that the
// DaemonSet created the pod for. It is empty for all other pods.
func PodNode(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || owner.Kind != "DaemonSet" || pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil {
		return ""
	}
	required := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil {
		return ""
	}
	// The DaemonSet controller puts the name of the node into every term; terms are alternatives.
	for _, term := range required.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}

const (
	// AnnotationStickyMAC on a pod defines whether the next pod of the identity has the same MAC address too: "true" or
	// "false".
	AnnotationStickyMAC = "fixedip.io/sticky-mac"
	// AnnotationCiliumMAC is the annotation from which an agent takes the MAC address of a new interface (Cilium
	// fact 16). A value that a user set is not changed.
	AnnotationCiliumMAC = "cni.cilium.io/mac-address"
)

// WantsMAC reports whether the pod requests a stable MAC address and has no AnnotationCiliumMAC yet. An invalid
// AnnotationStickyMAC is an error.
func WantsMAC(pod *corev1.Pod) (bool, error) {
	wanted, _, err := boolean(pod, AnnotationStickyMAC)
	return wanted && pod.Annotations[AnnotationCiliumMAC] == "", err
}

// MAC returns the MAC address of the identity: a locally administered unicast address with 46 bits of a hash. For a slot, the
// hash is computed from the first of addrs. If the identity is not a slot, or if addrs is empty, it is computed from the
// namespace and name of the pod. So the MAC address need not be stored.
func (i Identity) MAC(addrs []netip.Addr) net.HardwareAddr {
	of := i.Key()
	if i.Slot && len(addrs) > 0 {
		of = addrs[0].String()
	}
	sum := sha256.Sum256([]byte("fixedip.io/mac/" + of))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^0x01 | 0x02
	return mac
}

// maxName is the maximum length of an object name.
const maxName = 253

// SlotName returns the name of the FixedIP of a slot: the workload and the first address of the slot, such as
// web-10-240-1-254. If that is too long for an object name, a hash replaces the end of the workload's name.
func SlotName(workload string, addr netip.Addr) string {
	suffix := "-" + strings.NewReplacer(".", "-", ":", "-").Replace(addr.String())
	if strings.HasSuffix(suffix, "-") {
		// The address ends in colons, and a name has to end in a letter or a digit.
		suffix += "0"
	}
	if len(workload)+len(suffix) > maxName {
		sum := sha256.Sum256([]byte(workload))
		hash := "-" + hex.EncodeToString(sum[:4])
		workload = strings.TrimRight(workload[:maxName-len(suffix)-len(hash)], "-.") + hash
	}
	return workload + suffix
}

// LabelDBBranch is the label whose value can exclude a pod from adoption.
const LabelDBBranch = "DBBranch"

// Adoption selects the pods of other schedulers whose current addresses become their fixed addresses. The zero Adoption
// selects only pods that request a fixed address by AnnotationEnabled.
type Adoption struct {
	// Selector selects pods by their labels; nil selects none.
	Selector labels.Selector
	// ExcludeDBBranch are prefixes of values of the label DBBranch. A pod with such a value is excluded.
	ExcludeDBBranch []string
	// IPv4Only excludes IPv6 addresses from adoption.
	IPv4Only bool
	// Schedulers are the names of our scheduler's profiles. A pod of these profiles that has a fixed address according to Of is
	// not adopted. Instead, the controller restores a pool entry that such a pod has lost, or evicts the pod. See Placed.
	Schedulers []string
}

// Labels reports whether adoption depends on the labels of pods.
func (a Adoption) Labels() bool { return a.Selector != nil || len(a.ExcludeDBBranch) > 0 }

// Excludes reports whether the label DBBranch of a pod has a value that begins with one of ExcludeDBBranch. A pod without the
// label, or with an empty value, is not excluded, even by an empty prefix.
func (a Adoption) Excludes(pod *corev1.Pod) bool {
	branch := pod.Labels[LabelDBBranch]
	return branch != "" && slices.ContainsFunc(a.ExcludeDBBranch, func(prefix string) bool { return strings.HasPrefix(branch, prefix) })
}

// Wants returns the identity of a pod that has to be adopted. wanted is false for all other pods. ExcludeDBBranch takes
// precedence over AnnotationEnabled, and AnnotationEnabled over Selector. An invalid AnnotationEnabled of a pod that
// Selector selects is an error. Wants ignores Schedulers: a pod for which Placed returns true must not be adopted, even if
// wanted is true.
//
// A pod of a workload with slots (such as a pod of a ReplicaSet) is never adopted: another scheduler does not take slots
// over, so each new pod would need a new slot.
func (a Adoption) Wants(pod *corev1.Pod, kinds Kinds) (id Identity, wanted bool, err error) {
	if a.Excludes(pod) {
		return Identity{}, false, nil
	}
	// Of reads the annotation again, and returns an error if it is neither true nor false.
	optsIn, _ := strconv.ParseBool(pod.Annotations[AnnotationEnabled])
	if !optsIn && (a.Selector == nil || !a.Selector.Matches(labels.Set(pod.Labels))) {
		return Identity{}, false, nil
	}
	id, wanted, err = Of(pod, kinds, NoControllers)
	if errors.Is(err, ErrUnseen) || id.Slot {
		return Identity{}, false, nil
	}
	if _, present := pod.Annotations[AnnotationEnabled]; !wanted && !present && err == nil && metav1.GetControllerOfNoCopy(pod) == nil && !pod.Spec.HostNetwork {
		// The selector matches a bare pod, for which Of requires an annotation.
		return barePod(pod), true, nil
	}
	return id, wanted, err
}

// Placed returns the identity of a pod with a fixed address that our scheduler places. ours is false for pods of other
// schedulers, and for pods whose identity is unknown or that have no fixed address.
func (a Adoption) Placed(pod *corev1.Pod, kinds Kinds, controllers Controllers) (id Identity, ours bool) {
	if !slices.Contains(a.Schedulers, pod.Spec.SchedulerName) {
		return Identity{}, false
	}
	id, fixed, err := Of(pod, kinds, controllers)
	return id, err == nil && fixed
}

// ParseSelector parses a label selector: a JSON LabelSelector such as {"matchLabels":{"app":"mysql"}}, or the format of
// kubectl, such as app=mysql,env!=test. For an empty text it returns nil.
func ParseSelector(s string) (*metav1.LabelSelector, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return nil, nil
	}
	if !strings.HasPrefix(s, "{") {
		parsed, err := ParseLabels(s)
		if err != nil {
			return nil, err
		}
		return toLabelSelector(parsed)
	}
	var selector metav1.LabelSelector
	strict, err := json.UnmarshalStrict([]byte(s), &selector)
	if err := errors.Join(append(strict, err)...); err != nil {
		return nil, fmt.Errorf("not a LabelSelector in JSON: %w", err)
	}
	return &selector, nil
}

// toLabelSelector converts a selector. (metav1.ParseToLabelSelector does not support !=.) The operators > and < are errors,
// because a LabelSelector does not have them.
func toLabelSelector(from labels.Selector) (*metav1.LabelSelector, error) {
	to := &metav1.LabelSelector{}
	requirements, _ := from.Requirements()
	for _, r := range requirements {
		expression := metav1.LabelSelectorRequirement{Key: r.Key(), Values: r.Values().List()}
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			expression.Operator = metav1.LabelSelectorOpIn
		case selection.NotEquals, selection.NotIn:
			expression.Operator = metav1.LabelSelectorOpNotIn
		case selection.Exists:
			expression.Operator = metav1.LabelSelectorOpExists
		case selection.DoesNotExist:
			expression.Operator = metav1.LabelSelectorOpDoesNotExist
		default:
			return nil, fmt.Errorf("operator %s of label %s is not supported; write =, !=, in, notin, or only the key", r.Operator(), r.Key())
		}
		to.MatchExpressions = append(to.MatchExpressions, expression)
	}
	return to, nil
}

// ParseLabels parses a selector in the format of kubectl. A selector that selects everything is an error. So is a text
// with a zero byte, because labels.Parse ignores the text after a zero byte.
func ParseLabels(s string) (labels.Selector, error) {
	selector, err := labels.Parse(s)
	if err != nil {
		return nil, err
	}
	if selector.Empty() || strings.ContainsRune(s, 0) {
		return nil, errors.New("the selector must name labels, such as app=mysql,env!=test, and have no zero byte")
	}
	return selector, nil
}
