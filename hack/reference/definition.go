// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// definition returns the page about a CustomResourceDefinition: its columns and the fields of spec and status.
func definition(root, name string) (string, error) {
	file := filepath.Join("manifests", "crd", name)
	data, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return "", fmt.Errorf("read the definition: %w", err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(data, &crd); err != nil {
		return "", fmt.Errorf("decode %s: %w", file, err)
	}
	if len(crd.Spec.Versions) != 1 {
		return "", fmt.Errorf("%s has %d versions, want 1", file, len(crd.Spec.Versions))
	}
	v := crd.Spec.Versions[0]
	schema := v.Schema.OpenAPIV3Schema
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n"+header+"\n%s\n\n", crd.Spec.Names.Kind, "`"+filepath.ToSlash(file)+"`", oneLine(schema.Description))
	fmt.Fprintf(&b, "| | |\n|---|---|\n| API version | `%s/%s` |\n| Scope | %s |\n| Short names | %s |\n| Categories | %s |\n", crd.Spec.Group, v.Name, crd.Spec.Scope, quoted(crd.Spec.Names.ShortNames), quoted(crd.Spec.Names.Categories))
	if len(v.SelectableFields) > 0 {
		var fields []string
		for _, f := range v.SelectableFields {
			fields = append(fields, strings.TrimPrefix(f.JSONPath, "."))
		}
		fmt.Fprintf(&b, "| Selectable fields | %s |\n", quoted(fields))
	}
	b.WriteString("\n## Columns\n\n| Column | Field | Shown |\n|---|---|---|\n")
	for _, c := range v.AdditionalPrinterColumns {
		shown := "always"
		if c.Priority > 0 {
			shown = "`-o wide`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", c.Name, cell("`"+strings.TrimPrefix(c.JSONPath, ".")+"`"), shown)
	}
	for _, part := range []string{"spec", "status"} {
		s, ok := schema.Properties[part]
		if !ok {
			return "", fmt.Errorf("%s has no field %s", file, part)
		}
		fmt.Fprintf(&b, "\n## %s\n\n| Field | Type | Meaning |\n|---|---|---|\n", part)
		writeFields(&b, part, s)
	}
	return b.String(), nil
}

// writeFields writes a row for each field below a path, in the order of their names. It leaves out the fields of conditions.
func writeFields(b *strings.Builder, path string, s apiextensionsv1.JSONSchemaProps) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		f := s.Properties[name]
		inner, at, kind := f, path+"."+name, f.Type
		if f.Items != nil && f.Items.Schema != nil {
			inner, at, kind = *f.Items.Schema, at+"[]", "list of "+f.Items.Schema.Type
		}
		if f.Format != "" {
			kind += ", " + f.Format
		}
		meaning := []string{oneLine(f.Description)}
		if slices.Contains(s.Required, name) {
			meaning = append(meaning, "Required.")
		}
		if values := enum(f.Enum); values != "" {
			meaning = append(meaning, "One of "+values+".")
		}
		if f.Default != nil && string(f.Default.Raw) != "{}" {
			meaning = append(meaning, "Default: `"+strings.Trim(string(f.Default.Raw), `"`)+"`.")
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", path+"."+name, kind, cell(strings.TrimSpace(strings.Join(meaning, " "))))
		if !strings.HasSuffix(at, ".conditions[]") {
			writeFields(b, at, inner)
		}
	}
}

func enum(values []apiextensionsv1.JSON) string {
	var list []string
	for _, v := range values {
		var text string
		if err := json.Unmarshal(v.Raw, &text); err != nil {
			text = string(v.Raw)
		}
		list = append(list, text)
	}
	return quoted(list)
}

// quoted returns a list as code, joined by commas; empty for an empty list.
func quoted(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return "`" + strings.Join(list, "`, `") + "`"
}

// oneLine returns a text without line breaks.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// cell returns a text for a cell of a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(text)
}
