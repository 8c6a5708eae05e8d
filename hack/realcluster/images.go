package realcluster

import (
	"path/filepath"
	"strings"

	"fixedip.io/fixedip/hack/image"
	"fixedip.io/fixedip/hack/realcluster/layout"
)

// testImages are the images of the test pods. Key: the name. Value: what testpod is to do.
var testImages = map[string]string{layout.PauseImage: "pause", layout.WebImage: "serve"}

// makeTestImages makes an archive of each in a folder, from the programs in another.
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

// testImage is the archive of a test image.
func testImage(dir, name string) string {
	return filepath.Join(dir, strings.NewReplacer("/", "-", ":", "-").Replace(name)+".tar")
}
