// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package version

import (
	"strings"
	"testing"
)

// TestText checks that the version of fixedip comes before that of Kubernetes.
func TestText(t *testing.T) {
	before := fixedip
	t.Cleanup(func() { fixedip = before })
	fixedip = "v0.1.0"
	if got, want := Text("tool"), "tool v0.1.0 (Kubernetes "+Kubernetes()+")"; got != want || !strings.HasPrefix(Kubernetes(), "v") {
		t.Errorf("got %q, want %q", got, want)
	}
}
