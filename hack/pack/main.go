// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command pack builds the images of the Dockerfile without a container engine, from built programs. It writes one archive
// for each stage from scratch and names it after the stage.
//
//	pack -tag VERSION -out FOLDER [DOCKERFILE]
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"fixedip.io/fixedip/hack/image"
)

func main() {
	tag := flag.String("tag", "latest", "tag of the images")
	out := flag.String("out", ".", "folder for the archives")
	flag.Parse()
	dockerfile := "Dockerfile"
	if flag.NArg() > 0 {
		dockerfile = flag.Arg(0)
	}
	if err := run(dockerfile, *tag, *out); err != nil {
		fmt.Fprintf(os.Stderr, "pack: %v\n", err)
		os.Exit(1)
	}
}

func run(dockerfile, tag, out string) error {
	file, err := os.Open(dockerfile)
	if err != nil {
		return err
	}
	defer file.Close()
	recipes, err := image.ReadDockerfile(file)
	if err != nil {
		return fmt.Errorf("%s: %w", dockerfile, err)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, r := range recipes {
		img, err := image.Make(r, filepath.Dir(dockerfile))
		if err != nil {
			return err
		}
		digest, err := img.Digest()
		if err != nil {
			return fmt.Errorf("image %s: %w", r.Name, err)
		}
		archive := filepath.Join(out, r.Name+".tar")
		if err := image.Save(img, r.Name+":"+tag, archive); err != nil {
			return err
		}
		fmt.Printf("%s: %s:%s@%s\n", archive, r.Name, tag, digest)
	}
	return nil
}
