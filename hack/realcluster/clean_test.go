// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package realcluster

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestIsWorkFolder checks that isWorkFolder returns an error for a folder that Down must not delete.
func TestIsWorkFolder(t *testing.T) {
	const refused = "is not the work folder of a cluster"
	for name, c := range map[string]struct {
		// created is true if createFolder creates the folder.
		created bool
		// entries are added to the folder: folders end with a slash, and a link contains its target.
		entries []string
		err     string
	}{
		"empty":                              {},
		"work folder":                        {created: true, entries: []string{"logs/"}},
		"partly created":                     {entries: []string{marker}},
		"work folder of an earlier version":  {entries: []string{"nodes/", "tools/", "cni/", "cni/cilium-cni -> /bin/cilium-cni"}},
		"another folder":                     {entries: []string{"thesis.tex"}, err: refused},
		"another folder with a folder nodes": {entries: []string{"nodes/", "thesis.tex"}, err: refused},
		"another folder with CNI plugins":    {entries: []string{"nodes/", "cni/", "cni/cilium-cni"}, err: refused},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "cluster")
			err := os.Mkdir(dir, 0o755)
			if c.created {
				err = errors.Join(err, createFolder(dir))
			}
			for _, entry := range c.entries {
				link, target, isLink := strings.Cut(entry, " -> ")
				path := filepath.Join(dir, link)
				switch {
				case isLink:
					err = errors.Join(err, os.Symlink(target, path))
				case strings.HasSuffix(entry, "/"):
					err = errors.Join(err, os.Mkdir(path, 0o755))
				default:
					err = errors.Join(err, os.WriteFile(path, nil, 0o600))
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			err = isWorkFolder(dir)
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
