// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reservation"
)

func listCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List fixed addresses and their pods, including pool entries without a FixedIP",
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
