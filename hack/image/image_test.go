// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// program returns the part of an ELF file that Make reads: the header and, if dynamic is true, a segment for the
// interpreter.
func program(t *testing.T, machine elf.Machine, dynamic bool) []byte {
	t.Helper()
	header := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Phoff: 64, Ehsize: 64, Phentsize: 56,
	}
	var segments []elf.Prog64
	if dynamic {
		header.Phnum, segments = 1, []elf.Prog64{{Type: uint32(elf.PT_INTERP)}}
	}
	var file bytes.Buffer
	if err := errors.Join(binary.Write(&file, binary.LittleEndian, header), binary.Write(&file, binary.LittleEndian, segments)); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// folder creates a folder with the program as bin/tool and a text file LICENSE, and returns the path of the folder.
func folder(t *testing.T, program []byte) string {
	t.Helper()
	dir := t.TempDir()
	err := errors.Join(
		os.Mkdir(filepath.Join(dir, "bin"), 0o700),
		os.WriteFile(filepath.Join(dir, "bin", "tool"), program, 0o600),
		os.WriteFile(filepath.Join(dir, "LICENSE"), []byte("free"), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var recipe = Recipe{
	Name:       "tool",
	Files:      []File{{From: "bin/tool", To: "/tool"}, {From: "LICENSE", To: "/etc/LICENSE"}},
	User:       "65532:65532",
	Entrypoint: []string{"/tool", "-v"},
}

// TestMake checks that a saved archive has the content of the recipe.
func TestMake(t *testing.T) {
	tool := program(t, elf.EM_AARCH64, false)
	img, err := Make(recipe, folder(t, tool))
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "tool.tar")
	if err := Save(img, "tool:v1", archive); err != nil {
		t.Fatal(err)
	}
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(archive) })
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"tool:v1"}, manifest[0].RepoTags); diff != "" {
		t.Errorf("tags (-want +got): %s", diff)
	}
	read, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := read.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if got := config.OS + "/" + config.Architecture; got != "linux/arm64" {
		t.Errorf("got platform %s, want linux/arm64", got)
	}
	if diff := cmp.Diff(v1.Config{User: "65532:65532", Entrypoint: []string{"/tool", "-v"}, WorkingDir: "/"}, config.Config); diff != "" {
		t.Errorf("config (-want +got): %s", diff)
	}

	type entry struct {
		Name, Text string
		Mode       int64
		UID        int
	}
	var got []entry
	files := tar.NewReader(mutate.Extract(read))
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, entry{Name: h.Name, Text: string(data), Mode: h.Mode, UID: h.Uid})
	}
	want := []entry{{Name: "tool", Text: string(tool), Mode: 0o755}, {Name: "etc/LICENSE", Text: "free", Mode: 0o644}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got): %s", diff)
	}
}

// TestReproducible checks that equal files result in equal archives regardless of their times and modes, and that a changed
// file results in a different archive.
func TestReproducible(t *testing.T) {
	dir := folder(t, program(t, elf.EM_X86_64, false))
	archive := func() []byte {
		t.Helper()
		img, err := Make(recipe, dir)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "tool.tar")
		if err := Save(img, "tool:v1", file); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	first := archive()
	later := time.Now().Add(time.Hour)
	for _, f := range recipe.Files {
		path := filepath.Join(dir, f.From)
		if err := errors.Join(os.Chtimes(path, later, later), os.Chmod(path, 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first, archive()) {
		t.Error("archives of equal files differ, want equal archives")
	}
	if err := os.WriteFile(filepath.Join(dir, "LICENSE"), []byte("not free"), 0o600); err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(first, archive()) {
		t.Error("archives of different files are equal, want different archives")
	}
}

// TestRefused checks that Make refuses recipes without a program that can run in the image.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		program   []byte
		file, err string
	}{
		"missing file":   {program(t, elf.EM_X86_64, false), "bin/other", "no such file"},
		"no program":     {program(t, elf.EM_X86_64, false), "LICENSE", "no file is a Linux program"},
		"dynamic link":   {program(t, elf.EM_X86_64, true), "bin/tool", "bin/tool: the program is linked dynamically"},
		"half a program": {program(t, elf.EM_X86_64, true)[:70], "bin/tool", "bin/tool: parse the program"},
		"other machine":  {program(t, elf.EM_VAX, false), "bin/tool", "EM_VAX"},
	} {
		t.Run(name, func(t *testing.T) {
			r := recipe
			r.Files = []File{{From: c.file, To: "/tool"}}
			if _, err := Make(r, folder(t, c.program)); err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("got error %v, want one that contains %q", err, c.err)
			}
		})
	}
}

// TestNothingToWriteTo checks that each of our images contains only its program and has a user other than root, and
// that this user cannot write to the program, which belongs to root.
func TestNothingToWriteTo(t *testing.T) {
	file, err := os.Open(filepath.Join("..", "..", "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	recipes, err := ReadDockerfile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range recipes {
		dir := t.TempDir()
		for _, f := range r.Files {
			path := filepath.Join(dir, f.From)
			// Make must ignore the modes of the built files.
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, program(t, elf.EM_X86_64, false), 0o600), os.Chmod(path, 0o777)); err != nil {
				t.Fatal(err)
			}
		}
		img, err := Make(r, dir)
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		user, _, _ := strings.Cut(config.Config.User, ":")
		if uid, err := strconv.Atoi(user); err != nil || uid == 0 {
			t.Errorf("image %s: got user %q, want a numeric user other than 0", r.Name, config.Config.User)
		}
		if len(config.Config.Volumes) > 0 || len(config.Config.Cmd) > 0 || len(config.Config.Env) > 0 {
			t.Errorf("image %s has volumes, a command or environment variables, want none: %+v", r.Name, config.Config)
		}
		files := 0
		for content := tar.NewReader(mutate.Extract(img)); ; files++ {
			h, err := content.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if h.Typeflag != tar.TypeReg || h.Mode != 0o755 || h.Uid != 0 || h.Gid != 0 || "/"+h.Name != config.Config.Entrypoint[0] {
				t.Errorf("image %s: got file %s of type %c, mode %o, user %d, group %d; want only the regular file %s, mode 755, user 0, group 0",
					r.Name, h.Name, h.Typeflag, h.Mode, h.Uid, h.Gid, config.Config.Entrypoint[0])
			}
		}
		if files != 1 {
			t.Errorf("image %s: got %d files, want 1", r.Name, files)
		}
	}
}
