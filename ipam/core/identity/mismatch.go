package identity

import "fmt"

// AnnotationOnMismatch on a workload or on its pods says what is done about a pod that runs with
// another address than the one that is kept for it: "Restart" or "Report".
const AnnotationOnMismatch = "fixedip.io/mismatch-policy"

// OnMismatch is what is done about such a pod.
type OnMismatch string

const (
	// Restart evicts the pod, so that it starts again with its address.
	Restart OnMismatch = "Restart"
	// Report only tells of it.
	Report OnMismatch = "Report"
)

// ParseOnMismatch reads the policy from the text of a flag or an annotation.
func ParseOnMismatch(s string) (OnMismatch, error) {
	switch p := OnMismatch(s); p {
	case Restart, Report:
		return p, nil
	}
	return "", fmt.Errorf("%q is neither Restart nor Report", s)
}

// MismatchPolicy reads the policy from the annotations of a workload and of its pod; the workload's
// come first, and where neither says anything, it is otherwise. What can't be read is an error and
// Report: a pod is not restarted because of a slip of the pen.
func MismatchPolicy(workload, pod map[string]string, otherwise OnMismatch) (OnMismatch, error) {
	for _, annotations := range []map[string]string{workload, pod} {
		v, ok := annotations[AnnotationOnMismatch]
		if !ok {
			continue
		}
		p, err := ParseOnMismatch(v)
		if err != nil {
			return Report, fmt.Errorf("annotation %s is %q; write Restart or Report", AnnotationOnMismatch, v)
		}
		return p, nil
	}
	return otherwise, nil
}
