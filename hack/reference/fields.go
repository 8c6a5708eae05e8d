// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// fieldsPage returns a page with the columns, selectable fields, fields and rules of the type in a CustomResourceDefinition.
func fieldsPage(file string, data []byte) (string, error) {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(data, &crd); err != nil {
		return "", err
	}
	if len(crd.Spec.Versions) != 1 {
		return "", fmt.Errorf("the CustomResourceDefinition has %d versions; the page has room for one", len(crd.Spec.Versions))
	}
	v := crd.Spec.Versions[0]
	schema := v.Schema.OpenAPIV3Schema
	var b strings.Builder
	b.WriteString(header(crd.Spec.Names.Kind, "manifests/crd/"+file))
	fmt.Fprintf(&b, "\n%s\n", paragraph(schema.Description))
	fmt.Fprintf(&b, "\n`%s/%s`, %s. Short name `%s`; category `%s`.\n", crd.Spec.Group, v.Name, strings.ToLower(string(crd.Spec.Scope)),
		strings.Join(crd.Spec.Names.ShortNames, "`, `"), strings.Join(crd.Spec.Names.Categories, "`, `"))

	b.WriteString("\n## Columns\n\nThose with \"wide\" are shown by `-o wide`.\n\n| Column | Field | |\n|---|---|---|\n")
	for _, c := range v.AdditionalPrinterColumns {
		wide := ""
		if c.Priority > 0 {
			wide = "wide"
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s |\n", c.Name, c.JSONPath, wide)
	}
	if len(v.SelectableFields) > 0 {
		b.WriteString("\nField selectors (`kubectl get --field-selector`):")
		for i, f := range v.SelectableFields {
			if i > 0 {
				b.WriteString(",")
			}
			fmt.Fprintf(&b, " `%s`", strings.TrimPrefix(f.JSONPath, "."))
		}
		b.WriteString(".\n")
	}
	for _, part := range []string{"spec", "status"} {
		fmt.Fprintf(&b, "\n## %s\n\n| Field | Type | Meaning |\n|---|---|---|\n", part)
		writeFields(&b, part, schema.Properties[part])
	}
	return b.String(), nil
}

// writeFields writes a row for each field of an object, and below it the rows of that field's own fields. path is the path of
// the object.
func writeFields(b *strings.Builder, path string, object apiextensionsv1.JSONSchemaProps) {
	for _, name := range slices.Sorted(maps.Keys(object.Properties)) {
		field := object.Properties[name]
		at := path + "." + name
		inner := field
		if field.Type == "array" && field.Items != nil && field.Items.Schema != nil {
			inner = *field.Items.Schema
			if len(inner.Properties) > 0 {
				at += "[]"
			}
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", at, typeOf(field, slices.Contains(object.Required, name)), cell(paragraph(field.Description)+limits(field)))
		writeFields(b, at, inner)
	}
}

// typeOf returns the type of a field, such as "list of string" or "string (date-time), required".
func typeOf(field apiextensionsv1.JSONSchemaProps, required bool) string {
	text := field.Type
	switch {
	case field.Type == "array" && field.Items != nil && field.Items.Schema != nil:
		text = "list of " + field.Items.Schema.Type
	case field.AdditionalProperties != nil && field.AdditionalProperties.Schema != nil:
		text = "map of " + field.AdditionalProperties.Schema.Type
	case field.Format != "":
		text += " (" + field.Format + ")"
	}
	if required {
		text += ", required"
	}
	return text
}

// limits returns the values that a field may have and the messages of its rules, as sentences that follow its description.
func limits(field apiextensionsv1.JSONSchemaProps) string {
	var b strings.Builder
	if len(field.Enum) > 0 {
		var values []string
		for _, v := range field.Enum {
			values = append(values, "`"+strings.Trim(string(v.Raw), `"`)+"`")
		}
		b.WriteString(" One of " + strings.Join(values, ", ") + ".")
	}
	if field.Default != nil {
		b.WriteString(" Default: `" + strings.Trim(string(field.Default.Raw), `"`) + "`.")
	}
	for i, rule := range field.XValidations {
		if i == 0 {
			b.WriteString(" Rules: ")
		} else {
			b.WriteString("; ")
		}
		b.WriteString(rule.Message)
	}
	if len(field.XValidations) > 0 {
		b.WriteString(".")
	}
	return b.String()
}

// paragraph joins the lines of a description.
func paragraph(description string) string { return strings.Join(strings.Fields(description), " ") }

// cell returns text as the content of a cell of a table.
func cell(text string) string { return strings.ReplaceAll(strings.TrimSpace(text), "|", `\|`) }
