// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package realcluster

import (
	"path/filepath"
	"strings"

	"fixedip.io/fixedip/hack/image"
	"fixedip.io/fixedip/hack/realcluster/layout"
)

// testImages contains the images of the test pods. Key: the reference of the image. Value: the command of testpod.
var testImages = map[string]string{layout.PauseImage: "pause", layout.WebImage: "serve"}

// makeTestImages writes an archive of each test image to dir. programs is the folder of the built programs.
func makeTestImages(dir, programs string) error {
	for name, mode := range testImages {
		img, err := image.Make(image.Recipe{
			Name:       name,
			Files:      []image.File{{From: "fixedip-testpod", To: "/testpod"}},
			User:       "0:0",
			Entrypoint: []string{"/testpod", mode},
		}, programs)
		if err != nil {
			return err
		}
		if err := image.Save(img, name, testImage(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// testImage returns the path of the archive of a test image.
func testImage(dir, name string) string {
	return filepath.Join(dir, strings.NewReplacer("/", "-", ":", "-").Replace(name)+".tar")
}
