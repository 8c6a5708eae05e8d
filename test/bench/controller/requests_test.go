// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestKeyOf(t *testing.T) {
	for path, want := range map[string]string{
		"/api/v1/nodes/worker-1":                                      "PATCH nodes",
		"/api/v1/namespaces":                                          "PATCH namespaces",
		"/api/v1/namespaces/team/pods":                                "PATCH pods",
		"/api/v1/namespaces/team/pods/web-0/binding":                  "PATCH pods/binding",
		"/apis/cilium.io/v2/ciliumnodes/worker-1/status":              "PATCH ciliumnodes/status",
		"/apis/cilium.io/v2/namespaces/team/ciliumendpoints/web-0":    "PATCH ciliumendpoints",
		"/apis/fixedip.io/v1alpha1/namespaces/team/fixedips/a/status": "PATCH fixedips/status",
	} {
		if got := keyOf("PATCH", path); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}
