// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var root = filepath.Join("..", "..")

// TestDocuments checks that the pages whose commands are run can be parsed, and that they have at least 40 commands. Offline
// must have a replacement for each command that needs the internet, and each command of Offline must be in a page.
func TestDocuments(t *testing.T) {
	all, err := Documents(root)
	if err != nil {
		t.Fatal(err)
	}
	steps, unused := 0, map[string]bool{}
	for command := range Offline {
		unused[command] = true
	}
	for _, p := range all {
		steps += len(p.Steps)
		for _, s := range p.Steps {
			if _, ok := Offline[s.Command]; !ok && strings.Contains(s.Command, "https://") && !strings.Contains(s.Command, "#https://") {
				t.Errorf("%s:%d: the command needs the internet, and Offline has no replacement for it", p.File, s.Line)
			}
			delete(unused, s.Command)
		}
	}
	if steps < 40 {
		t.Errorf("got %d commands in %d pages, want at least 40", steps, len(all))
	}
	for command := range unused {
		t.Errorf("Offline has the command %q, which no page contains", command)
	}
}

// TestExamplesAreShown checks that commands of the pages use each manifest of manifests/examples.
func TestExamplesAreShown(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "manifests", "examples", "*.yaml"))
	if err != nil || len(files) < 8 {
		t.Fatalf("got %d examples (%v), want at least 8", len(files), err)
	}
	all, err := Documents(root)
	if err != nil {
		t.Fatal(err)
	}
	var commands strings.Builder
	for _, p := range all {
		for _, s := range p.Steps {
			commands.WriteString(s.Command)
		}
	}
	for _, file := range files {
		if name := "manifests/examples/" + filepath.Base(file); !strings.Contains(commands.String(), name) {
			t.Errorf("no command of docs/start and docs/tasks uses %s", name)
		}
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+)$`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```")
)

// TestLinks checks that every relative link of a Markdown file leads to a file or folder and, if the link has an anchor, to
// a heading of the file.
func TestLinks(t *testing.T) {
	checked := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && (name == "bin" || strings.HasPrefix(name, ".") && strings.Trim(name, ".") != "") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".md") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, match := range link.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
			if strings.Contains(match[1], "://") || strings.HasPrefix(match[1], "mailto:") {
				continue
			}
			checked++
			file, anchor, _ := strings.Cut(match[1], "#")
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: the link %s leads to no file", path, match[1])
			} else if anchor != "" && !hasHeading(t, target, anchor) {
				t.Errorf("%s: the link %s leads to no heading", path, match[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked < 100 {
		t.Errorf("checked %d links, want at least 100", checked)
	}
}

// hasHeading reports whether a Markdown file has a heading with this anchor.
func hasHeading(t *testing.T, file, anchor string) bool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
		if anchorOf(match[1]) == anchor {
			return true
		}
	}
	return false
}

// anchorOf returns the anchor of a heading: lower case, hyphens for spaces, and no punctuation except hyphens and underscores.
func anchorOf(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			return unicode.ToLower(r)
		}
		return -1
	}, text)
}

// TestSyntax checks that bash can parse every command of the pages.
func TestSyntax(t *testing.T) {
	all, err := Documents(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		for _, s := range p.Steps {
			if out, err := exec.Command("bash", "-n", "-c", s.Command).CombinedOutput(); err != nil {
				t.Errorf("%s:%d: bash cannot parse the command: %v: %s", p.File, s.Line, err, out)
			}
		}
	}
}
