// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"fmt"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// AnnotationFailover on a workload or its pod template is the failover policy: "Wait", "Migrate" or "Reassign".
const AnnotationFailover = "fixedip.io/failover"

// Failover returns the failover policy of a workload from its annotations or, if there is none, from those of its
// pod template; empty if neither has it. An error names the annotation and the value.
func Failover(workload, template map[string]string) (v1alpha1.Failover, error) {
	v, ok := annotation(AnnotationFailover, workload, template)
	if !ok {
		return "", nil
	}
	f, err := ParseFailover(v)
	if err != nil {
		return "", fmt.Errorf("annotation %s is %w", AnnotationFailover, err)
	}
	return f, nil
}

// ParseFailover parses a failover policy. The error begins with the quoted value.
func ParseFailover(word string) (v1alpha1.Failover, error) {
	switch f := v1alpha1.Failover(word); f {
	case v1alpha1.Wait, v1alpha1.Migrate, v1alpha1.Reassign:
		return f, nil
	}
	return "", fmt.Errorf("%q; write Wait, Migrate or Reassign", word)
}
