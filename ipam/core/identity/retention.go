package identity

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// Annotations of a workload, or of its pod template, that say when its addresses go back.
const (
	// AnnotationWhenDeleted: "Delete" (the default) or "Retain".
	AnnotationWhenDeleted = "fixedip.io/when-deleted"
	// AnnotationWhenScaled: "Retain" (the default) or "Delete".
	AnnotationWhenScaled = "fixedip.io/when-scaled"
	// AnnotationTTL: a duration such as "30m" for which an address that is to go back is kept.
	AnnotationTTL = "fixedip.io/retention-ttl"
)

// DefaultReclaim is the policy of a workload that says nothing.
func DefaultReclaim() v1alpha1.ReclaimPolicy {
	return v1alpha1.ReclaimPolicy{WhenDeleted: v1alpha1.Delete, WhenScaled: v1alpha1.Retain}
}

// NamedReclaim is the policy of a pod without a workload that says nothing: somebody wrote its
// address down for its name, and it is his to take back.
func NamedReclaim() v1alpha1.ReclaimPolicy {
	return v1alpha1.ReclaimPolicy{WhenDeleted: v1alpha1.Retain, WhenScaled: v1alpha1.Retain}
}

// Reclaim reads the policy from the annotations of a workload and of its pod template; the
// workload's own come first. An error names the annotation and the value; no part of the policy is
// to be used then.
func Reclaim(workload, template map[string]string) (v1alpha1.ReclaimPolicy, error) {
	return reclaim(DefaultReclaim(), workload, template)
}

// PodReclaim reads the policy of a pod without a workload from its annotations, as Reclaim does.
func PodReclaim(pod map[string]string) (v1alpha1.ReclaimPolicy, error) {
	return reclaim(NamedReclaim(), pod, nil)
}

func reclaim(policy v1alpha1.ReclaimPolicy, workload, template map[string]string) (v1alpha1.ReclaimPolicy, error) {
	lookup := func(key string) (string, bool) {
		if v, ok := workload[key]; ok {
			return v, true
		}
		v, ok := template[key]
		return v, ok
	}
	for key, field := range map[string]*v1alpha1.Retention{AnnotationWhenDeleted: &policy.WhenDeleted, AnnotationWhenScaled: &policy.WhenScaled} {
		v, ok := lookup(key)
		if !ok {
			continue
		}
		switch r := v1alpha1.Retention(v); r {
		case v1alpha1.Delete, v1alpha1.Retain:
			*field = r
		default:
			return v1alpha1.ReclaimPolicy{}, fmt.Errorf("annotation %s is %q; write Delete or Retain", key, v)
		}
	}
	if v, ok := lookup(AnnotationTTL); ok {
		ttl, err := time.ParseDuration(v)
		if err != nil || ttl < 0 {
			return v1alpha1.ReclaimPolicy{}, fmt.Errorf("annotation %s is %q; write a duration such as 30m or 24h", AnnotationTTL, v)
		}
		policy.TTL = metav1.Duration{Duration: ttl}
	}
	return policy, nil
}

// Ordinal is the number of a StatefulSet's pod, which its name ends in.
func Ordinal(podName, workload string) (int32, bool) {
	suffix, ok := strings.CutPrefix(podName, workload+"-")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(suffix, 10, 32)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != suffix {
		return 0, false
	}
	return int32(n), true
}

// StatefulSetOf is the name of the StatefulSet that a pod of that name is of, if it is of one.
func StatefulSetOf(podName string) (string, bool) {
	i := strings.LastIndex(podName, "-")
	if i < 1 {
		return "", false
	}
	_, ok := Ordinal(podName, podName[:i])
	return podName[:i], ok
}
