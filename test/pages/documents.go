// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"fmt"
	"path/filepath"
	"slices"
)

// Quickstart is the page that installs fixedip. It comes before all others.
const Quickstart = "docs/start/quickstart.md"

// Offline contains replacements for the commands of pages that need the public internet, so that the tests do not need it.
// Key: the command of the page. Value: the command that the tests run instead.
var Offline = map[string]string{
	"kubectl apply -f https://raw.githubusercontent.com/kubernetes-sigs/scheduler-plugins/v0.34.7/manifests/coscheduling/crd.yaml": `kubectl apply -f "$(go list -m -f '{{.Dir}}' sigs.k8s.io/scheduler-plugins)/manifests/coscheduling/crd.yaml"`,
}

// Documents returns the pages of docs/start and docs/tasks of the repository in the folder root, Quickstart first. The
// field File of a page is relative to root. Documents returns an error if a page cannot be read or parsed.
func Documents(root string) ([]Page, error) {
	var all []Page
	for _, folder := range []string{"start", "tasks"} {
		files, err := filepath.Glob(filepath.Join(root, "docs", folder, "*.md"))
		if err != nil {
			return nil, fmt.Errorf("list the pages of %s: %w", folder, err)
		}
		for _, file := range files {
			p, err := Read(file)
			if err != nil {
				return nil, err
			}
			if p.File, err = filepath.Rel(root, file); err != nil {
				return nil, fmt.Errorf("make the path of page %s relative to the repository: %w", file, err)
			}
			all = append(all, p)
		}
	}
	slices.SortStableFunc(all, func(a, b Page) int {
		switch Quickstart {
		case a.File:
			return -1
		case b.File:
			return 1
		}
		return 0
	})
	return all, nil
}
