// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/explain"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// table writes rows as aligned columns, in the format of kubectl.
func table(out io.Writer, rows [][]string) error {
	w := tabwriter.NewWriter(out, 6, 4, 3, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// writeList writes a row for each FixedIP and for each owned entry without a FixedIP in a namespace; if namespace is
// empty, in all namespaces. Such an entry is a claim, or the entry of a pod without a fixed address on a strict node.
func writeList(out io.Writer, records []v1alpha1.FixedIP, pods []corev1.Pod, l *ledger.Ledger, namespace string, now time.Time) error {
	states := map[string]string{}
	for _, p := range pods {
		state := string(p.Status.Phase)
		if p.DeletionTimestamp != nil {
			state = "Terminating"
		}
		states[pool.OwnerKey(p.Namespace, p.Name)] = state
	}
	var rows [][]string
	recorded := map[string]bool{}
	for _, r := range records {
		if namespace != "" && r.Namespace != namespace {
			continue
		}
		key := pool.OwnerKey(r.Namespace, r.Spec.PodName)
		recorded[key] = true
		age := duration.HumanDuration(now.Sub(r.CreationTimestamp.Time))
		rows = append(rows, []string{r.Namespace, r.Spec.PodName, orDash(strings.Join(r.Spec.IPs, ",")), orDash(r.Spec.NodeName), orDash(string(reservation.StateOf(&r))), orDash(states[key]), age})
	}
	for _, owner := range l.Owners() {
		ns, name, _ := pool.SplitOwnerKey(owner)
		if recorded[owner] || namespace != "" && ns != namespace {
			continue
		}
		for _, h := range l.Held(owner) {
			state := "Claimed"
			if l.EntryOf(h).IsUnreserved() {
				state = "Unreserved"
			}
			rows = append(rows, []string{ns, name, strings.Join(address.Strings(h.Addrs), ","), h.Node, state, orDash(states[owner]), "-"})
		}
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(out, "No fixed addresses found.")
		return err
	}
	slices.SortStableFunc(rows, func(a, b []string) int { return strings.Compare(a[0]+"/"+a[1], b[0]+"/"+b[1]) })
	rows = slices.Insert(rows, 0, []string{"NAMESPACE", "NAME", "ADDRESSES", "NODE", "STATE", "POD", "AGE"})
	if namespace != "" {
		for i := range rows {
			rows[i] = rows[i][1:]
		}
	}
	return table(out, rows)
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

// writeReport writes the facts of a report as a table, and then its findings.
func writeReport(out io.Writer, r explain.Report) error {
	var rows [][]string
	for _, f := range r.Facts {
		rows = append(rows, []string{f.What + ":", f.Is})
	}
	if err := table(out, rows); err != nil {
		return err
	}
	if len(r.Facts) > 0 && len(r.Findings) > 0 {
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
