// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package identity_test

import (
	"testing"

	"fixedip.io/fixedip/ipam/core/identity"
)

func TestMismatchPolicy(t *testing.T) {
	says := func(v string) map[string]string { return map[string]string{identity.AnnotationOnMismatch: v} }
	for name, c := range map[string]struct {
		workload, pod map[string]string
		want          identity.OnMismatch
		wrong         bool
	}{
		"nothing is said":           {want: identity.Restart},
		"the pod says so":           {pod: says("Report"), want: identity.Report},
		"the workload knows better": {workload: says("Restart"), pod: says("Report"), want: identity.Restart},
		"an invalid value":          {workload: says("restart"), want: identity.Report, wrong: true},
	} {
		got, err := identity.MismatchPolicy(c.workload, c.pod, identity.Restart)
		if got != c.want || (err != nil) != c.wrong {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
