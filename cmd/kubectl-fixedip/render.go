// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"fixedip.io/fixedip/ipam/core/explain"
)

// table writes rows in the format of kubectl.
func table(out io.Writer, rows [][]string) error {
	w := tabwriter.NewWriter(out, 6, 4, 3, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

func writeList(out io.Writer, list []listRow, namespaces bool, now time.Time) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(out, "No fixed addresses found.")
		return err
	}
	rows := [][]string{{"NAMESPACE", "NAME", "ADDRESSES", "NODE", "PHASE", "POD", "AGE"}}
	for _, r := range list {
		age := "-"
		if !r.created.IsZero() {
			age = duration.HumanDuration(now.Sub(r.created.Time))
		}
		rows = append(rows, []string{r.namespace, r.pod, orDash(strings.Join(r.addresses, ",")), orDash(r.node), orDash(r.phase), orDash(r.podState), age})
	}
	if !namespaces {
		for i := range rows {
			rows[i] = rows[i][1:]
		}
	}
	return table(out, rows)
}

func writeNodes(out io.Writer, nodes []nodeRow) error {
	rows := [][]string{{"NODE", "FAMILY", "SUBNETS", "AVAILABLE", "FIXED", "FREE", "USED", "COOLDOWN", "STATE"}}
	for _, n := range nodes {
		row := []string{n.node, orDash(n.family), orDash(n.subnets)}
		for _, count := range []int64{n.room, int64(n.fixed), int64(n.free), int64(n.used), int64(n.cooldown)} {
			row = append(row, fmt.Sprint(count))
		}
		rows = append(rows, append(row, n.state))
	}
	return table(out, rows)
}

func writeReport(out io.Writer, r explain.Report) error {
	var rows [][]string
	for _, f := range r.Facts {
		rows = append(rows, []string{f.What + ":", f.Is})
	}
	if err := table(out, rows); err != nil {
		return err
	}
	if len(r.Findings) > 0 {
		fmt.Fprintln(out)
	}
	for _, f := range r.Findings {
		sign := "-"
		if f.Wrong {
			sign = "!"
		}
		fmt.Fprintf(out, "%s %s.\n", sign, strings.TrimSuffix(f.Text, "."))
		if f.Help != "" {
			fmt.Fprintf(out, "  what helps: %s\n", f.Help)
		}
	}
	return nil
}

func orDash(s string) string { return cmp.Or(s, "-") }
