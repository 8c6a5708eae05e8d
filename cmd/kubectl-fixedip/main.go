// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-fixedip is a read-only kubectl plugin. It shows fixed addresses and their pods, the free
// addresses of nodes, and why a pod waits.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"fixedip.io/fixedip/ipam/core/explain"
)

func main() {
	ctrllog.SetLogger(klog.Background())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	if err := command(streams).ExecuteContext(ctx); err != nil {
		os.Exit(1)
	}
}

func command(streams genericiooptions.IOStreams) *cobra.Command {
	flags := genericclioptions.NewConfigFlags(true)
	root := &cobra.Command{
		Use:          "kubectl-fixedip",
		Short:        "Show fixed addresses, and why a pod waits for one",
		SilenceUsage: true,
		Annotations:  map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl fixedip"},
	}
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	flags.AddFlags(root.PersistentFlags())
	root.AddCommand(listCommand(flags, streams), explainCommand(flags, streams), nodesCommand(flags, streams))
	return root
}

// connected returns a function for cobra that runs a command with a connection to the cluster.
func connected(flags *genericclioptions.ConfigFlags, run func(ctx context.Context, c *cluster, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := connect(flags)
		if err != nil {
			return err
		}
		return run(cmd.Context(), c, args)
	}
}

func listCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List fixed addresses and their pods, including claims without a FixedIP",
		Args:  cobra.NoArgs,
		RunE: connected(flags, func(ctx context.Context, c *cluster, _ []string) error {
			if all {
				c.namespace = ""
			}
			l, records, err := c.pools(ctx)
			if err != nil {
				return err
			}
			var pods corev1.PodList
			if err := c.api.List(ctx, &pods, client.InNamespace(c.namespace)); err != nil {
				return fmt.Errorf("list pods: %w", err)
			}
			return writeList(streams.Out, records, pods.Items, l, c.namespace, time.Now())
		}),
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "List fixed addresses of all namespaces")
	return cmd
}

func explainCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var controllers string
	cmd := &cobra.Command{
		Use:   "explain POD",
		Short: "Explain where the address of a pod is, why the pod waits or its address is reserved, and what helps",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("name exactly one pod; it may be deleted")
			}
			return nil
		},
		RunE: connected(flags, func(ctx context.Context, c *cluster, args []string) error {
			inputs, err := c.inputs(ctx, args[0], controllers)
			if err != nil {
				return err
			}
			return writeReport(streams.Out, explain.Explain(inputs))
		}),
	}
	cmd.Flags().StringVar(&controllers, "controller-lease", "fixedip-system/cilium-ipam-leader", "Namespace and name of the Lease of the controllers")
	return cmd
}

func nodesCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use:   "nodes",
		Short: "Show the subnets and free addresses of each node",
		Args:  cobra.NoArgs,
		RunE: connected(flags, func(ctx context.Context, c *cluster, _ []string) error {
			l, _, err := c.pools(ctx)
			if err != nil {
				return err
			}
			nodes, err := c.nodes(ctx)
			if err != nil {
				return err
			}
			return writeNodes(streams.Out, l, nodes)
		}),
	}
}
