// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestUpToDate checks that each page agrees with the code. It leaves out the page of the flags, for which the controller has
// to be built; make verify checks that page.
func TestUpToDate(t *testing.T) {
	root := filepath.Join("..", "..")
	for _, p := range pages {
		if p.file == "flags.md" {
			continue
		}
		t.Run(p.file, func(t *testing.T) {
			want, err := p.text(root)
			if err != nil {
				t.Fatal(err)
			}
			have, err := os.ReadFile(filepath.Join(root, "docs", "reference", p.file))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, string(have)); diff != "" {
				t.Errorf("the page differs; run make generate (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEvents(t *testing.T) {
	const code = `package p

const (
	// ReasonFull means that nothing is free.
	ReasonFull = "Full"
	other = "Other"
)

var reasons = map[string]string{"twoPods": "UsedTwice"}

func f() error {
	e.Eventf(pod, nil, corev1.EventTypeNormal, "Moved", "Move", "IP %s is on node %[2]s now, %v", a, b, c)
	e.Eventf(pod, nil, corev1.EventTypeWarning, want.Reason, "Move", "%s", want.Message)
	r.warn(n, "Low", "Fill", "missing: %d", 3)
	return &problem{"Overlap", fmt.Sprintf("subnet %s overlaps", s)}
}
`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", code, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	want := []event{
		{"Full", "", "Nothing is free.", "ipam/p"},
		{"Low", "Warning", "missing: …", "ipam/p"},
		{"Moved", "Normal", "IP … is on node … now, …", "ipam/p"},
		{"Overlap", "Warning", "subnet … overlaps", "ipam/p"},
		{"UsedTwice", "Warning", "The condition Exclusive has the text.", "ipam/p"},
	}
	if diff := cmp.Diff(want, events([]source{{"ipam/p/p.go", file}}), cmp.AllowUnexported(event{})); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestUsageLine(t *testing.T) {
	for line, want := range map[string][]string{
		"      --dry-run                  Write nothing": {"dry-run", "", "Write nothing"},
		"  -v, --v Level                  number":        {"v", "Level", "number"},
		"      --vmodule pattern=N,...    list":          {"vmodule", "pattern=N,...", "list"},
		"Usage:":                                         nil,
	} {
		match := usageLine.FindStringSubmatch(line)
		if match != nil {
			match = match[1:]
		}
		if diff := cmp.Diff(want, match); diff != "" {
			t.Errorf("%q (-want +got):\n%s", line, diff)
		}
	}
}
