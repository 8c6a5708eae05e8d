// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package configuration_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the table of docs/reference/configuration.md")

const (
	page  = "../../../docs/reference/configuration.md"
	begin = "<!-- BEGIN: generated from ipam/core/configuration/types.go -->\n"
	end   = "<!-- END: generated -->\n"
)

// TestReference checks that docs/reference/configuration.md contains the fields of the configuration with their comments.
// With -update, the test writes the fields into that file.
func TestReference(t *testing.T) {
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), begin)
	if !ok {
		t.Fatalf("%s has no line %s", page, strings.TrimSpace(begin))
	}
	_, after, ok := strings.Cut(rest, end)
	if !ok {
		t.Fatalf("%s has no line %s", page, strings.TrimSpace(end))
	}
	want := before + begin + reference(t) + end + after
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(data)); diff != "" {
		t.Errorf("%s differs from the comments of the fields; run this test with -update (-want +got):\n%s", page, diff)
	}
}

// reference returns the table of all settings.
func reference(t *testing.T) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "types.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	// structs contains the struct types of the package. Key: the name.
	structs := map[string]*ast.StructType{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok {
			if s, ok := spec.Type.(*ast.StructType); ok {
				structs[spec.Name.Name] = s
			}
		}
		return true
	})
	var table strings.Builder
	table.WriteString("| Setting | Meaning |\n|---|---|\n")
	var walk func(prefix string, of *ast.StructType)
	walk = func(prefix string, of *ast.StructType) {
		for _, f := range of.Fields.List {
			if len(f.Names) == 0 {
				continue
			}
			name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
			if inner, ok := f.Type.(*ast.Ident); ok && structs[inner.Name] != nil {
				walk(prefix+name+".", structs[inner.Name])
				continue
			}
			text := strings.Join(strings.Fields(f.Doc.Text()), " ")
			if text == "" {
				text = "The " + name + "."
			}
			// Comments begin with the JSON name of the field, as in the API types of Kubernetes.
			for _, verb := range []string{" are ", " is ", " allows "} {
				if rest, ok := strings.CutPrefix(text, name+verb); ok {
					text = strings.ToUpper(rest[:1]) + rest[1:]
					if verb != " are " && verb != " is " {
						text = strings.ToUpper(verb[1:2]) + verb[2:] + rest
					}
				}
			}
			fmt.Fprintf(&table, "| `%s%s` | %s |\n", prefix, name, text)
			if list, ok := f.Type.(*ast.ArrayType); ok {
				if inner, ok := list.Elt.(*ast.Ident); ok && structs[inner.Name] != nil {
					walk(prefix+name+"[].", structs[inner.Name])
				}
			}
		}
	}
	walk("", structs["Configuration"])
	return table.String()
}
