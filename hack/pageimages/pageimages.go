// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package pageimages writes archives of the images that the documentation names, so that the commands of the documentation
// work unchanged on nodes without a registry.
package pageimages

import (
	"fmt"
	"os"
	"path/filepath"

	"fixedip.io/fixedip/hack/image"
)

// Names of images.
const (
	// Registry and Version are those of the images of fixedip in docs/start/quickstart.md.
	Registry = "registry.example.com"
	Version  = "v0.1.0"
	// Example is the image of manifests/examples. Write gives this name to an image that contains the program testpod, which
	// listens on port 8080 as the real image does.
	Example = "nginxinc/nginx-unprivileged:1.29"
)

// Write writes the archives to the folder dir, which is created if it is missing, and returns their paths. bin is the folder
// of the built programs, beside the Dockerfile.
func Write(bin, dir string) ([]string, error) {
	dockerfile := filepath.Join(filepath.Dir(bin), "Dockerfile")
	file, err := os.Open(dockerfile)
	if err != nil {
		return nil, fmt.Errorf("read the recipes of the images: %w", err)
	}
	defer file.Close()
	recipes, err := image.ReadDockerfile(file)
	if err != nil {
		return nil, fmt.Errorf("read the recipes of the images in %s: %w", dockerfile, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the folder of the images: %w", err)
	}
	var archives []string
	for _, r := range recipes {
		archive, err := write(r, filepath.Dir(bin), Registry+"/"+r.Name+":"+Version, filepath.Join(dir, r.Name+".tar"))
		if err != nil {
			return nil, err
		}
		archives = append(archives, archive)
	}
	example := image.Recipe{
		Name: "example", Files: []image.File{{From: "fixedip-testpod", To: "/testpod"}}, User: "101:101", Entrypoint: []string{"/testpod", "serve"},
	}
	archive, err := write(example, bin, Example, filepath.Join(dir, example.Name+".tar"))
	return append(archives, archive), err
}

// write writes the image of one recipe, whose files are in the folder source, to archive, and returns archive.
func write(r image.Recipe, source, reference, archive string) (string, error) {
	img, err := image.Make(r, source)
	if err != nil {
		return "", err
	}
	return archive, image.Save(img, reference, archive)
}
