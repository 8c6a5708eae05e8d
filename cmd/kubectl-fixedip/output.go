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

// formats are the values of --output; empty means text.
var formats = []string{"", "json", "yaml"}

func outputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "", "Format of the output: json or yaml; if empty, text")
	// RegisterFlagCompletionFunc fails only if the flag does not exist or already has a completion.
	utilruntime.Must(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats[1:], cobra.ShellCompDirectiveNoFileComp)))
}

func validFormat(output string) error {
	if !slices.Contains(formats, output) {
		return fmt.Errorf("--output: %q is not a format; write json or yaml", output)
	}
	return nil
}

// write writes a value in the format, or calls text if the format is empty.
func write(out io.Writer, format string, value any, text func(io.Writer) error) error {
	if format == "" {
		return text(out)
	}
	encoded, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the output: %w", err)
	}
	if format == "yaml" {
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
