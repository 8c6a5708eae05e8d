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
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/explain"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

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

// writeNodes writes a row for each family of each node's subnets, and one row for a node without a subnet.
func writeNodes(out io.Writer, l *ledger.Ledger, nodes map[string]*corev1.Node) error {
	rows := [][]string{{"NODE", "FAMILY", "SUBNETS", "AVAILABLE", "FIXED", "FREE", "USED", "COOLDOWN", "STATE"}}
	for _, n := range l.Nodes() {
		state := explain.NodeState(nodes[n.Name])
		if other, ok := l.OverlapsWith(n.Name); ok {
			state += ", subnets overlap those of " + other
		}
		if len(n.Subnets) == 0 {
			rows = append(rows, []string{n.Name, "-", "-", "0", "0", "0", "0", "0", state + ", no subnet"})
		}
		for _, f := range address.Families {
			if !n.HasFamily(f) {
				continue
			}
			var subnets []string
			for _, s := range n.Subnets {
				if address.Of(s.Addr()) == f {
					subnets = append(subnets, s.String())
				}
			}
			row := []string{n.Name, f.String(), strings.Join(subnets, ","), fmt.Sprint(l.Available(n.Name, f))}
			counts := n.CountStates(f)
			for _, s := range []pool.State{pool.StateFixed, pool.StateFree, pool.StateUsed, pool.StateCooldown} {
				row = append(row, fmt.Sprint(counts[s]))
			}
			rows = append(rows, append(row, state))
		}
	}
	return table(out, rows)
}
