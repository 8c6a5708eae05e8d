// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The table of values in the README of the chart is between these lines.
const (
	begin = "<!-- BEGIN: generated from values.yaml -->\n"
	end   = "<!-- END: generated -->\n"
)

// writeValues writes the table of values into the README of the chart: each value with its default and its comment.
func writeValues(valuesFile, readme string) error {
	text, err := os.ReadFile(valuesFile)
	if err != nil {
		return err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return fmt.Errorf("parse %s: %w", valuesFile, err)
	}
	var table strings.Builder
	table.WriteString("| Value | Default | Meaning |\n|---|---|---|\n")
	if err := addRows(&table, "", "", document.Content[0]); err != nil {
		return fmt.Errorf("%s: %w", valuesFile, err)
	}
	before, err := os.ReadFile(readme)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(before), begin)
	_, tail, found := strings.Cut(rest, end)
	if !ok || !found {
		return fmt.Errorf("%s has no table of values: it needs the lines %q and %q", readme, begin, end)
	}
	return os.WriteFile(readme, []byte(head+begin+table.String()+end+tail), 0o644)
}

// addRows adds a row for each value in a mapping and in the mappings below it; resources and empty mappings are one value
// each. path is the path of the mapping with a dot at its end. A value without a comment gets the comment of its mapping.
func addRows(table *strings.Builder, path, comment string, mapping *yaml.Node) error {
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		meaning := strings.Join(strings.Fields(strings.ReplaceAll(key.HeadComment, "#", "")), " ")
		if meaning == "" {
			meaning = comment
		}
		if value.Kind == yaml.MappingNode && len(value.Content) > 0 && key.Value != "resources" {
			if err := addRows(table, path+key.Value+".", meaning, value); err != nil {
				return err
			}
			continue
		}
		if meaning == "" {
			return fmt.Errorf("the value %s%s has no comment", path, key.Value)
		}
		var decoded any
		if err := value.Decode(&decoded); err != nil {
			return fmt.Errorf("decode the value %s%s: %w", path, key.Value, err)
		}
		text, err := json.Marshal(decoded)
		if err != nil {
			return err
		}
		fmt.Fprintf(table, "| `%s%s` | `%s` | %s |\n", path, key.Value, text, meaning)
	}
	return nil
}
