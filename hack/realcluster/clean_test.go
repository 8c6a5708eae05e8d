// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package realcluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestIsWorkFolder checks that isWorkFolder returns an error for a folder that Down must not delete.
func TestIsWorkFolder(t *testing.T) {
	for name, c := range map[string]struct {
		entries []string
		err     string
	}{
		"empty":          {},
		"work folder":    {entries: []string{"nodes/", "logs/"}},
		"partly created": {entries: []string{"nodes/"}},
		"another folder": {entries: []string{"thesis.tex"}, err: "is not the work folder of a cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, entry := range c.entries {
				path := filepath.Join(dir, entry)
				var err error
				if strings.HasSuffix(entry, "/") {
					err = os.Mkdir(path, 0o755)
				} else {
					err = os.WriteFile(path, nil, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			err := isWorkFolder(dir)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("got error %v, want %q (empty: no error)", err, c.err)
			}
		})
	}
}

// TestCheckFolder checks that a work folder is refused if its path contains a character with a special meaning in a
// configuration or in a file name pattern.
func TestCheckFolder(t *testing.T) {
	for dir, want := range map[string]bool{
		"/tmp/cluster-1": true, "/tmp/c:1": false, "/tmp/my cluster": false,
		"/tmp/c*": false, "/tmp/c?": false, "/tmp/c[1]": false,
	} {
		if err := checkFolder(dir); (err == nil) != want {
			t.Errorf("folder %s: got error %v, want it to be allowed: %t", dir, err, want)
		}
	}
}
