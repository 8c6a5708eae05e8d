// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command pageimages writes the archives of package pageimages.
//
//	pageimages -bin FOLDER -out FOLDER
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"fixedip.io/fixedip/hack/pageimages"
)

func main() {
	bin := flag.String("bin", "bin", "folder of the programs, beside the Dockerfile")
	out := flag.String("out", ".", "folder for the archives")
	flag.Parse()
	if err := run(*bin, *out); err != nil {
		fmt.Fprintf(os.Stderr, "pageimages: %v\n", err)
		os.Exit(1)
	}
}

func run(bin, out string) error {
	absolute, err := filepath.Abs(bin)
	if err != nil {
		return fmt.Errorf("find the folder of the programs: %w", err)
	}
	_, err = pageimages.Write(absolute, out)
	return err
}
