// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fixedip.io/fixedip/hack/image"
)

// writeImages writes an archive with an OCI layout for each image of the Dockerfile. Each image has a manifest for each
// architecture. writeImages returns one line for each image: its name, version and digest.
func (r *release) writeImages() (digests []string, err error) {
	file, err := os.Open("Dockerfile")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	recipes, err := image.ReadDockerfile(file)
	if err != nil {
		return nil, fmt.Errorf("read the Dockerfile: %w", err)
	}
	for _, recipe := range recipes {
		var images []v1.Image
		for _, arch := range architectures {
			img, err := image.Make(recipe, r.platform("linux", arch))
			if err != nil {
				return nil, err
			}
			images = append(images, img)
		}
		index, err := image.Index(images, map[string]string{
			"org.opencontainers.image.title":    recipe.Name,
			"org.opencontainers.image.version":  r.version,
			"org.opencontainers.image.revision": r.commit,
			"org.opencontainers.image.created":  r.time.Format(time.RFC3339),
			"org.opencontainers.image.licenses": "Apache-2.0",
		})
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", recipe.Name, err)
		}
		digest, err := index.Digest()
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", recipe.Name, err)
		}
		name := fmt.Sprintf("%s_%s_image.tar", recipe.Name, r.version)
		if err := image.SaveLayout(index, recipe.Name+":"+r.version, r.file(name), r.time); err != nil {
			return nil, err
		}
		digests = append(digests, fmt.Sprintf("%s:%s@%s", recipe.Name, r.version, digest))
	}
	return digests, nil
}

// writeNotes writes the release notes: the entry of CHANGELOG.md, the digests of the images, and how to check the files.
func (r *release) writeNotes(digests []string) error {
	return os.WriteFile(r.file("release-notes.md"), []byte(notes(r.version, r.commit, r.notes, digests)), 0o644)
}

// notes returns the text of the release notes.
func notes(version, commit, entry string, digests []string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "# fixedip %s\n\n%s\n", version, entry)
	if len(digests) > 0 {
		fmt.Fprintf(&text, "\n## Images\n\n```\n%s\n```\n", strings.Join(digests, "\n"))
	}
	fmt.Fprintf(&text, "\n## Check the files\n\n`sha256sum --check %s` checks the downloaded files. They can be built again: `make release VERSION=%s` on commit\n%s writes equal files if the Go version is the one that the bills of materials name (`pkg:golang/std`),\nand if `RELEASE_URL` and `RELEASE_REGISTRY` have the values of this release, which `fixedip.yaml` and `install.yaml` show.\n", checksums, version, commit)
	return text.String()
}
