// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
)

var (
	testName = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w+`)
	testFunc = regexp.MustCompile(`(?m)^func (?:\([^)]*\) )?((?:Test|Fuzz|Benchmark)[A-Z]\w+)\(`)
)

// TestDocumentedTests checks that every test that a document names exists. Documents name tests as the proof of a
// promise or of a fix.
func TestDocumentedTests(t *testing.T) {
	declared := sets.New[string]()
	// named contains the documents that name a test. Key: the test.
	named := map[string][]string{}
	err := filepath.WalkDir(filepath.Join("..", ".."), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && (name == "bin" || strings.HasPrefix(name, ".") && strings.Trim(name, ".") != "") {
			return fs.SkipDir
		}
		isTest, isDocument := strings.HasSuffix(path, "_test.go"), strings.HasSuffix(path, ".md")
		if !isTest && !isDocument {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if isTest {
			for _, match := range testFunc.FindAllStringSubmatch(string(data), -1) {
				declared.Insert(match[1])
			}
			return nil
		}
		for _, name := range testName.FindAllString(string(data), -1) {
			named[name] = append(named[name], path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(named) < 50 {
		t.Fatalf("got %d tests named in documents, want at least 50", len(named))
	}
	for name, documents := range named {
		if !declared.Has(name) {
			t.Errorf("%s: the text names the function %s, but no _test.go file declares it", strings.Join(documents, ", "), name)
		}
	}
}
