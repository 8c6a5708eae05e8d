// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// AnnotationFailover on a workload, its pod template or a bare pod is the failover policy: "Wait", "Migrate" or "Reassign".
const AnnotationFailover = "fixedip.io/failover"

// Failover returns the failover policy of a workload from its annotations or, if they have none, from those of its pod
// template; empty if neither has one. For a bare pod, workload contains the annotations of the pod. An error names the
// annotation and the value.
func Failover(workload, template map[string]string) (v1alpha1.Failover, error) {
	v, ok := annotation(AnnotationFailover, workload, template)
	if !ok {
		return "", nil
	}
	f, err := ParseFailover(v)
	if err != nil {
		return "", fmt.Errorf("annotation %s is %q; write Wait, Migrate or Reassign", AnnotationFailover, v)
	}
	return f, nil
}

// ParseFailover parses a failover policy. The error begins with the quoted value.
func ParseFailover(word string) (v1alpha1.Failover, error) {
	switch f := v1alpha1.Failover(word); f {
	case v1alpha1.Wait, v1alpha1.Migrate, v1alpha1.Reassign:
		return f, nil
	}
	return "", fmt.Errorf("%q is not a failover policy; write Wait, Migrate or Reassign", word)
}

// AnnotationOnMismatch on a workload or on its pods is the policy for pods that do not run with their fixed address or have no
// CiliumEndpoint: "Restart" or "Report".
const AnnotationOnMismatch = "fixedip.io/mismatch-policy"

// OnMismatch is the policy for a pod with a mismatch.
type OnMismatch string

const (
	// Restart means that the pod is evicted, so that the next pod starts with the fixed address. A bare pod is never evicted.
	Restart OnMismatch = "Restart"
	// Report means that the mismatch is reported and the pod is not evicted.
	Report OnMismatch = "Report"
)

// ParseOnMismatch parses a mismatch policy. The error begins with the quoted value.
func ParseOnMismatch(s string) (OnMismatch, error) {
	switch p := OnMismatch(s); p {
	case Restart, Report:
		return p, nil
	}
	return "", fmt.Errorf("%q is not a mismatch policy; write Restart or Report", s)
}

// MismatchPolicy returns the policy from the annotations of a workload or, if they have none, from those of its pod. If
// neither has one, the result is the third argument. For an invalid annotation it returns Report and an error, so that a typo
// does not restart pods.
func MismatchPolicy(workload, pod map[string]string, otherwise OnMismatch) (OnMismatch, error) {
	v, ok := annotation(AnnotationOnMismatch, workload, pod)
	if !ok {
		return otherwise, nil
	}
	p, err := ParseOnMismatch(v)
	if err != nil {
		of := "pod"
		if _, ok := workload[AnnotationOnMismatch]; ok {
			of = "workload"
		}
		return Report, fmt.Errorf("annotation %s of the %s is %q; write Restart or Report", AnnotationOnMismatch, of, v)
	}
	return p, nil
}

// Annotations of a workload, its pod template or a bare pod that define when the addresses are released.
const (
	// AnnotationWhenDeleted is "Delete" (the default of workloads) or "Retain" (the default of bare pods).
	AnnotationWhenDeleted = "fixedip.io/when-deleted"
	// AnnotationWhenScaled is "Retain" (the default) or "Delete".
	AnnotationWhenScaled = "fixedip.io/when-scaled"
	// AnnotationTTL is the duration by which the release of an address is delayed, such as "30m".
	AnnotationTTL = "fixedip.io/retention-ttl"
)

// DefaultReclaim returns the default reclaim policy of workloads.
func DefaultReclaim() v1alpha1.ReclaimPolicy {
	return v1alpha1.ReclaimPolicy{WhenDeleted: v1alpha1.Delete, WhenScaled: v1alpha1.Retain}
}

// NamedReclaim returns the default reclaim policy of bare pods: the address stays reserved for the name of the pod
// until a user deletes the FixedIP.
func NamedReclaim() v1alpha1.ReclaimPolicy {
	return v1alpha1.ReclaimPolicy{WhenDeleted: v1alpha1.Retain, WhenScaled: v1alpha1.Retain}
}

// maxTTLSeconds is the largest value of spec.reclaim.ttlSeconds of a FixedIP.
const maxTTLSeconds = int64(math.MaxInt64 / time.Second)

// Reclaim returns policy with the changes that annotations make. annotations are those of a bare pod, or those of a workload
// followed by those of its pod template; the first map that contains a key decides. An error names the annotation and the
// value; the returned policy is then empty.
func Reclaim(policy v1alpha1.ReclaimPolicy, annotations ...map[string]string) (v1alpha1.ReclaimPolicy, error) {
	for key, field := range map[string]*v1alpha1.Retention{AnnotationWhenDeleted: &policy.WhenDeleted, AnnotationWhenScaled: &policy.WhenScaled} {
		v, ok := annotation(key, annotations...)
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
	if v, ok := annotation(AnnotationTTL, annotations...); ok {
		ttl, err := time.ParseDuration(v)
		if err != nil || ttl < 0 {
			return v1alpha1.ReclaimPolicy{}, fmt.Errorf("annotation %s is %q; write a duration that is not negative, such as 30m or 24h", AnnotationTTL, v)
		}
		// Seconds are rounded up, so that the address stays reserved for at least the duration in the annotation. The
		// maximum is that of a time.Duration.
		policy.TTLSeconds = min(int64(math.Ceil(ttl.Seconds())), maxTTLSeconds)
	}
	return policy, nil
}

// Ordinal returns the ordinal in the name of a StatefulSet pod, and false if the name is not the workload, a dash and an
// ordinal without leading zeros.
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

// StatefulSetOf returns the name of the StatefulSet that a pod with this name would belong to, and false if the name does
// not end with a dash and an ordinal.
func StatefulSetOf(podName string) (string, bool) {
	i := strings.LastIndex(podName, "-")
	if i < 1 {
		return "", false
	}
	_, ok := Ordinal(podName, podName[:i])
	return podName[:i], ok
}
