package identity

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// LabelDBBranch is the label whose value can exclude a pod from adoption.
const LabelDBBranch = "DBBranch"

// Adoption says which pods that another scheduler placed get the address fixed that they run with.
// The zero Adoption takes those that ask for it by annotation.
type Adoption struct {
	// Selector chooses pods by their labels; nil: none.
	Selector labels.Selector
	// ExcludeDBBranch are beginnings of the label DBBranch: a pod whose label begins so is left
	// alone.
	ExcludeDBBranch []string
	// IPv4Only leaves IPv6 addresses as they come.
	IPv4Only bool
	// Schedulers are the names under which our scheduler places pods. Those get what they run with fixed
	// where they were bound and have lost what they were to have.
	Schedulers []string
}

// Labels tells whether the labels of pods are looked at.
func (a Adoption) Labels() bool { return a.Selector != nil || len(a.ExcludeDBBranch) > 0 }

// Wants is the identity of a pod that is to be adopted. What is excluded stays so whatever its
// annotation says; without an annotation the selector decides.
//
// A pod of a workload with slots is never wanted: where its scheduler does not hand slots on, each new
// pod would need another. Those under a ReplicaSet have slots.
func (a Adoption) Wants(pod *corev1.Pod, kinds Kinds) (id Identity, wanted bool, err error) {
	branch := pod.Labels[LabelDBBranch]
	for _, prefix := range a.ExcludeDBBranch {
		if branch != "" && strings.HasPrefix(branch, prefix) {
			return Identity{}, false, nil
		}
	}
	// Of reads the annotation, and refuses what is neither true nor false.
	asks, _ := strconv.ParseBool(pod.Annotations[AnnotationEnabled])
	if !asks && (a.Selector == nil || !a.Selector.Matches(labels.Set(pod.Labels))) {
		return Identity{}, false, nil
	}
	id, wanted, err = Of(pod, kinds, NoControllers)
	if errors.Is(err, ErrUnseen) || id.Slot {
		return Identity{}, false, nil
	}
	if _, said, _ := enabled(pod); !wanted && !said && err == nil && metav1.GetControllerOfNoCopy(pod) == nil && !pod.Spec.HostNetwork {
		// The selector speaks for it.
		return itself(pod), true, nil
	}
	return id, wanted, err
}

// Placed is the identity of a pod that our scheduler places. ours is false for those of others, and for
// pods of workloads with slots, whose names are no matter.
func (a Adoption) Placed(pod *corev1.Pod, kinds Kinds) (id Identity, ours bool) {
	if !slices.Contains(a.Schedulers, pod.Spec.SchedulerName) {
		return Identity{}, false
	}
	id, fixed, err := Of(pod, kinds, NoControllers)
	return id, err == nil && fixed && !id.Slot
}

// ParseSelector reads a selector of labels: a JSON LabelSelector such as
// {"matchLabels":{"app":"mysql"}}, or the form that kubectl takes, such as app=mysql,env!=test. The
// empty text selects nothing.
func ParseSelector(s string) (labels.Selector, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return nil, nil
	}
	if !strings.HasPrefix(s, "{") {
		return ParseLabels(s)
	}
	var selector metav1.LabelSelector
	d := json.NewDecoder(bytes.NewReader([]byte(s)))
	d.DisallowUnknownFields()
	if err := d.Decode(&selector); err != nil {
		return nil, fmt.Errorf("not a LabelSelector in JSON: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("not a LabelSelector in JSON: there is more after it")
	}
	return metav1.LabelSelectorAsSelector(&selector)
}

// ParseLabels reads a selector in the form that kubectl takes. One that chooses everything is refused: what
// there was to read has said nothing, such as a blank, or a zero byte, which the library takes for the end.
func ParseLabels(s string) (labels.Selector, error) {
	selector, err := labels.Parse(s)
	if err != nil {
		return nil, err
	}
	if selector.Empty() || strings.ContainsRune(s, 0) {
		return nil, errors.New("it has to choose by labels, such as app=mysql,env!=test")
	}
	return selector, nil
}
