// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"fixedip.io/fixedip/ipam/core/subnetmap"
)

// colours are the ANSI colors of states in a terminal. Other states have the default color.
var colours = map[subnetmap.State]string{
	subnetmap.FixedUsed: "1;32", subnetmap.Fixed: "32", subnetmap.Reserved: "36", subnetmap.DynamicUsed: "1;34", subnetmap.DynamicFree: "34",
	subnetmap.Unreserved: "35", subnetmap.Cooldown: "33", subnetmap.Releasing: "33", subnetmap.Unlisted: "1;31", subnetmap.Foreign: "31",
	subnetmap.Free: "2", subnetmap.Excluded: "2",
}

// manyNodes is the number of nodes above which a page may be slow: 50,000 addresses if each has a /24.
const manyNodes = 200

//go:embed map.html
var mapPage string

// page is the HTML page of map. html/template escapes all text from the cluster.
var page = template.Must(template.New("map").Funcs(template.FuncMap{
	"symbol": func(s subnetmap.State) string { return string(s.Describe().Symbol) },
	"title":  cellText,
	"counts": countsText,
}).Parse(mapPage))

func mapCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var html bool
	var output string
	cmd := &cobra.Command{
		Use:   "map [NODE...]",
		Short: "Draw the subnets of nodes, one character for each address",
		Long: `Draw the subnets of nodes, one character for each address and 64 in a row.

Of an IPv4 subnet larger than a /22 and an IPv6 subnet larger than a /120, only rows with an address that is not free are
drawn. Color is used on a terminal if the environment variable NO_COLOR is not set. With --html the command prints a page
that needs no other file: kubectl fixedip map --html > map.html`,
		RunE: connected(flags, func(ctx context.Context, c *cluster, args []string) error {
			if err := validFormat(output); err != nil {
				return err
			}
			if html && output != "" {
				return fmt.Errorf("--html and --output=%s exclude each other; use one of them", output)
			}
			nodes, err := c.subnetMaps(ctx, args)
			if err != nil {
				return err
			}
			if html {
				if len(nodes) > manyNodes {
					fmt.Fprintf(streams.ErrOut, "The page has %d nodes and may be slow in a browser; name nodes for a smaller page.\n", len(nodes))
				}
				return writeMapPage(streams.Out, nodes, time.Now())
			}
			return write(streams.Out, output, listOf(nodes), func(out io.Writer) error { return writeMap(out, nodes, coloured(out)) })
		}),
		ValidArgsFunction: completeObjects(flags, nodeNames),
	}
	cmd.Flags().BoolVar(&html, "html", false, "Print an HTML page instead of text")
	outputFlag(cmd, &output)
	return cmd
}

// subnetMaps returns the maps of the named nodes, or of all nodes if no node is named.
func (c *cluster) subnetMaps(ctx context.Context, names []string) ([]subnetmap.Node, error) {
	l, _, err := c.pools(ctx)
	if err != nil {
		return nil, err
	}
	var all []subnetmap.Node
	for _, n := range l.Nodes() {
		all = append(all, subnetmap.Of(l, n))
	}
	return named(all, names, func(n subnetmap.Node) string { return n.Name })
}

// coloured reports whether text may have colors: out is a terminal that supports them, and the user has not set
// NO_COLOR.
func coloured(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// writeMap draws the subnets of the nodes, and explains the symbols that occur.
func writeMap(out io.Writer, nodes []subnetmap.Node, colour bool) error {
	var text strings.Builder
	symbol := func(s subnetmap.State) string {
		if c := colours[s]; colour && c != "" {
			return "\x1b[" + c + "m" + string(s.Describe().Symbol) + "\x1b[0m"
		}
		return string(s.Describe().Symbol)
	}
	seen := map[subnetmap.State]bool{}
	for i, n := range nodes {
		if i > 0 {
			text.WriteString("\n")
		}
		fmt.Fprintf(&text, "%s%s\n", n.Name, remarks(n))
		for _, s := range n.Subnets {
			fmt.Fprintf(&text, "  %s: %s\n", s.CIDR, countsText(s))
			width := 0
			for _, r := range s.Rows {
				width = max(width, len(r.First.String()))
			}
			for _, r := range s.Rows {
				if r.Skipped {
					text.WriteString("  (free addresses are left out)\n")
				}
				fmt.Fprintf(&text, "  %-*s  ", width, r.First)
				for _, c := range r.Cells {
					seen[c.State] = true
					text.WriteString(symbol(c.State))
				}
				text.WriteString("\n")
			}
			if s.Cut {
				text.WriteString("  (free addresses are left out)\n")
			}
		}
		for _, c := range n.Carried {
			seen[c.State] = true
			fmt.Fprintf(&text, "  %s %s (in the subnet of another node)\n", symbol(c.State), cellText(c))
		}
	}
	if len(nodes) == 0 {
		text.WriteString("No CiliumNodes found.\n")
	}
	if len(seen) > 0 {
		text.WriteString("\n")
	}
	for _, d := range subnetmap.States {
		if seen[d.State] {
			fmt.Fprintf(&text, "%s  %s\n", symbol(d.State), d.Text)
		}
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// remarks returns the problems of a node's subnets as text that begins with a colon; empty if there are none.
func remarks(n subnetmap.Node) string {
	var found []string
	if len(n.Subnets) == 0 {
		found = append(found, "no subnet")
	}
	if n.Overlaps != "" {
		found = append(found, "subnets overlap those of "+n.Overlaps)
	}
	if n.Unreported {
		found = append(found, "the agent has not reported yet; addresses in use may be missing")
	}
	if len(found) == 0 {
		return ""
	}
	return ": " + strings.Join(found, "; ")
}

// countsText returns the number of addresses of a subnet, and the numbers by state in the order of the legend.
func countsText(s subnetmap.Subnet) string {
	parts := []string{fmt.Sprintf("%d addresses for pods", s.Size)}
	if s.Size == math.MaxInt64 {
		parts[0] = "at least 2^63-1 addresses for pods"
	}
	for _, d := range subnetmap.States {
		if n := s.Counts[d.State]; n > 0 {
			parts = append(parts, fmt.Sprintf("%c %d", d.Symbol, n))
		}
	}
	return strings.Join(parts, ", ")
}

// cellText describes an address in one line.
func cellText(c subnetmap.Cell) string {
	text := fmt.Sprintf("%s: %s", c.Address, c.State.Describe().Text)
	if c.Holder != "" {
		text += ": " + c.Holder
	}
	if c.Workload != "" {
		text += ", workload " + c.Workload
	}
	if c.Node != "" {
		text += ", node " + c.Node
	}
	if c.User != "" {
		text += ", used by " + c.User
	}
	return text
}

// writeMapPage writes the HTML page. now is the time at which the objects were read.
func writeMapPage(out io.Writer, nodes []subnetmap.Node, now time.Time) error {
	err := page.Execute(out, struct {
		Nodes   []subnetmap.Node
		Remarks func(subnetmap.Node) string
		States  []subnetmap.Description
		At      string
	}{nodes, remarks, subnetmap.States, now.UTC().Format("2006-01-02 15:04:05 MST")})
	if err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}
