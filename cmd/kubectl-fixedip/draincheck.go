// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/explain"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
)

func drainCheckCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	failover := string(v1alpha1.Wait)
	cmd := &cobra.Command{
		Use:   "drain-check NODE",
		Short: "Show what a drain of a node would do to its pods with fixed addresses, and what would stop it",
		Args:  exactlyOne("name exactly one node"),
		RunE: connected(flags, func(ctx context.Context, c *cluster, args []string) error {
			policy, err := identity.ParseFailover(failover)
			if err != nil {
				return fmt.Errorf("--failover: %w", err)
			}
			in, err := c.drain(ctx, args[0])
			if err != nil {
				return err
			}
			in.Failover = policy
			return writeDrain(streams.Out, in)
		}),
	}
	cmd.Flags().StringVar(&failover, "failover", failover, "Failover policy of FixedIPs that have none; has to equal failover of the configuration")
	return cmd
}

// drain reads the objects on which the effect of draining a node depends. The caller sets the failover policy of the result.
func (c *cluster) drain(ctx context.Context, node string) (in explain.DrainInputs, err error) {
	switch found, err := get(ctx, c, "", node, &corev1.Node{}); {
	case err != nil:
		return in, err
	case found == nil:
		return in, fmt.Errorf("node %q does not exist", node)
	}
	var pods corev1.PodList
	if err := c.api.List(ctx, &pods, client.MatchingFields{"spec.nodeName": node}); err != nil {
		return in, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	var budgets policyv1.PodDisruptionBudgetList
	if err := c.api.List(ctx, &budgets); err != nil {
		return in, fmt.Errorf("list PodDisruptionBudgets: %w", err)
	}
	var records v1alpha1.FixedIPList
	if err := c.api.List(ctx, &records); err != nil {
		return in, fmt.Errorf("list FixedIPs: %w", err)
	}
	in.Pods, in.Budgets, in.Records = pods.Items, budgets.Items, records.Items
	return in, nil
}

// writeDrain writes the effect of a drain on each pod with a fixed address, and the PodDisruptionBudgets that stop the
// drain.
func writeDrain(out io.Writer, in explain.DrainInputs) error {
	drained, report := explain.Drain(in)
	if len(drained) > 0 {
		rows := [][]string{{"NAMESPACE", "NAME", "ADDRESSES", "POLICY", "BUDGETS", "WHEN EVICTED"}}
		for _, d := range drained {
			namespace, name, _ := pool.SplitOwnerKey(d.Pod)
			rows = append(rows, []string{namespace, name, strings.Join(d.IPs, ","), orDash(d.Policy), orDash(strings.Join(d.Budgets, ",")), d.AfterEviction})
		}
		if err := table(out, rows); err != nil {
			return err
		}
		fmt.Fprintln(out)
	}
	return writeReport(out, report)
}
