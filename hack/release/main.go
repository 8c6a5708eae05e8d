// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command release writes the files of a release to a folder: programs, images, the Helm chart, install.yaml, bills of
// materials, the manifest of the kubectl plugin for krew, release notes, and SHA256SUMS.
//
//	release -version v0.1.0 -ldflags FLAGS -out dist [-only kubectl,chart]
//
// Two runs on one commit with one Go toolchain and the same flags write equal files: every time in them is the time of the
// commit or a constant, and lists are sorted. The command publishes nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The parts of a release that -only selects.
const (
	partPrograms = "programs"
	partImages   = "images"
	partKubectl  = "kubectl"
	partChart    = "chart"
)

var parts = []string{partPrograms, partImages, partKubectl, partChart}

// options are the flags of the command.
type options struct {
	// version begins with v, such as v0.1.0.
	version string
	// ldflags are the flags of the Go linker, which set the versions that the programs print.
	ldflags string
	// out is the folder for the files. It is replaced.
	out string
	// only contains the parts to write; if it is empty, all parts are written.
	only []string
	// url is the address under which the files are published, without the version.
	url string
	// registry is the registry and folder of the images in install.yaml. If it is empty, the nodes must have the images.
	registry string
}

func main() {
	var o options
	var only string
	flag.StringVar(&o.version, "version", "", "Version of the release, such as v0.1.0")
	flag.StringVar(&o.ldflags, "ldflags", "", "Flags of the Go linker")
	flag.StringVar(&o.out, "out", "dist", "Folder for the files; an earlier release in it is replaced")
	flag.StringVar(&only, "only", "", "Parts to write, separated by commas: "+strings.Join(parts, ",")+"; empty: all")
	flag.StringVar(&o.url, "url", "", "Address under which the files are published, without the version")
	flag.StringVar(&o.registry, "registry", "", "Registry and folder of the images in install.yaml")
	flag.Parse()
	if only != "" {
		o.only = strings.Split(only, ",")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

// release is one run of the command.
type release struct {
	options
	// commit is the hash of the commit that is released. time is the time of that commit.
	commit string
	time   time.Time
	// notes is the entry of the version in CHANGELOG.md.
	notes string
	// work is the folder for the built programs and for the chart as Helm packs it. files is the folder that becomes
	// options.out.
	work, files string
}

func run(ctx context.Context, o options) error {
	for _, part := range o.only {
		if !slices.Contains(parts, part) {
			return fmt.Errorf("-only: there is no part %q; the parts are %s", part, strings.Join(parts, ", "))
		}
	}
	r := &release{options: o}
	if err := r.checkSource(ctx); err != nil {
		return err
	}
	if err := checkOut(o.out); err != nil {
		return err
	}
	temporary, err := os.MkdirTemp(filepath.Dir(filepath.Clean(o.out)), ".release-")
	if err != nil {
		return fmt.Errorf("create a folder for the files of the release: %w", err)
	}
	defer os.RemoveAll(temporary)
	r.work, r.files = filepath.Join(temporary, "work"), filepath.Join(temporary, "files")
	if err := errors.Join(os.Mkdir(r.work, 0o755), os.Mkdir(r.files, 0o755)); err != nil {
		return err
	}
	if err := r.write(ctx); err != nil {
		return err
	}
	// The folder appears only when the release is complete.
	if err := os.RemoveAll(o.out); err != nil {
		return fmt.Errorf("remove the earlier release: %w", err)
	}
	if err := os.Rename(r.files, o.out); err != nil {
		return err
	}
	fmt.Printf("release %s of commit %s is in %s\n", r.version, r.commit, o.out)
	return nil
}

// write writes every file of the release to r.files.
func (r *release) write(ctx context.Context) error {
	if err := r.buildPrograms(ctx); err != nil {
		return err
	}
	if err := r.writePrograms(); err != nil {
		return err
	}
	if err := r.writeSBOMs(); err != nil {
		return err
	}
	var digests []string
	if r.has(partImages) {
		var err error
		if digests, err = r.writeImages(); err != nil {
			return err
		}
	}
	if r.has(partChart) {
		if err := r.writeChart(ctx); err != nil {
			return err
		}
	}
	if r.has(partKubectl) {
		if err := r.writeKrew(); err != nil {
			return err
		}
	}
	if err := r.writeNotes(digests); err != nil {
		return err
	}
	return writeChecksums(r.files)
}

// has reports whether a part is written.
func (r *release) has(part string) bool { return len(r.only) == 0 || slices.Contains(r.only, part) }

// file returns the path of a file of the release.
func (r *release) file(name string) string { return filepath.Join(r.files, name) }

// checkOut returns an error if the folder out has files, but not those of an earlier release, because run replaces the folder
// and must not delete other files. checkOut recognizes an earlier release by the file SHA256SUMS.
func checkOut(out string) error {
	entries, err := os.ReadDir(out)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(entries) > 0 && !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == checksums }) {
		return fmt.Errorf("the folder %s has files, but no %s of an earlier release; remove it, or choose another folder with -out", out, checksums)
	}
	return nil
}
