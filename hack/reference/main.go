// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command reference writes pages of docs/reference from the code: the fields of the CustomResourceDefinitions, the
// annotations, the reasons of events, and the flags of the controller.
//
//	reference [-root FOLDER] [-check]
//
// With -check it writes nothing, and fails if a page differs.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// header is the second paragraph of each page.
const header = "Written by `make generate` from %s. Do not edit.\n"

// page is one page of docs/reference.
type page struct {
	file string
	// text returns the page. root is the folder of the repository.
	text func(root string) (string, error)
}

var pages = []page{
	{"fixedip.md", func(root string) (string, error) { return definition(root, "fixedip.io_fixedips.yaml") }},
	{"nodesubnet.md", func(root string) (string, error) { return definition(root, "fixedip.io_nodesubnets.yaml") }},
	{"annotations.md", annotationPage},
	{"events.md", eventPage},
	{"flags.md", flagPage},
}

func main() {
	root := flag.String("root", ".", "Folder of the repository")
	check := flag.Bool("check", false, "Fail if a page differs, and write nothing")
	flag.Parse()
	if err := run(*root, *check); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

func run(root string, check bool) error {
	var failed []error
	for _, p := range pages {
		text, err := p.text(root)
		if err != nil {
			return fmt.Errorf("%s: %w", p.file, err)
		}
		file := filepath.Join(root, "docs", "reference", p.file)
		if !check {
			failed = append(failed, os.WriteFile(file, []byte(text), 0o644))
			continue
		}
		have, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read the existing page: %w", err)
		}
		if !slices.Equal(have, []byte(text)) {
			failed = append(failed, fmt.Errorf("%s differs from the code; run make generate", file))
		}
	}
	return errors.Join(failed...)
}
