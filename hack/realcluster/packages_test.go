// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package realcluster

import (
	"path/filepath"
	"testing"
)

// TestLookUp checks that programs are found in searchPath even if the PATH of this process lacks its folders, and that a path
// and an unknown name are returned unchanged.
func TestLookUp(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if got := lookUp("sh"); !filepath.IsAbs(got) || filepath.Base(got) != "sh" {
		t.Errorf("sh: got %q, want an absolute path", got)
	}
	for _, program := range []string{"/opt/bin/program", "no-such-program"} {
		if got := lookUp(program); got != program {
			t.Errorf("%s: got %q, want it unchanged", program, got)
		}
	}
}
