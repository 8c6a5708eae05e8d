// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/yaml"
)

// Values of --output. The empty value means a table or text. Every command with the flag has inJSON and inYAML; inWide is
// a table with more columns, and asNames writes one line with RESOURCE/NAME for each object.
const (
	inJSON  = "json"
	inYAML  = "yaml"
	inWide  = "wide"
	asNames = "name"
)

// list is the shape of a command's output in JSON and YAML if the command prints several objects. Items is never null.
type list[T any] struct {
	Items []T `json:"items"`
}

// listOf returns items as a list.
func listOf[T any](items []T) list[T] {
	if items == nil {
		items = []T{}
	}
	return list[T]{Items: items}
}

// outputFlag adds the flag --output to a command. further are the formats of the command besides inJSON and inYAML.
func outputFlag(cmd *cobra.Command, output *string, further ...string) {
	formats := formatsOf(further)
	cmd.Flags().StringVarP(output, "output", "o", "", "Format of the output: "+enumerate(formats)+"; if empty, text")
	// RegisterFlagCompletionFunc fails only if the flag does not exist or already has a completion.
	utilruntime.Must(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)))
}

// validFormat returns an error if output is not empty and not a format of the command. further is as for outputFlag.
func validFormat(output string, further ...string) error {
	if formats := formatsOf(further); output != "" && !slices.Contains(formats, output) {
		return fmt.Errorf("--output: %q is not a format of this command; write %s", output, enumerate(formats))
	}
	return nil
}

func formatsOf(further []string) []string { return append([]string{inJSON, inYAML}, further...) }

// enumerate joins words as "a, b or c". There have to be at least two words.
func enumerate(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// write writes a value in the format inJSON or inYAML, or calls text if the format is another one.
func write(out io.Writer, format string, value any, text func(io.Writer) error) error {
	if format != inJSON && format != inYAML {
		return text(out)
	}
	encoded, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the output: %w", err)
	}
	if format == inYAML {
		if encoded, err = yaml.JSONToYAML(encoded); err != nil {
			return fmt.Errorf("encode the output: %w", err)
		}
		_, err = out.Write(encoded)
		return err
	}
	_, err = fmt.Fprintln(out, string(encoded))
	return err
}

// table writes rows as aligned columns, in the format of kubectl.
func table(out io.Writer, rows [][]string) error {
	w := tabwriter.NewWriter(out, 6, 4, 3, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

func orDash(s string) string { return cmp.Or(s, "-") }
