// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// packed is a file of an archive.
type packed struct {
	// name is the path in the archive. from is the path of the file with the content.
	name, from string
	mode       int64
}

// writeTarGz writes files to a compressed archive. All files get the same time, so that equal files result in an equal
// archive.
func writeTarGz(archive string, files []packed, modified time.Time) error {
	return create(archive, func(w io.Writer) error {
		compressed := gzip.NewWriter(w)
		out := tar.NewWriter(compressed)
		for _, f := range files {
			data, err := os.ReadFile(f.from)
			if err != nil {
				return err
			}
			header := tar.Header{Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(data)), Mode: f.mode, ModTime: modified}
			if err := out.WriteHeader(&header); err != nil {
				return err
			}
			if _, err := out.Write(data); err != nil {
				return err
			}
		}
		return errors.Join(out.Close(), compressed.Close())
	})
}

// writeZip writes files to a zip archive, with the same time for all.
func writeZip(archive string, files []packed, modified time.Time) error {
	return create(archive, func(w io.Writer) error {
		out := zip.NewWriter(w)
		for _, f := range files {
			data, err := os.ReadFile(f.from)
			if err != nil {
				return err
			}
			header := zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: modified.UTC()}
			header.SetMode(os.FileMode(f.mode))
			file, err := out.CreateHeader(&header)
			if err != nil {
				return err
			}
			if _, err := file.Write(data); err != nil {
				return err
			}
		}
		return out.Close()
	})
}

// repack copies a compressed tar archive and sets the times of its files, because Helm writes the time of the build. It also
// sets the mode of each file to 0644.
func repack(from, to string, modified time.Time) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	expanded, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("read %s: %w", from, err)
	}
	in := tar.NewReader(expanded)
	return create(to, func(w io.Writer) error {
		compressed := gzip.NewWriter(w)
		out := tar.NewWriter(compressed)
		for {
			header, err := in.Next()
			if errors.Is(err, io.EOF) {
				return errors.Join(out.Close(), compressed.Close())
			}
			if err != nil {
				return fmt.Errorf("read %s: %w", from, err)
			}
			kept := tar.Header{Typeflag: header.Typeflag, Name: header.Name, Size: header.Size, Mode: 0o644, ModTime: modified}
			if err := out.WriteHeader(&kept); err != nil {
				return err
			}
			if _, err := io.Copy(out, in); err != nil {
				return err
			}
		}
	})
}

// create creates or empties a file and calls write to write the content.
func create(file string, write func(io.Writer) error) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// checksums is the name of the file with the SHA-256 sums of all other files, in the format of sha256sum.
const checksums = "SHA256SUMS"

// writeChecksums writes the sums of the files in a folder, sorted by name.
func writeChecksums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, entry := range entries {
		sum, err := sha256Of(filepath.Join(dir, entry.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%s  %s\n", sum, entry.Name())
	}
	return os.WriteFile(filepath.Join(dir, checksums), []byte(text.String()), 0o644)
}

// sha256Of returns the SHA-256 sum of a file as hexadecimal digits.
func sha256Of(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("read %s: %w", file, err)
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), nil
}
