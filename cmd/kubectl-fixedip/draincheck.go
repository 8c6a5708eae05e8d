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
	"fixedip.io/fixedip/ipam/store/fixedips"
)

// drainReport is the output of drain-check.
type drainReport struct {
	Node           string               `json:"node"`
	Pods           []explain.DrainedPod `json:"pods"`
	explain.Report `json:",inline"`
}

func drainCheckCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var failover, output string
	var source configurationSource
	cmd := &cobra.Command{
		Use:   "drain-check NODE",
		Short: "Show what a drain of a node would do to its pods with fixed addresses, and what would stop it",
		Long: `Show which pods with fixed addresses would wait for the node, move with their addresses, or get other addresses, and which
PodDisruptionBudgets would stop the drain. Pods of DaemonSets and static pods are left out, because a drain leaves them
out too. Whether another node has the CPU and the memory for a pod is not checked.

Exit code 0: no pod would wait, and no budget stops the drain. 1: a pod would wait, or a budget stops the drain.
2: the command failed.`,
		Args:              exactlyOne("name exactly one node"),
		ValidArgsFunction: completeOne(flags, nodeNames),
		RunE: connected(flags, func(ctx context.Context, c *cluster, args []string) error {
			if err := validFormat(output); err != nil {
				return err
			}
			in, err := c.drain(ctx, args[0], source)
			if err != nil {
				return err
			}
			if failover != "" {
				if in.Failover, err = identity.ParseFailover(failover); err != nil {
					return fmt.Errorf("--failover: %w", err)
				}
			}
			drained, report := explain.Drain(in)
			value := drainReport{Node: args[0], Pods: append([]explain.DrainedPod{}, drained...), Report: report}
			if err := write(streams.Out, output, value, func(out io.Writer) error { return writeDrain(out, value) }); err != nil {
				return err
			}
			return problemsOf(report)
		}),
	}
	cmd.Flags().StringVar(&failover, "failover", "", "Failover policy of FixedIPs that have none; if empty, failover of the configuration, or Wait if the configuration cannot be read")
	source.addFlags(cmd)
	outputFlag(cmd, &output)
	return cmd
}

// drain reads the objects on which the effect of draining a node depends. The node, its pods and the FixedIPs are required.
// drain leaves out other objects that the user may not read, and a ConfigMap of the configuration that does not exist, and
// names them in the result. It returns any other error.
func (c *cluster) drain(ctx context.Context, node string, source configurationSource) (in explain.DrainInputs, err error) {
	in = explain.DrainInputs{Node: node, Volumes: map[string][]explain.Volume{}}
	switch found, err := get(ctx, c, "", node, &corev1.Node{}); {
	case err != nil:
		return in, err
	case found == nil:
		return in, fmt.Errorf("node %q does not exist", node)
	}
	var left omissions
	source = c.locate(ctx, source)
	settings, unread := c.configuration(ctx, source)
	in.Failover = settings.Failover
	if unread == nil {
		in.MigrationAllowed = settings.AllowAddressMigration
	} else if err := left.allowMissing("ConfigMap "+string(source), unread); err != nil {
		return in, err
	}
	var pods corev1.PodList
	if err := c.api.List(ctx, &pods, client.MatchingFields{"spec.nodeName": node}); err != nil {
		return in, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	var records v1alpha1.FixedIPList
	if err := c.api.List(ctx, &records); err != nil {
		return in, listError("FixedIPs", err)
	}
	var budgets policyv1.PodDisruptionBudgetList
	if err := left.allow("PodDisruptionBudgets", c.api.List(ctx, &budgets)); err != nil {
		return in, listError("PodDisruptionBudgets", err)
	}
	in.Nodes, err = c.nodes(ctx)
	if err := left.allow("nodes", err); err != nil {
		return in, err
	}
	in.Pools, err = c.nodePools(ctx)
	if err := left.allow("CiliumNodes", err); err != nil {
		return in, err
	}
	recorded := map[string]bool{}
	for i := range records.Items {
		recorded[pool.OwnerKey(records.Items[i].Namespace, records.Items[i].Spec.PodName)] = true
		if in.Pools != nil {
			in.Pools.SetReservation(fixedips.ReservationOf(&records.Items[i]))
		}
	}
	for i := range pods.Items {
		key := pool.OwnerKey(pods.Items[i].Namespace, pods.Items[i].Name)
		if !recorded[key] {
			continue
		}
		if in.Volumes[key], err = c.volumes(ctx, &pods.Items[i], &left); err != nil {
			return in, err
		}
	}
	in.Pods, in.Budgets, in.Records, in.NotRead = pods.Items, budgets.Items, records.Items, left
	return in, nil
}

// writeDrain writes the effect of a drain on each pod with a fixed address, and the PodDisruptionBudgets that stop the
// drain.
func writeDrain(out io.Writer, r drainReport) error {
	if len(r.Pods) > 0 {
		rows := [][]string{{"NAMESPACE", "NAME", "ADDRESSES", "POLICY", "BUDGETS", "WHEN EVICTED"}}
		for _, d := range r.Pods {
			namespace, name, _ := pool.SplitOwnerKey(d.Pod)
			rows = append(rows, []string{namespace, name, strings.Join(d.IPs, ","), orDash(d.Policy), orDash(strings.Join(d.Budgets, ",")), d.AfterEviction})
		}
		if err := table(out, rows); err != nil {
			return err
		}
		fmt.Fprintln(out)
	}
	return writeReport(out, r.Report)
}
