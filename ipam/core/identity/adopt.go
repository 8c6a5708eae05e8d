// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/json"
)

// LabelDBBranch is the label whose value can exclude a pod from adoption.
const LabelDBBranch = "DBBranch"

// Adoption selects the pods of other schedulers whose running address becomes their fixed address. The zero
// Adoption selects pods that ask for it by annotation.
type Adoption struct {
	// Selector selects pods by their labels; nil selects none.
	Selector labels.Selector
	// ExcludeDBBranch are prefixes of the label DBBranch. A pod with such a label is excluded.
	ExcludeDBBranch []string
	// IPv4Only excludes IPv6 addresses from adoption.
	IPv4Only bool
	// Schedulers are the names of our scheduler's profiles. Its pods are adopted only if they were bound and
	// have lost their entry.
	Schedulers []string
}

// Labels reports whether the labels of pods matter.
func (a Adoption) Labels() bool { return a.Selector != nil || len(a.ExcludeDBBranch) > 0 }

// Wants returns the identity of a pod that should be adopted. Exclusion takes precedence over the annotation;
// without an annotation the selector decides.
//
// A pod of a workload with slots (such as a pod of a ReplicaSet) is never adopted: another scheduler does not
// take slots over, so each new pod would need a new one.
func (a Adoption) Wants(pod *corev1.Pod, kinds Kinds) (id Identity, wanted bool, err error) {
	branch := pod.Labels[LabelDBBranch]
	if branch != "" && slices.ContainsFunc(a.ExcludeDBBranch, func(prefix string) bool { return strings.HasPrefix(branch, prefix) }) {
		return Identity{}, false, nil
	}
	// Of reads the annotation again, and returns an error if it is neither true nor false.
	asks, _ := strconv.ParseBool(pod.Annotations[AnnotationEnabled])
	if !asks && (a.Selector == nil || !a.Selector.Matches(labels.Set(pod.Labels))) {
		return Identity{}, false, nil
	}
	id, wanted, err = Of(pod, kinds, NoControllers)
	if errors.Is(err, ErrUnseen) || id.Slot {
		return Identity{}, false, nil
	}
	if _, said := pod.Annotations[AnnotationEnabled]; !wanted && !said && err == nil && metav1.GetControllerOfNoCopy(pod) == nil && !pod.Spec.HostNetwork {
		// A bare pod that the selector matches.
		return itself(pod), true, nil
	}
	return id, wanted, err
}

// Placed returns the identity of a pod that our scheduler places. ours is false for pods of other schedulers and
// of workloads with slots.
func (a Adoption) Placed(pod *corev1.Pod, kinds Kinds) (id Identity, ours bool) {
	if !slices.Contains(a.Schedulers, pod.Spec.SchedulerName) {
		return Identity{}, false
	}
	id, fixed, err := Of(pod, kinds, NoControllers)
	return id, err == nil && fixed && !id.Slot
}

// ParseSelector parses a label selector: a JSON LabelSelector such as {"matchLabels":{"app":"mysql"}}, or the
// format of kubectl, such as app=mysql,env!=test. An empty text returns nil, which selects nothing.
func ParseSelector(s string) (labels.Selector, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return nil, nil
	}
	if !strings.HasPrefix(s, "{") {
		return ParseLabels(s)
	}
	var selector metav1.LabelSelector
	strict, err := json.UnmarshalStrict([]byte(s), &selector)
	if err := errors.Join(append(strict, err)...); err != nil {
		return nil, fmt.Errorf("not a LabelSelector in JSON: %w", err)
	}
	return metav1.LabelSelectorAsSelector(&selector)
}

// ParseLabels parses a selector in the format of kubectl. A selector that selects everything is an error, because
// the text was blank or began with a zero byte, which the library takes for the end.
func ParseLabels(s string) (labels.Selector, error) {
	selector, err := labels.Parse(s)
	if err != nil {
		return nil, err
	}
	if selector.Empty() || strings.ContainsRune(s, 0) {
		return nil, errors.New("the selector must name labels, such as app=mysql,env!=test")
	}
	return selector, nil
}
