// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
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

// nodeUse is one row of top: the use of the subnets of one family on one node.
type nodeUse struct {
	Node string `json:"node"`
	// Family is IPv4 or IPv6; empty for a node without a subnet.
	Family  string   `json:"family,omitempty"`
	Subnets []string `json:"subnets"`
	// Size is the number of addresses that pods may have, at most math.MaxInt64. Available is the number of those from which
	// a claim can choose once the agent has reported (ledger.Ledger.Available).
	Size      int64 `json:"size"`
	Available int64 `json:"available"`
	// UsedPercent is the share of Size that is not available, from 0 to 100, rounded up, but 100 only if nothing is available.
	UsedPercent int `json:"usedPercent"`
	// Fixed, Free, Used and Cooldown are numbers of pool entries: owned entries, dynamic entries that no pod uses, dynamic
	// entries in use, and entries in cooldown.
	Fixed    int `json:"fixed"`
	Free     int `json:"free"`
	Used     int `json:"used"`
	Cooldown int `json:"cooldown"`
	// Overlaps is another node whose subnets overlap those of this node, so that nothing is available; empty if there is none.
	Overlaps string `json:"overlaps,omitempty"`
	// State is that of the Node: ready, cordoned, being deleted, not ready, or "does not exist".
	State string `json:"state"`
}

func topCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "top [NODE...]",
		Aliases: []string{"nodes"},
		Short:   "Show the subnets and free addresses of each node, fullest first",
		Long: `Show the subnets and free addresses of each node, one row for each family, fullest first.

AVAILABLE is the number of addresses from which a pod with a fixed address can get one, once the Cilium agent of the node has
reported which addresses are in use. USE% is the share of the subnet that is not available. FIXED are entries that belong to
one pod: the entries of pods with fixed addresses, and on strict nodes those of all pods. FREE and USED are addresses that the
agent may give to any pod: not in use, and in use. COOLDOWN are addresses that were released or withdrawn and are offered to no
pod yet.`,
		RunE: connected(flags, func(ctx context.Context, c *cluster, args []string) error {
			if err := validFormat(output, inWide, asNames); err != nil {
				return err
			}
			l, _, err := c.pools(ctx)
			if err != nil {
				return err
			}
			nodes, err := c.nodes(ctx)
			if err != nil {
				return err
			}
			rows, err := named(nodeUses(l, nodes), args, func(n nodeUse) string { return n.Node })
			if err != nil {
				return err
			}
			return write(streams.Out, output, listOf(rows), func(out io.Writer) error { return writeNodes(out, rows, output) })
		}),
		ValidArgsFunction: completeObjects(flags, nodeNames),
	}
	outputFlag(cmd, &output, inWide, asNames)
	return cmd
}

// named returns the rows of the given nodes; all rows if nodes is empty. If a node has no row, it returns an error that
// names the node.
func named[T any](rows []T, nodes []string, nodeOf func(T) string) ([]T, error) {
	for _, name := range nodes {
		if !slices.ContainsFunc(rows, func(row T) bool { return nodeOf(row) == name }) {
			return nil, fmt.Errorf("CiliumNode %q does not exist", name)
		}
	}
	return slices.DeleteFunc(rows, func(row T) bool { return len(nodes) > 0 && !slices.Contains(nodes, nodeOf(row)) }), nil
}

// nodeUses returns a row for each family of each node's subnets, and one row for a node without a subnet. The rows are
// sorted by UsedPercent, largest first; nodes without a subnet are last. Key of nodes: the name.
func nodeUses(l *ledger.Ledger, nodes map[string]*corev1.Node) (rows []nodeUse) {
	for _, n := range l.Nodes() {
		row := nodeUse{Node: n.Name, State: explain.NodeState(nodes[n.Name])}
		row.Overlaps, _ = l.OverlapsWith(n.Name)
		if len(n.Subnets) == 0 {
			row.Subnets = []string{}
			rows = append(rows, row)
		}
		for _, f := range address.Families {
			if !n.HasFamily(f) {
				continue
			}
			row := row
			for _, s := range n.Subnets {
				if address.Of(s.Addr()) == f {
					row.Subnets = append(row.Subnets, s.String())
				}
			}
			row.Family, row.Size, row.Available = f.String(), l.SubnetSize(n.Name, f), l.Available(n.Name, f)
			row.UsedPercent = usedPercent(row.Size, row.Available)
			counts := n.CountStates(f)
			row.Fixed, row.Free, row.Used, row.Cooldown = counts[pool.StateFixed], counts[pool.StateFree], counts[pool.StateUsed], counts[pool.StateCooldown]
			rows = append(rows, row)
		}
	}
	slices.SortStableFunc(rows, func(a, b nodeUse) int {
		return cmp.Or(cmp.Compare(b.UsedPercent, a.UsedPercent), cmp.Compare(min(1, len(b.Subnets)), min(1, len(a.Subnets))))
	})
	return rows
}

// usedPercent returns the share of size that is not available, in percent and rounded up, except that it is 100 only if
// nothing is available. It is 0 if size is 0.
func usedPercent(size, available int64) int {
	if size == 0 {
		return 0
	}
	percent := int(float64(size-available) * 100 / float64(size))
	if percent < 100 && float64(percent)*float64(size) < float64(size-available)*100 {
		percent++
	}
	if percent == 100 && available > 0 {
		return 99
	}
	return percent
}

// writeNodes writes the rows as a table, or the names of the nodes if format is asNames. inWide adds the sizes.
func writeNodes(out io.Writer, rows []nodeUse, format string) error {
	if format == asNames {
		var names []string
		for _, r := range rows {
			if !slices.Contains(names, r.Node) {
				names = append(names, r.Node)
				fmt.Fprintln(out, "node/"+r.Node)
			}
		}
		return nil
	}
	header := []string{"NODE", "FAMILY", "SUBNETS", "USE%", "AVAILABLE", "FIXED", "FREE", "USED", "COOLDOWN", "STATE"}
	if format == inWide {
		header = append(header, "SIZE")
	}
	cells := [][]string{header}
	for _, r := range rows {
		state := r.State
		if r.Overlaps != "" {
			state += ", subnets overlap those of " + r.Overlaps
		}
		if len(r.Subnets) == 0 {
			state += ", no subnet"
		}
		row := []string{
			r.Node, orDash(r.Family), orDash(strings.Join(r.Subnets, ",")), fmt.Sprint(r.UsedPercent), fmt.Sprint(r.Available),
			fmt.Sprint(r.Fixed), fmt.Sprint(r.Free), fmt.Sprint(r.Used), fmt.Sprint(r.Cooldown), state,
		}
		if format == inWide {
			row = append(row, fmt.Sprint(r.Size))
		}
		cells = append(cells, row)
	}
	return table(out, cells)
}
