// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command reference writes the pages of docs/reference that come from other files: the fields of the API types from their
// CustomResourceDefinitions, and the flags of fixedip-controller from its help text.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

func main() {
	root := flag.String("root", ".", "Folder of the repository")
	flag.Parse()
	if err := run(*root); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

func run(root string) error {
	pages := filepath.Join(root, "docs", "reference")
	if err := os.MkdirAll(pages, 0o755); err != nil {
		return err
	}
	for page, crd := range map[string]string{"fixedip.md": "fixedip.io_fixedips.yaml", "nodesubnet.md": "fixedip.io_nodesubnets.yaml"} {
		data, err := os.ReadFile(filepath.Join(root, "manifests", "crd", crd))
		if err != nil {
			return err
		}
		text, err := fieldsPage(crd, data)
		if err != nil {
			return fmt.Errorf("%s: %w", crd, err)
		}
		if err := os.WriteFile(filepath.Join(pages, page), []byte(text), 0o644); err != nil {
			return err
		}
	}
	help := exec.Command("go", "run", "./cmd/fixedip-controller", "--help")
	help.Dir, help.Stderr = root, os.Stderr
	out, err := help.Output()
	if err != nil {
		return fmt.Errorf("%v: %w", help.Args, err)
	}
	text, err := flagsPage(string(out))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(pages, "flags.md"), []byte(text), 0o644)
}

// header returns the beginning of a page that is written from source.
func header(title, source string) string {
	return fmt.Sprintf("# %s\n\n<!-- Written by make generate from %s. Do not edit. -->\n", title, source)
}
