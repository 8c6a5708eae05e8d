// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-fixedip is a kubectl plugin. It shows fixed addresses and their pods, the free addresses of nodes, why
// a pod waits, and contradictions between the objects of a cluster. Only check --fix, reserve, release and move change
// objects.
package main

import (
	"context"
	"errors"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"fixedip.io/fixedip/ipam/version"
)

func main() {
	ctrllog.SetLogger(klog.Background())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	if err := command(streams).ExecuteContext(ctx); err != nil {
		os.Exit(exitCode(err))
	}
}

// exitCode returns 1 if the command has found problems, and 2 if it has failed.
func exitCode(err error) int {
	if errors.Is(err, errProblems) {
		return 1
	}
	return 2
}

func command(streams genericiooptions.IOStreams) *cobra.Command {
	flags := genericclioptions.NewConfigFlags(true)
	root := &cobra.Command{
		Use:          "kubectl-fixedip",
		Short:        "Show fixed addresses, and why a pod waits for one",
		SilenceUsage: true,
		Version:      version.Fixedip(),
		Annotations:  map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl fixedip"},
	}
	root.SetVersionTemplate(version.Text("kubectl-fixedip") + "\n")
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	flags.AddFlags(root.PersistentFlags())
	root.AddCommand(
		statusCommand(flags, streams), getCommand(flags, streams), topCommand(flags, streams), mapCommand(flags, streams),
		reportCommand(flags, streams), versionCommand(flags, streams),
		explainCommand(flags, streams), ipCommand(flags, streams), checkCommand(flags, streams), drainCheckCommand(flags, streams),
	)
	root.AddCommand(reserveCommand(flags, streams), releaseCommand(flags, streams), moveCommand(flags, streams), adoptCommand(flags, streams))
	addCompletion(root, streams.Out)
	return root
}

// exactlyOne returns a check that a command has exactly one argument. message is the text of the error.
func exactlyOne(message string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return errors.New(message)
		}
		return nil
	}
}
