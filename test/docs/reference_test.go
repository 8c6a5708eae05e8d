// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
)

const root = "../.."

// product parses all files of the product without tests. Key: the path from the root of the repository.
func product(t *testing.T) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	for _, folder := range []string{"cmd", "ipam", "plugins"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(root, path)
			files[filepath.ToSlash(name)] = file
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// text returns the value of a literal string, or "".
func text(e ast.Expr) string {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	s, err := strconv.Unquote(lit.Value)
	if err != nil {
		return ""
	}
	return s
}

// constants returns the constants of the product with a literal string. Key: the name. Constants of the same name in several
// packages have to have the same value to be in it.
func constants(files map[string]*ast.File) map[string]string {
	values, ambiguous := map[string]string{}, sets.New[string]()
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, name := range spec.Names {
				if i >= len(spec.Values) {
					continue
				}
				if s := text(spec.Values[i]); s != "" {
					if have, ok := values[name.Name]; ok && have != s {
						ambiguous.Insert(name.Name)
					}
					values[name.Name] = s
				}
			}
			return true
		})
	}
	for name := range ambiguous {
		delete(values, name)
	}
	return values
}

// chosen contains the reasons of the calls whose reason is not a literal. Key: the file and the source text of the argument.
var chosen = map[string][]string{
	"ipam/controller/conflict/conflict.go reasons":         {"AddressInUseTwice", "AddressReservedTwice", "AddressOfferedTwice", "WrongPodAddress"},
	"ipam/controller/conformance/verify.go want.Reason":    {"AsReserved", "WrongAddress", "NoPoolEntry", "NoCiliumEndpoint", "Restarting", "RestartBlocked"},
	"ipam/controller/nodepool/reconciler.go reason":        {"MalformedPool", "SubnetOverlap", "ReleaseUnanswered", "SubnetFull"},
	"ipam/controller/subnet/controller.go found.reason":    {"SubnetOverlap", "MalformedSubnet", "SubnetMissing"},
	"ipam/controller/subnet/controller.go reason":          {"SubnetAssigned", "SubnetInherited"},
	"ipam/controller/subnet/orphans.go want.Reason":        {"NodeGone", "InheritancePending", "SubnetOverlap"},
	"ipam/controller/internal/recorder/recorder.go reason": nil, // It passes reasons on.
	"ipam/store/dryrun/dryrun.go reason":                   nil, // It logs them.
}

// source returns the source text of an identifier, a selector, or the variable of an index expression.
func source(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return source(e.X) + "." + e.Sel.Name
	case *ast.IndexExpr:
		return source(e.X)
	}
	return ""
}

// TestEvents checks that docs/reference/events.md has exactly the reasons of the events that the product records.
func TestEvents(t *testing.T) {
	files := product(t)
	values := constants(files)
	recorded, used := sets.New[string](), sets.New[string]()
	for path, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || method.Sel.Name != "Eventf" || len(call.Args) < 6 {
				return true
			}
			reason := call.Args[3]
			if s := text(reason); s != "" {
				recorded.Insert(s)
				return true
			}
			name := source(reason)
			if reasons, ok := chosen[path+" "+name]; ok {
				used.Insert(path + " " + name)
				recorded.Insert(reasons...)
				return true
			}
			value, ok := values[name[strings.LastIndex(name, ".")+1:]]
			if !ok {
				t.Errorf("%s: the reason of an event is %q, which is neither a literal nor a constant; add its values to the map chosen", path, name)
			}
			recorded.Insert(value)
			return true
		})
	}
	if recorded.Len() < 20 {
		t.Fatalf("got %d reasons in the code, want at least 20: %v", recorded.Len(), sets.List(recorded))
	}
	for key, reasons := range chosen {
		if reasons != nil && !used.Has(key) {
			t.Errorf("the map chosen has %q, but no call has that reason", key)
		}
	}
	compare(t, "events.md", regexp.MustCompile("(?m)^\\| `([A-Z]\\w+)` \\|"), recorded)
}

// TestAnnotations checks that docs/reference/annotations.md has every annotation, label and other name in the domain of fixedip
// that the product defines as a constant, and no other.
func TestAnnotations(t *testing.T) {
	defined := sets.New[string]()
	for _, file := range product(t) {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for _, value := range spec.Values {
				s := text(value)
				if name, isName := strings.CutPrefix(s, "fixedip.io/"); isName && name != "" && !strings.Contains(name, "/") && !strings.HasPrefix(name, "v1") {
					defined.Insert(s)
				} else if strings.HasPrefix(s, "cni.projectcalico.org/") || strings.HasPrefix(s, "cni.cilium.io/") {
					defined.Insert(s)
				}
			}
			return true
		})
	}
	if defined.Len() < 10 {
		t.Fatalf("got %d names in the code, want at least 10: %v", defined.Len(), sets.List(defined))
	}
	compare(t, "annotations.md", regexp.MustCompile("`((?:fixedip\\.io|cni\\.projectcalico\\.org|cni\\.cilium\\.io)/[^`:]+)`"), defined)
}

// compare checks that a reference page has exactly the given names. row matches a name in the page.
func compare(t *testing.T, page string, row *regexp.Regexp, want sets.Set[string]) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "docs", "reference", page))
	if err != nil {
		t.Fatal(err)
	}
	got := sets.New[string]()
	for _, m := range row.FindAllStringSubmatch(string(data), -1) {
		got.Insert(m[1])
	}
	for _, name := range sets.List(want.Difference(got)) {
		t.Errorf("docs/reference/%s has no row for %s", page, name)
	}
	for _, name := range sets.List(got.Difference(want)) {
		t.Errorf("docs/reference/%s has %s, which the code does not have", page, name)
	}
}
