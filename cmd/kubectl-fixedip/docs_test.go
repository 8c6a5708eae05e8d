// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"fixedip.io/fixedip/ipam/core/check"
	"fixedip.io/fixedip/ipam/core/explain"
	"fixedip.io/fixedip/ipam/core/status"
	"fixedip.io/fixedip/ipam/core/subnetmap"
)

// TestDocumented checks that the reference page names every command, every symbol of map, and the fields of the outputs of
// all commands except reserve.
func TestDocumented(t *testing.T) {
	content, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "kubectl-fixedip.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(content)
	commands := 0
	for _, c := range command(genericiooptions.IOStreams{}).Commands() {
		if c.Name() == "help" {
			continue
		}
		commands++
		if !strings.Contains(page, "\n| `kubectl fixedip "+c.Name()) {
			t.Errorf("the page has no row for the command %s", c.Name())
		}
		for _, alias := range c.Aliases {
			if !strings.Contains(page, "`"+alias+"` is the same") {
				t.Errorf("the page does not name %s, an alias of %s", alias, c.Name())
			}
		}
	}
	if commands < 10 {
		t.Errorf("checked %d commands, want at least 10", commands)
	}
	fields := 0
	for _, shape := range []any{fixedAddress{}, nodeUse{}, subnetmap.Node{}, status.Report{}, versions{}, explain.Report{}, explain.MovePlan{}, drainReport{}, releasePlan{}, adoptionReport{}, check.Problem{}} {
		for _, field := range jsonFields(reflect.TypeOf(shape)) {
			fields++
			if !strings.Contains(page, "`"+field+"`") {
				t.Errorf("the page does not name the field %s of %T", field, shape)
			}
		}
	}
	if fields < 80 {
		t.Errorf("checked %d fields, want at least 80", fields)
	}
	for _, d := range subnetmap.States {
		if row := fmt.Sprintf("| `%c` | `%s` | %s |", d.Symbol, d.State, d.Text); !strings.Contains(page, row) {
			t.Errorf("the page has no row %s", row)
		}
	}
}

// jsonFields returns the names of the fields of a struct in JSON, with those of the structs in it.
func jsonFields(of reflect.Type) (names []string) {
	switch of.Kind() {
	case reflect.Slice, reflect.Pointer:
		return jsonFields(of.Elem())
	case reflect.Struct:
	default:
		return nil
	}
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		if name == "-" || name == "" && !of.Field(i).Anonymous {
			continue
		}
		if name != "" {
			names = append(names, name)
		}
		if strings.HasPrefix(of.Field(i).Type.String(), "time.") {
			continue
		}
		names = append(names, jsonFields(of.Field(i).Type)...)
	}
	return names
}
