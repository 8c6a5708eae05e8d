// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// errDeclined means that the user did not confirm a change. Nothing was changed.
var errDeclined = errors.New("nothing was changed")

// changes are the flags of commands that change objects.
type changes struct {
	dryRun, yes bool
	output      string
}

func (o *changes) addFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "Show what the command would do, and change nothing")
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "Do not ask for a confirmation")
	outputFlag(cmd, &o.output)
}

// confirm asks question, and returns nil if the user confirms or --yes is set. The error matches errDeclined if the user
// declines, or cannot be asked because the input is not a terminal.
func (o *changes) confirm(streams genericiooptions.IOStreams, question string) error {
	switch {
	case o.yes:
		return nil
	case !isTerminal(streams.In):
		return fmt.Errorf("cannot ask for confirmation, because the standard input is not a terminal; add --yes to confirm, or --dry-run to see what would change: %w", errDeclined)
	}
	fmt.Fprintf(streams.ErrOut, "%s [y/N] ", question)
	return readAnswer(streams.In)
}

// readAnswer returns nil if the next line of the input is y or yes, in upper or lower case, and errDeclined if it is
// anything else.
func readAnswer(in io.Reader) error {
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return errDeclined
}

// isTerminal reports whether an input is a terminal.
func isTerminal(in io.Reader) bool {
	file, ok := in.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
