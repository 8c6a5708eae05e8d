// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package identity_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
)

func TestReclaim(t *testing.T) {
	type annotations = map[string]string
	for name, c := range map[string]struct {
		workload, template annotations
		want               v1alpha1.ReclaimPolicy
		wantErr            string
	}{
		"no annotation":                   {want: identity.DefaultReclaim()},
		"all annotations on the workload": {workload: annotations{"fixedip.io/when-deleted": "Retain", "fixedip.io/when-scaled": "Delete", "fixedip.io/retention-ttl": "30m"}, want: v1alpha1.ReclaimPolicy{WhenDeleted: "Retain", WhenScaled: "Delete", TTLSeconds: 1800}},
		"annotation on the template":      {template: annotations{"fixedip.io/retention-ttl": "1h"}, want: v1alpha1.ReclaimPolicy{WhenDeleted: "Delete", WhenScaled: "Retain", TTLSeconds: 3600}},
		"annotation on both":              {workload: annotations{"fixedip.io/retention-ttl": "2h"}, template: annotations{"fixedip.io/retention-ttl": "1h"}, want: v1alpha1.ReclaimPolicy{WhenDeleted: "Delete", WhenScaled: "Retain", TTLSeconds: 7200}},
		"unknown policy":                  {workload: annotations{"fixedip.io/when-deleted": "Keep"}, wantErr: `annotation fixedip.io/when-deleted is "Keep"; write Delete or Retain`},
		"wrong case":                      {workload: annotations{"fixedip.io/when-scaled": "retain"}, wantErr: `annotation fixedip.io/when-scaled is "retain"; write Delete or Retain`},
		"invalid duration":                {workload: annotations{"fixedip.io/retention-ttl": "1 day"}, wantErr: `annotation fixedip.io/retention-ttl is "1 day"; write a duration that is not negative, such as 30m or 24h`},
		"negative duration":               {workload: annotations{"fixedip.io/retention-ttl": "-1h"}, wantErr: `annotation fixedip.io/retention-ttl is "-1h"; write a duration that is not negative, such as 30m or 24h`},
	} {
		got, err := identity.Reclaim(identity.DefaultReclaim(), c.workload, c.template)
		message := ""
		if err != nil {
			message = err.Error()
		}
		if diff := cmp.Diff(c.want, got); diff != "" || message != c.wantErr {
			t.Errorf("%s: error %q, want %q; policy (-want +got): %s", name, message, c.wantErr, diff)
		}
	}
}

func TestOrdinal(t *testing.T) {
	for pod, want := range map[string]int32{"web-0": 0, "web-12": 12, "web-2147483647": 2147483647, "web": -1, "web-": -1, "web-x": -1, "web-01": -1, "web--1": -1, "web-0-0": -1, "other-0": -1, "web-2147483648": -1} {
		got, ok := identity.Ordinal(pod, "web")
		if ok != (want >= 0) || ok && got != want {
			t.Errorf("Ordinal(%s) returns %d, %v; want %d, or false for -1", pod, got, ok, want)
		}
	}
}
