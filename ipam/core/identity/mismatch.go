// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package identity

import "fmt"

// AnnotationOnMismatch on a workload or on its pods is the policy for pods that run with another address than their
// fixed address: "Restart" or "Report".
const AnnotationOnMismatch = "fixedip.io/mismatch-policy"

// OnMismatch is the policy for a pod with a mismatch.
type OnMismatch string

const (
	// Restart evicts the pod, so that it starts again with its fixed address.
	Restart OnMismatch = "Restart"
	// Report reports the mismatch and does not restart the pod.
	Report OnMismatch = "Report"
)

// ParseOnMismatch parses the policy from a flag or an annotation.
func ParseOnMismatch(s string) (OnMismatch, error) {
	switch p := OnMismatch(s); p {
	case Restart, Report:
		return p, nil
	}
	return "", fmt.Errorf("%q is neither Restart nor Report", s)
}

// MismatchPolicy returns the policy from the annotations of a workload or, if there is none, of its pod, or else the
// given default. For an invalid annotation it returns Report and an error: a typing error must not restart pods.
func MismatchPolicy(workload, pod map[string]string, otherwise OnMismatch) (OnMismatch, error) {
	v, ok := annotation(AnnotationOnMismatch, workload, pod)
	if !ok {
		return otherwise, nil
	}
	p, err := ParseOnMismatch(v)
	if err != nil {
		return Report, fmt.Errorf("annotation %s is %q; write Restart or Report", AnnotationOnMismatch, v)
	}
	return p, nil
}
