// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"testing"

	"sigs.k8s.io/kustomize/api/types"
)

// TestTagsAreText checks that the kustomization keeps tags that YAML would read as numbers, such as commits of digits only.
func TestTagsAreText(t *testing.T) {
	for _, tag := range []string{"v1.0.0", "3200406", "12e4567", "0x10", "1_000"} {
		var k types.Kustomization
		if err := k.Unmarshal([]byte(fmt.Sprintf(installation, "../manifests", tag, tag, coolDown))); err != nil {
			t.Errorf("unmarshal the kustomization with the tag %s: %v", tag, err)
			continue
		}
		for _, image := range k.Images {
			if image.NewTag != tag {
				t.Errorf("image %s has the tag %q, want %q", image.Name, image.NewTag, tag)
			}
		}
		if len(k.Images) != 2 {
			t.Errorf("the kustomization with the tag %s has %d images, want 2", tag, len(k.Images))
		}
	}
}
