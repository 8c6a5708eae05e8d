// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package identity_test

import (
	"testing"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
)

func TestFailover(t *testing.T) {
	annotated := func(v string) map[string]string { return map[string]string{"fixedip.io/failover": v} }
	for name, c := range map[string]struct {
		workload, template map[string]string
		want               v1alpha1.Failover
		wantErr            string
	}{
		"no annotation":   {},
		"on the workload": {workload: annotated("Migrate"), want: v1alpha1.Migrate},
		"on the template": {template: annotated("Reassign"), want: v1alpha1.Reassign},
		"on both":         {workload: annotated("Wait"), template: annotated("Migrate"), want: v1alpha1.Wait},
		"unknown policy":  {workload: annotated("Move"), template: annotated("Migrate"), wantErr: `annotation fixedip.io/failover is "Move"; write Wait, Migrate or Reassign`},
		"wrong case":      {template: annotated("migrate"), wantErr: `annotation fixedip.io/failover is "migrate"; write Wait, Migrate or Reassign`},
		"empty":           {workload: annotated(""), wantErr: `annotation fixedip.io/failover is ""; write Wait, Migrate or Reassign`},
	} {
		got, err := identity.Failover(c.workload, c.template)
		message := ""
		if err != nil {
			message = err.Error()
		}
		if got != c.want || message != c.wantErr {
			t.Errorf("%s: Failover returns %q, error %q; want %q, error %q", name, got, message, c.want, c.wantErr)
		}
	}
}

func TestStatefulSetOf(t *testing.T) {
	for pod, want := range map[string]string{"web-0": "web", "web-db-12": "web-db", "web": "", "web-x": "", "-0": "", "web-01": ""} {
		if got, ok := identity.StatefulSetOf(pod); ok != (want != "") || ok && got != want {
			t.Errorf("StatefulSetOf(%s) returns %q, %v; want %q, or false for an empty text", pod, got, ok, want)
		}
	}
}
