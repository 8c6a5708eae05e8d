// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// TestSaveLayout checks that the archive of an image for two architectures is an OCI layout with types of OCI, that its
// blobs match their digests, and that the archive is the same when it is written again.
func TestSaveLayout(t *testing.T) {
	var images []v1.Image
	for _, machine := range []elf.Machine{elf.EM_X86_64, elf.EM_AARCH64} {
		img, err := Make(recipe, folder(t, program(t, machine, false)))
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, img)
	}
	index, err := Index(images, map[string]string{"org.opencontainers.image.version": "v1"})
	if err != nil {
		t.Fatal(err)
	}
	save := func() []byte {
		t.Helper()
		file := filepath.Join(t.TempDir(), "tool.tar")
		if err := SaveLayout(index, "tool:v1", file, time.Unix(1_700_000_000, 0)); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	archive := save()
	if !bytes.Equal(archive, save()) {
		t.Error("archives of one image differ, want equal archives")
	}

	read, err := layout.ImageIndexFromPath(unpack(t, archive))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(read); err != nil {
		t.Errorf("the layout is invalid: %v", err)
	}
	top, err := read.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{"org.opencontainers.image.ref.name": "v1", "io.containerd.image.name": "tool:v1"}
	if len(top.Manifests) != 1 || top.Manifests[0].MediaType != types.OCIImageIndex || !cmp.Equal(top.Manifests[0].Annotations, names) {
		t.Fatalf("got descriptors %+v, want one image index with the annotations %v", top.Manifests, names)
	}
	multi, err := read.ImageIndex(top.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := multi.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"org.opencontainers.image.version": "v1"}, manifest.Annotations); diff != "" {
		t.Errorf("annotations of the index (-want +got): %s", diff)
	}
	var got []string
	for _, d := range manifest.Manifests {
		img, err := multi.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		m, err := img.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, d.Platform.OS+"/"+d.Platform.Architecture, string(m.MediaType), string(m.Config.MediaType), string(m.Layers[0].MediaType))
	}
	want := []string{
		"linux/amd64", string(types.OCIManifestSchema1), string(types.OCIConfigJSON), string(types.OCILayer),
		"linux/arm64", string(types.OCIManifestSchema1), string(types.OCIConfigJSON), string(types.OCILayer),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("manifests (-want +got): %s", diff)
	}
}

// unpack unpacks a tar archive and returns the folder.
func unpack(t *testing.T, archive []byte) string {
	t.Helper()
	dir := t.TempDir()
	for files := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, h.Name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}
