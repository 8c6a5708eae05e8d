package identity

import (
	"fmt"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// AnnotationFailover on a workload, or on its pod template, says what becomes of a pod whose node
// can't take it: "Wait", "Migrate" or "Reassign".
const AnnotationFailover = "fixedip.io/failover"

// Failover reads the policy from the annotations of a workload and of its pod template; the
// workload's own come first. It is empty where neither says anything. An error names the annotation
// and the value.
func Failover(workload, template map[string]string) (v1alpha1.Failover, error) {
	v, ok := workload[AnnotationFailover]
	if !ok {
		if v, ok = template[AnnotationFailover]; !ok {
			return "", nil
		}
	}
	f, err := ParseFailover(v)
	if err != nil {
		return "", fmt.Errorf("annotation %s is %w", AnnotationFailover, err)
	}
	return f, nil
}

// ParseFailover reads the word of a policy. The error begins with what was written.
func ParseFailover(word string) (v1alpha1.Failover, error) {
	switch f := v1alpha1.Failover(word); f {
	case v1alpha1.Wait, v1alpha1.Migrate, v1alpha1.Reassign:
		return f, nil
	}
	return "", fmt.Errorf("%q; write Wait, Migrate or Reassign", word)
}
