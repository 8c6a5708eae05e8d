// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// runbookURL is the address of the runbooks, without the name of the alert.
const runbookURL = "https://fixedip.io/fixedip/docs/operate/runbooks/"

// TestRunbooks checks that each alert has the annotations that an operator needs and a runbook with all sections, and that
// there is no runbook without an alert.
func TestRunbooks(t *testing.T) {
	dir := filepath.Join("..", "..", "docs", "operate", "runbooks")
	index, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	rules, _ := readRules(t)
	known := map[string]bool{"README.md": true}
	for _, r := range rules {
		page := r.Alert + ".md"
		known[page] = true
		for _, annotation := range []string{"summary", "description"} {
			if r.Annotations[annotation] == "" {
				t.Errorf("alert %s has no annotation %s", r.Alert, annotation)
			}
		}
		if got, want := r.Annotations["runbook_url"], runbookURL+r.Alert; got != want {
			t.Errorf("alert %s: got runbook_url %q, want %q", r.Alert, got, want)
		}
		text, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil {
			t.Errorf("alert %s has no runbook: %v", r.Alert, err)
			continue
		}
		for _, part := range []string{
			"# " + r.Alert + "\n", "Severity: " + r.Labels["severity"] + ".", "has lasted for " + r.For + ".",
			"\n## Meaning\n", "\n## Impact\n", "\n## Diagnosis\n", "\n```sh\n", "\n## Mitigation\n\n- ",
		} {
			if !strings.Contains(string(text), part) {
				t.Errorf("the runbook of alert %s lacks %q", r.Alert, part)
			}
		}
		if row := "| [" + r.Alert + "](" + page + ") | " + r.Labels["severity"] + " |"; !strings.Contains(string(index), row) {
			t.Errorf("the index of the runbooks lacks %q", row)
		}
		for _, expr := range regexp.MustCompile(`\[(FixedIP\w+)\]`).FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(dir, expr[1]+".md")); err != nil {
				t.Errorf("the runbook of alert %s names an alert whose runbook cannot be found: %v", r.Alert, err)
			}
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !known[f.Name()] {
			t.Errorf("there is no alert for the runbook %s", f.Name())
		}
	}
}
