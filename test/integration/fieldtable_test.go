// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestFieldBugsTable checks that docs/project/field-bugs.md has a row for each known failure, and that the named
// tests exist.
func TestFieldBugsTable(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "project", "field-bugs.md"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	for _, file := range files {
		part, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(part)
	}
	rows := map[string][]string{} // Key: the number of the failure. Value: the tests.
	for _, row := range regexp.MustCompile(`(?m)^\| (F[0-9]+) \|(.*)\|$`).FindAllStringSubmatch(string(text), -1) {
		cells := strings.Split(row[2], "|")
		rows[row[1]] = regexp.MustCompile("`([^`]+)`").FindAllString(cells[len(cells)-1], -1)
	}
	for _, number := range strings.Fields("F1 F2 F3 F4 F5 F6 F8 F9 F10 F11 F13 F14 F15 F17 F19 F20 F21 F22 F23 F24 F25") {
		if len(rows[number]) == 0 {
			t.Errorf("%s has no row that names a test", number)
		}
		for _, name := range rows[number] {
			test, part, isPart := strings.Cut(strings.Trim(name, "`"), "/")
			if !strings.Contains(source.String(), "func "+test+"(t *testing.T)") {
				t.Errorf("%s: test %s does not exist", number, test)
			}
			if isPart && !strings.Contains(source.String(), `e.part("`+part+`", `) {
				t.Errorf("%s: test %s has no part %s", number, test, part)
			}
		}
	}
}
