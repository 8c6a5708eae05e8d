// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Index returns an OCI image index of images that differ only in their platforms. Index reads the platforms from the
// configurations of the images.
func Index(images []v1.Image, annotations map[string]string) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, img := range images {
		config, err := img.ConfigFile()
		if err != nil {
			return nil, fmt.Errorf("read the configuration: %w", err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: config.OS, Architecture: config.Architecture}},
		})
	}
	annotated, ok := mutate.Annotations(index, annotations).(v1.ImageIndex)
	if !ok {
		return nil, errors.New("set the annotations: the result is not an image index")
	}
	return annotated, nil
}

// SaveLayout writes an image index to an archive that contains an OCI layout, with a reference such as
// fixedip-controller:v1.0.0. skopeo, podman, containerd and docker read such archives. All files in the archive get the time
// modified, so that equal images result in equal archives.
func SaveLayout(index v1.ImageIndex, reference, file string, modified time.Time) error {
	dir, err := os.MkdirTemp("", "oci-layout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	written, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("create the OCI layout of image %s: %w", reference, err)
	}
	_, tag, _ := strings.Cut(reference, ":")
	// The first annotation is that of OCI; containerd reads the full name from the second.
	names := map[string]string{"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": reference}
	if err := written.AppendIndex(index, layout.WithAnnotations(names)); err != nil {
		return fmt.Errorf("write the OCI layout of image %s: %w", reference, err)
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := errors.Join(packFolder(out, dir, modified), out.Close()); err != nil {
		return fmt.Errorf("write the archive of image %s: %w", reference, err)
	}
	return nil
}

// packFolder writes the files of a folder to w as a tar archive, in the order of their names.
func packFolder(w io.Writer, dir string, modified time.Time) error {
	archive := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		inside, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		header := tar.Header{Typeflag: tar.TypeReg, Name: path.Clean(filepath.ToSlash(inside)), Size: int64(len(data)), Mode: 0o644, ModTime: modified}
		if err := archive.WriteHeader(&header); err != nil {
			return err
		}
		_, err = archive.Write(data)
		return err
	})
	return errors.Join(err, archive.Close())
}
