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

// Offline contains the commands that need the public internet. Value: the command that is run instead on a machine without it.
var Offline = map[string]string{
	"kubectl apply -f https://raw.githubusercontent.com/kubernetes-sigs/scheduler-plugins/v0.34.7/manifests/coscheduling/crd.yaml": `kubectl apply -f "$(go list -m -f '{{.Dir}}' sigs.k8s.io/scheduler-plugins)/manifests/coscheduling/crd.yaml"`,
}

// Documents returns the pages of docs/start and docs/tasks of the repository in the folder root, Quickstart first. Their File is
// relative to root.
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
				return nil, fmt.Errorf("name page %s: %w", file, err)
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
