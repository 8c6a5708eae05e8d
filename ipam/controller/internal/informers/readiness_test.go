// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package informers

import "testing"

// TestReadiness checks that the readiness check fails until all informers are synced, and that the error names the informers
// that are not synced.
func TestReadiness(t *testing.T) {
	synced := map[string]bool{}
	w := Synced{}
	for _, resource := range []string{"pods", "fixedips", "ciliumnodes"} {
		w[resource] = func() bool { return synced[resource] }
	}
	for _, step := range []struct{ synced, want string }{
		{"", "informers not synced yet: ciliumnodes, fixedips, pods"},
		{"fixedips", "informers not synced yet: ciliumnodes, pods"},
		{"pods", "informers not synced yet: ciliumnodes"},
		{"ciliumnodes", ""},
	} {
		synced[step.synced] = true
		message := ""
		if err := w.check(nil); err != nil {
			message = err.Error()
		}
		if message != step.want {
			t.Errorf("after informer %q has synced: got error %q, want %q", step.synced, message, step.want)
		}
	}
}
