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
		wantErr       string
	}{
		"no annotation":                               {want: identity.Restart},
		"annotation of the pod":                       {pod: annotated("Report"), want: identity.Report},
		"annotation of the workload takes precedence": {workload: annotated("Restart"), pod: annotated("Report"), want: identity.Restart},
		"an invalid value of the workload":            {workload: annotated("restart"), pod: annotated("x"), want: identity.Report, wantErr: `annotation fixedip.io/mismatch-policy of the workload is "restart"; write Restart or Report`},
		"an invalid value of the pod":                 {pod: annotated("restart"), want: identity.Report, wantErr: `annotation fixedip.io/mismatch-policy of the pod is "restart"; write Restart or Report`},
	} {
		got, err := identity.MismatchPolicy(c.workload, c.pod, identity.Restart)
		message := ""
		if err != nil {
			message = err.Error()
		}
		if got != c.want || message != c.wantErr {
			t.Errorf("%s: MismatchPolicy returns %q, error %q; want %q, error %q", name, got, message, c.want, c.wantErr)
		}
	}
}
