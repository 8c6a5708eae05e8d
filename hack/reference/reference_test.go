// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestFlagsPage(t *testing.T) {
	got, err := flagsPage(`A program

Usage:
  program [flags]

Flags:
      --burst int          Most requests at once (default 1000)
      --dry-run            Write nothing
  -h, --help               help for program
      --names strings      Names, a|b (default [x,y])
`)
	if err != nil {
		t.Fatal(err)
	}
	_, rows, _ := strings.Cut(got, "|---|---|---|---|\n")
	want := "| `--burst` | int | `1000` | Most requests at once |\n" +
		"| `--dry-run` | bool |  | Write nothing |\n" +
		"| `--help` | bool |  | help for program |\n" +
		"| `--names` | strings | `[x,y]` | Names, a\\|b |\n"
	if rows != want {
		t.Errorf("got rows\n%swant\n%s", rows, want)
	}
	for name, help := range map[string]string{"no section": "Usage:\n", "no flag": "A\nFlags:\n\n"} {
		if _, err := flagsPage(help); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}

func TestFieldsPage(t *testing.T) {
	got, err := fieldsPage("x.yaml", []byte(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  names: {kind: Thing, plural: things, shortNames: [th], categories: [all]}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns:
    - {name: SIZE, type: string, jsonPath: .spec.size}
    - {name: NODE, type: string, jsonPath: .spec.node, priority: 1}
    selectableFields:
    - {jsonPath: .spec.node}
    schema:
      openAPIV3Schema:
        type: object
        description: "Thing is\n  a thing."
        properties:
          spec:
            type: object
            required: [size]
            properties:
              size: {type: string, description: size is a|b., enum: [a, b], default: a}
              parts:
                type: array
                description: parts are the parts.
                x-kubernetes-validations: [{rule: "true", message: must be whole}]
                items: {type: object, properties: {since: {type: string, format: date-time, description: since when.}}}
              names: {type: array, items: {type: string}}
              labels: {type: object, additionalProperties: {type: string}}
          status: {type: object}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := "# Thing\n\n<!-- Written by make generate from manifests/crd/x.yaml. Do not edit. -->\n\nThing is a thing.\n\n" +
		"`example.com/v1`, namespaced. Short name `th`; category `all`.\n\n" +
		"## Columns\n\nThose with \"wide\" are shown by `-o wide`.\n\n| Column | Field | |\n|---|---|---|\n| SIZE | `.spec.size` |  |\n| NODE | `.spec.node` | wide |\n\n" +
		"Field selectors (`kubectl get --field-selector`): `spec.node`.\n\n" +
		"## spec\n\n| Field | Type | Meaning |\n|---|---|---|\n" +
		"| `spec.labels` | map of string |  |\n" +
		"| `spec.names` | list of string |  |\n" +
		"| `spec.parts[]` | list of object | parts are the parts. Rules: must be whole. |\n" +
		"| `spec.parts[].since` | string (date-time) | since when. |\n" +
		"| `spec.size` | string, required | size is a\\|b. One of `a`, `b`. Default: `a`. |\n\n" +
		"## status\n\n| Field | Type | Meaning |\n|---|---|---|\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
