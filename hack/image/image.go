// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// architectures contains the architecture names of images. Key: the machine of an ELF file.
var architectures = map[elf.Machine]string{
	elf.EM_X86_64:  "amd64",
	elf.EM_AARCH64: "arm64",
	elf.EM_PPC64:   "ppc64le",
	elf.EM_S390:    "s390x",
}

// Make builds the image of a recipe. dir is the folder to which File.From is relative. For a recipe of a Dockerfile, dir
// corresponds to the WORKDIR from which the Dockerfile copies. Equal files result in equal images, because an image contains no
// time, path or user of the build.
func Make(r Recipe, dir string) (v1.Image, error) {
	var layer bytes.Buffer
	machine, err := writeLayer(&layer, r, dir)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", r.Name, err)
	}
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil }
	packed, err := tarball.LayerFromOpener(opener, tarball.WithCompressedCaching, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("image %s: create the layer: %w", r.Name, err)
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.AppendLayers(base, packed)
	if err != nil {
		return nil, fmt.Errorf("image %s: append the layer: %w", r.Name, err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("image %s: read the configuration: %w", r.Name, err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", machine
	config.Created = v1.Time{Time: time.Unix(0, 0).UTC()}
	config.Config = v1.Config{User: r.User, Entrypoint: r.Entrypoint, WorkingDir: "/"}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return nil, fmt.Errorf("image %s: set the configuration: %w", r.Name, err)
	}
	return img, nil
}

// Save writes an image to an archive in the format of docker save, with a reference such as fixedip-controller:v1.0.0.
func Save(img v1.Image, reference, file string) error {
	tag, err := name.NewTag(reference)
	if err != nil {
		return fmt.Errorf("parse image reference %q: %w", reference, err)
	}
	if err := tarball.WriteToFile(file, tag, img); err != nil {
		return fmt.Errorf("write the archive of image %s: %w", reference, err)
	}
	return nil
}

// writeLayer writes the files of a recipe to w as a tar archive and returns the architecture of the last program among them.
// A recipe without a program is an error.
func writeLayer(w io.Writer, r Recipe, dir string) (architecture string, err error) {
	layer := tar.NewWriter(w)
	for _, f := range r.Files {
		data, err := os.ReadFile(filepath.Join(dir, f.From))
		if err != nil {
			return "", err
		}
		header := tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(f.To, "/"), Size: int64(len(data)), Mode: 0o644, ModTime: time.Unix(0, 0)}
		if bytes.HasPrefix(data, []byte(elf.ELFMAG)) {
			header.Mode = 0o755
			if architecture, err = static(data); err != nil {
				return "", fmt.Errorf("%s: %w", f.From, err)
			}
		}
		if err := layer.WriteHeader(&header); err != nil {
			return "", fmt.Errorf("write the header of %s: %w", f.From, err)
		}
		if _, err := layer.Write(data); err != nil {
			return "", fmt.Errorf("write the content of %s: %w", f.From, err)
		}
	}
	if architecture == "" {
		return "", errors.New("no file is a Linux program (ELF)")
	}
	return architecture, layer.Close()
}

// static returns the architecture of a program. A program that is linked dynamically, or whose architecture is not in
// architectures, is an error.
func static(program []byte) (architecture string, err error) {
	file, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return "", fmt.Errorf("parse the program: %w", err)
	}
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			return "", errors.New("the program is linked dynamically, but the image has no libraries; build it with CGO_ENABLED=0")
		}
	}
	if architecture = architectures[file.Machine]; architecture == "" {
		return "", fmt.Errorf("programs for %s are not supported", file.Machine)
	}
	return architecture, nil
}
