// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

var commitTime = time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC)

const changes = `# Changelog

## [Unreleased]

- next

## [0.2.0] - 2026-01-02

### Added

- two

## [0.1.0] - 2025-12-01

- one

[0.1.0]: https://example.com/v0.1.0
`

// TestEntry checks which entry of the changelog a version gets.
func TestEntry(t *testing.T) {
	for name, c := range map[string]struct{ text, version, want, err string }{
		"with subheadings":              {text: changes, version: "v0.2.0", want: "### Added\n\n- two"},
		"last, without its link":        {text: changes, version: "v0.1.0", want: "- one"},
		"candidate of a known version":  {text: changes, version: "v0.2.0-rc.1", want: "### Added\n\n- two"},
		"candidate of the next version": {text: changes, version: "v0.3.0-rc.1", want: "- next"},
		"final without an entry":        {text: changes, version: "v0.3.0", err: `CHANGELOG.md has no entry for v0.3.0: write the section "## [0.3.0] - DATE"`},
		"no text below the heading":     {text: "## [0.3.0] - 2026-01-02\n\n## [0.2.0]\n\n- two\n", version: "v0.3.0", err: "has no entry for v0.3.0"},
		"longer number":                 {text: "## [0.1.10]\n\n- ten\n", version: "v0.1.1", err: "has no entry for v0.1.1"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := entry(c.text, c.version)
			if !matches(err, c.err) {
				t.Fatalf("got error %v, want %q (empty: no error)", err, c.err)
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// matches reports whether err contains text; an empty text matches only no error.
func matches(err error, text string) bool {
	return text == "" && err == nil || text != "" && err != nil && strings.Contains(err.Error(), text)
}

// TestCheckSource checks which versions and which states of a Git repository are refused.
func TestCheckSource(t *testing.T) {
	for name, c := range map[string]struct {
		version string
		change  func(dir string) error
		git     [][]string
		err     string
	}{
		"released":      {version: "v0.2.0"},
		"tagged":        {version: "v0.2.0", git: [][]string{{"tag", "v0.2.0"}}},
		"annotated tag": {version: "v0.2.0", git: [][]string{{"tag", "-a", "-m", "two", "v0.2.0"}}},
		"no version":    {version: "1a2b3c4", err: `"1a2b3c4" is not a version such as v0.1.0`},
		"without v":     {version: "0.2.0", err: `"0.2.0" is not a version`},
		"no entry":      {version: "v0.4.0", err: "has no entry for v0.4.0"},
		"tag of a different commit": {
			version: "v0.2.0", git: [][]string{{"tag", "v0.2.0"}, {"commit", "-q", "--allow-empty", "-m", "later"}},
			err: "the tag v0.2.0 is not on the commit",
		},
		"changed file": {
			version: "v0.2.0", change: func(dir string) error {
				return os.WriteFile(filepath.Join(dir, changelog), []byte(changes+"- more\n"), 0o600)
			},
			err: "files differ from the commit",
		},
		"new file": {
			version: "v0.2.0", change: func(dir string) error { return os.WriteFile(filepath.Join(dir, "new"), nil, 0o600) },
			err: "?? new",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Chdir(dir)
			if err := os.WriteFile(changelog, []byte(changes), 0o600); err != nil {
				t.Fatal(err)
			}
			first := [][]string{{"init", "-q"}, {"add", "."}, {"commit", "-q", "-m", "first"}}
			for _, args := range append(first, c.git...) {
				git := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"}, args...)...)
				if out, err := git.CombinedOutput(); err != nil {
					t.Fatalf("git %v: %v: %s", args, err, out)
				}
			}
			if c.change != nil {
				if err := c.change(dir); err != nil {
					t.Fatal(err)
				}
			}
			r := &release{options: options{version: c.version}}
			if err := r.checkSource(context.Background()); !matches(err, c.err) {
				t.Fatalf("got error %v, want %q (empty: no error)", err, c.err)
			}
			if c.err == "" && (len(r.commit) != 40 || r.time.IsZero() || r.notes != "### Added\n\n- two") {
				t.Errorf("got commit %q, time %s and notes %q, want a hash of 40 digits, a time and the notes of v0.2.0", r.commit, r.time, r.notes)
			}
		})
	}
}

// TestOut checks that a folder with files is refused unless it contains an earlier release.
func TestOut(t *testing.T) {
	for name, c := range map[string]struct {
		files []string
		err   string
	}{
		"empty":           {},
		"earlier release": {files: []string{"fixedip.yaml", checksums}},
		"other files":     {files: []string{"letter.txt"}, err: "has files, but no SHA256SUMS of an earlier release"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, file := range c.files {
				if err := os.WriteFile(filepath.Join(dir, file), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := checkOut(dir); !matches(err, c.err) {
				t.Errorf("got error %v, want %q (empty: no error)", err, c.err)
			}
		})
	}
	if err := checkOut(filepath.Join(t.TempDir(), "dist")); err != nil {
		t.Errorf("a folder that does not exist: got error %v, want none", err)
	}
}

// TestArchives checks the content of archives, and that they do not depend on the times of the files.
func TestArchives(t *testing.T) {
	for name, c := range map[string]struct {
		write func(string, []packed, time.Time) error
		read  func(t *testing.T, data []byte) []string
	}{
		"tar.gz": {writeTarGz, readTarGz},
		"zip":    {writeZip, readZip},
	} {
		t.Run(name, func(t *testing.T) {
			source := filepath.Join(t.TempDir(), "program")
			var archives [][]byte
			for _, age := range []time.Duration{0, time.Hour} {
				then := time.Now().Add(-age)
				if err := errors.Join(os.WriteFile(source, []byte("code"), 0o600), os.Chtimes(source, then, then)); err != nil {
					t.Fatal(err)
				}
				archive := filepath.Join(t.TempDir(), "archive")
				if err := c.write(archive, []packed{{"LICENSE", source, 0o644}, {"program", source, 0o755}}, commitTime); err != nil {
					t.Fatal(err)
				}
				data, err := os.ReadFile(archive)
				if err != nil {
					t.Fatal(err)
				}
				archives = append(archives, data)
			}
			if !bytes.Equal(archives[0], archives[1]) {
				t.Error("archives of equal files differ, want equal archives")
			}
			want := []string{
				"LICENSE -rw-r--r-- 2026-01-02T03:04:06Z code",
				"program -rwxr-xr-x 2026-01-02T03:04:06Z code",
			}
			if diff := cmp.Diff(want, c.read(t, archives[0])); diff != "" {
				t.Errorf("files (-want +got): %s", diff)
			}
		})
	}
}

// readTarGz returns the name, mode, time and content of each file of a compressed tar archive.
func readTarGz(t *testing.T, data []byte) (files []string) {
	t.Helper()
	expanded, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	for in := tar.NewReader(expanded); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, describe(h.FileInfo(), h.Name, content))
	}
}

// readZip returns the name, mode, time and content of each file of a zip archive.
func readZip(t *testing.T, data []byte) (files []string) {
	t.Helper()
	in, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range in.File {
		opened, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(opened)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, describe(f.FileInfo(), f.Name, content))
	}
	return files
}

func describe(info os.FileInfo, name string, content []byte) string {
	return fmt.Sprintf("%s %s %s %s", name, info.Mode(), info.ModTime().UTC().Format(time.RFC3339), content)
}

// TestRepack checks that repack writes equal archives for two archives that differ only in the times of their files, and
// which mode and time the files get.
func TestRepack(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "Chart.yaml")
	if err := os.WriteFile(source, []byte("name: a"), 0o600); err != nil {
		t.Fatal(err)
	}
	var results [][]byte
	for _, modified := range []time.Time{commitTime, commitTime.Add(time.Hour)} {
		from, to := filepath.Join(dir, "from.tgz"), filepath.Join(dir, "to.tgz")
		err := errors.Join(writeTarGz(from, []packed{{"a/Chart.yaml", source, 0o600}}, modified), repack(from, to, commitTime))
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(to)
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, data)
	}
	if !bytes.Equal(results[0], results[1]) {
		t.Error("the repacked archives differ, want equal archives")
	}
	if diff := cmp.Diff([]string{"a/Chart.yaml -rw-r--r-- 2026-01-02T03:04:06Z name: a"}, readTarGz(t, results[0])); diff != "" {
		t.Errorf("files (-want +got): %s", diff)
	}
}

// TestChecksums checks that the sums are written in the format of sha256sum, sorted by file name.
func TestChecksums(t *testing.T) {
	dir := t.TempDir()
	err := errors.Join(os.WriteFile(filepath.Join(dir, "b"), []byte("b\n"), 0o600), os.WriteFile(filepath.Join(dir, "a"), nil, 0o600), writeChecksums(dir))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, checksums))
	if err != nil {
		t.Fatal(err)
	}
	const want = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  a\n" +
		"0263829989b6fd954f72baaf2fc64bc2e2f01d692d4de72986ea808f6e99813f  b\n"
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s (-want +got): %s", checksums, diff)
	}
}

// TestSBOM checks that a bill of materials has the modules of all platforms once, with the version that is linked, that it
// does not depend on the order of the platforms, and that different bills have different serial numbers.
func TestSBOM(t *testing.T) {
	build := func(more ...*debug.Module) *debug.BuildInfo {
		return &debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Path: "example.com/a"}, Deps: append([]*debug.Module{
			{Path: "example.com/z", Version: "v1.0.0+incompatible"},
			{Path: "example.com/old", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/new", Version: "v1.2.0"}},
			{Path: "example.com/same", Version: "v0.0.0", Replace: &debug.Module{Path: "example.com/same", Version: "v2.0.0"}},
		}, more...)}
	}
	windows := &debug.Module{Path: "example.com/windows", Version: "v1.0.0"}
	first := sbom("tool", "v0.1.0", "abc", commitTime, []*debug.BuildInfo{build(), build(windows)})
	var got []string
	for _, c := range *first.Components {
		line := c.PackageURL
		if c.Properties != nil {
			line += " replaces " + (*c.Properties)[0].Value
		}
		got = append(got, line)
	}
	want := []string{
		"pkg:golang/example.com/new@v1.2.0 replaces example.com/old",
		"pkg:golang/example.com/same@v2.0.0",
		"pkg:golang/example.com/windows@v1.0.0",
		"pkg:golang/example.com/z@v1.0.0%2Bincompatible",
		"pkg:golang/std@1.26.8",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("components (-want +got): %s", diff)
	}
	if got, want := first.Metadata.Component.BOMRef, "pkg:golang/example.com/a@v0.1.0#cmd/tool"; got != want {
		t.Errorf("got the program %s, want %s", got, want)
	}
	second := sbom("tool", "v0.1.0", "abc", commitTime, []*debug.BuildInfo{build(windows), build()})
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("the order of the platforms changes the bill of materials: %s", diff)
	}
	if other := sbom("tool", "v0.1.0", "abc", commitTime, []*debug.BuildInfo{build()}); other.SerialNumber == first.SerialNumber {
		t.Errorf("two different bills of materials have the serial number %s", first.SerialNumber)
	}
	var text bytes.Buffer
	if err := cyclonedx.NewBOMEncoder(&text, cyclonedx.BOMFileFormatJSON).Encode(first); err != nil {
		t.Fatal(err)
	}
	var decoded cyclonedx.BOM
	if err := cyclonedx.NewBOMDecoder(&text, cyclonedx.BOMFileFormatJSON).Decode(&decoded); err != nil {
		t.Fatal(err)
	}
	if len(*decoded.Components) != len(want) || len(*(*decoded.Dependencies)[0].Dependencies) != len(want) {
		t.Errorf("got %d components and the dependencies %+v after decoding, want %d components and as many dependencies", len(*decoded.Components), *decoded.Dependencies, len(want))
	}
}

// TestKrew checks the manifest of the kubectl plugin: the address and the sum of each archive.
func TestKrew(t *testing.T) {
	r := &release{options: options{version: "v0.1.0", only: []string{partKubectl}, url: "https://example.com/files/"}, files: t.TempDir()}
	for _, target := range r.targets() {
		if err := os.WriteFile(r.file(r.archive(target)), []byte(target.os+target.arch), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.writeKrew(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(r.file("fixedip.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var got krewManifest
	if err := yaml.UnmarshalStrict(text, &got); err != nil {
		t.Fatal(err)
	}
	if got.Metadata["name"] != "fixedip" || got.Spec.Version != "v0.1.0" {
		t.Errorf("got plugin %q in version %q, want fixedip in v0.1.0", got.Metadata["name"], got.Spec.Version)
	}
	// krew refuses longer short descriptions.
	if len(got.Spec.ShortDescription) > 50 {
		t.Errorf("the short description has %d characters, want at most 50", len(got.Spec.ShortDescription))
	}
	var platforms []string
	for _, p := range got.Spec.Platforms {
		platforms = append(platforms, p.Selector.MatchLabels["os"]+"/"+p.Selector.MatchLabels["arch"]+" "+p.Bin+" "+p.URI)
		sum, err := sha256Of(r.file(filepath.Base(p.URI)))
		if err != nil {
			t.Fatal(err)
		}
		if p.SHA256 != sum {
			t.Errorf("%s: got sum %s, want %s", p.URI, p.SHA256, sum)
		}
	}
	const at = "https://example.com/files/v0.1.0/kubectl-fixedip_v0.1.0_"
	want := []string{
		"linux/amd64 kubectl-fixedip " + at + "linux_amd64.tar.gz",
		"linux/arm64 kubectl-fixedip " + at + "linux_arm64.tar.gz",
		"darwin/amd64 kubectl-fixedip " + at + "darwin_amd64.tar.gz",
		"darwin/arm64 kubectl-fixedip " + at + "darwin_arm64.tar.gz",
		"windows/amd64 kubectl-fixedip.exe " + at + "windows_amd64.zip",
	}
	if diff := cmp.Diff(want, platforms); diff != "" {
		t.Errorf("platforms (-want +got): %s", diff)
	}
}

// TestWriteChart checks that install.yaml of a release has the images of the release, and no Job and no hook of Helm. kubectl
// apply would start the Job of the chart, which removes fixedip.
func TestWriteChart(t *testing.T) {
	r := &release{options: options{version: "v0.9.0", registry: "registry.example.com/fixedip"}, time: commitTime, work: t.TempDir(), files: t.TempDir()}
	t.Chdir(filepath.Join("..", ".."))
	if err := r.writeChart(t.Context()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(r.file("install.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range []string{"image: registry.example.com/fixedip/fixedip-controller:v0.9.0", "image: registry.example.com/fixedip/fixedip-scheduler:v0.9.0"} {
		if !strings.Contains(string(text), image) {
			t.Errorf("install.yaml does not contain %q", image)
		}
	}
	for _, unwanted := range []string{"kind: Job", "helm.sh/hook"} {
		if strings.Contains(string(text), unwanted) {
			t.Errorf("install.yaml contains %q, want neither a Job nor a hook", unwanted)
		}
	}
}

// TestNotes checks the release notes with and without images.
func TestNotes(t *testing.T) {
	with := notes("v0.1.0", "abc", "- one", []string{"a:v0.1.0@sha256:1"})
	for _, want := range []string{"# fixedip v0.1.0\n\n- one\n", "## Images\n\n```\na:v0.1.0@sha256:1\n```\n", "make release VERSION=v0.1.0` on commit\nabc writes equal files if"} {
		if !strings.Contains(with, want) {
			t.Errorf("got %q, want it to contain %q", with, want)
		}
	}
	if without := notes("v0.1.0", "abc", "- one", nil); strings.Contains(without, "## Images") {
		t.Errorf("got %q, want no section about images", without)
	}
}

// TestCheckVersion checks which texts of --version are accepted.
func TestCheckVersion(t *testing.T) {
	for name, c := range map[string]struct{ prints, err string }{
		"the release first":  {prints: "tool v0.1.0 (Kubernetes v1.34.9)"},
		"an unknown version": {prints: "tool unknown (Kubernetes v1.34.9)", err: `prints "tool unknown (Kubernetes v1.34.9)", want tool v0.1.0`},
		"a longer version":   {prints: "tool v0.1.0-dirty (Kubernetes v1.34.9)", err: "check the flags of the linker"},
		"only Kubernetes":    {prints: "Kubernetes v1.34.9", err: "check the flags of the linker"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "tool")
			if err := os.WriteFile(file, []byte("#!/bin/sh\necho '"+c.prints+"'\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := checkVersion(context.Background(), file, "tool", "v0.1.0"); !matches(err, c.err) {
				t.Errorf("got error %v, want %q (empty: no error)", err, c.err)
			}
		})
	}
}
