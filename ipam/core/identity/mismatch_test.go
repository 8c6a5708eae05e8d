// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package identity_test

import (
	"testing"

	"fixedip.io/fixedip/ipam/core/identity"
)

func TestMismatchPolicy(t *testing.T) {
	annotated := func(v string) map[string]string { return map[string]string{identity.AnnotationOnMismatch: v} }
	for name, c := range map[string]struct {
		workload, pod map[string]string
		want          identity.OnMismatch
		invalid       bool
	}{
		"no annotation":                               {want: identity.Restart},
		"annotation of the pod":                       {pod: annotated("Report"), want: identity.Report},
		"annotation of the workload takes precedence": {workload: annotated("Restart"), pod: annotated("Report"), want: identity.Restart},
		"an invalid value":                            {workload: annotated("restart"), want: identity.Report, invalid: true},
	} {
		got, err := identity.MismatchPolicy(c.workload, c.pod, identity.Restart)
		if got != c.want || (err != nil) != c.invalid {
			t.Errorf("%s: MismatchPolicy returns %q, error %v; want %q, an error: %v", name, got, err, c.want, c.invalid)
		}
	}
}
