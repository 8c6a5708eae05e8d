// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// fixedAddress is one row of get: a FixedIP, or the pool entries on one node of a pod that no FixedIP names.
type fixedAddress struct {
	Namespace string `json:"namespace"`
	// Name is the name of the FixedIP; empty if there is none.
	Name string   `json:"name,omitempty"`
	IPs  []string `json:"ips"`
	// Node is the node that the FixedIP names or, without a FixedIP, the node whose pool has the entries.
	Node string `json:"node,omitempty"`
	// Ready and Reason are status and reason of the condition Ready of the FixedIP. Without a FixedIP, Ready is empty, and
	// Reason is Claimed or, for a pod without a fixed address on a strict node, Unreserved.
	Ready  string `json:"ready,omitempty"`
	Reason string `json:"reason,omitempty"`
	Pod    string `json:"pod"`
	// PodState is the phase of the pod, or Terminating; empty if the pod does not exist.
	PodState string `json:"podState,omitempty"`
	// Workload is the workload of the addresses as Kind/name; empty if it is unknown.
	Workload string            `json:"workload,omitempty"`
	Failover v1alpha1.Failover `json:"failover,omitempty"`
	// ExpiresAt is the time at which the addresses are released, unless the workload expects the pod again; nil if no release
	// is due.
	ExpiresAt *time.Time `json:"expiresAt,omitempty"`
	// CreatedAt is the creation time of the FixedIP; nil if there is none.
	CreatedAt *time.Time `json:"createdAt,omitempty"`

	// labels are those of the pod and those of the FixedIP. If both have a key, the value is that of the FixedIP.
	labels labels.Set
}

// addressFilter selects rows of get. The zero value selects all.
type addressFilter struct {
	// labels select by the labels of the pod and of the FixedIP; nil: any.
	labels labels.Selector
	// workload is Kind/name; upper and lower case of the kind do not matter. node is the name of a node. Empty: any.
	workload, node string
}

func (f addressFilter) matches(a fixedAddress) bool {
	kind, name, _ := strings.Cut(a.Workload, "/")
	wantKind, wantName, _ := strings.Cut(f.workload, "/")
	return (f.workload == "" || name == wantName && strings.EqualFold(kind, wantKind)) &&
		(f.node == "" || a.Node == f.node) && (f.labels == nil || f.labels.Matches(a.labels))
}

func getCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var all bool
	var output, selector string
	var filter addressFilter
	cmd := &cobra.Command{
		Use:     "get [FIXEDIP...]",
		Aliases: []string{"list"},
		Short:   "List fixed addresses and their pods, including pool entries without a FixedIP",
		Long: `List fixed addresses and their pods.

A row without a name is a pool entry without a FixedIP. Its reason is Unreserved (a pod without a fixed address on a strict
node) or Claimed (the pod is being bound, the controller has not recorded the claim yet, or a user wrote the entry). READY and
REASON of the other rows are those of the condition Ready of the FixedIP. If arguments are given, only rows with a FixedIP or
a pod of one of these names are listed.`,
		RunE: connected(flags, func(ctx context.Context, c *cluster, args []string) (err error) {
			if err := validFormat(output, inWide, asNames); err != nil {
				return err
			}
			if filter.labels, err = labels.Parse(selector); err != nil {
				return fmt.Errorf("--selector: %w", err)
			}
			if kind, name, ok := strings.Cut(filter.workload, "/"); filter.workload != "" && (!ok || kind == "" || name == "") {
				return fmt.Errorf("--workload: %q is not KIND/NAME; write, for example, StatefulSet/web", filter.workload)
			}
			if all {
				c.namespace = ""
			}
			rows, err := c.fixedAddresses(ctx, streams.ErrOut)
			if err != nil {
				return err
			}
			rows = slices.DeleteFunc(rows, func(a fixedAddress) bool {
				named := len(args) == 0 || slices.Contains(args, a.Pod) || a.Name != "" && slices.Contains(args, a.Name)
				return !named || !filter.matches(a)
			})
			return write(streams.Out, output, listOf(rows), func(out io.Writer) error {
				return writeAddresses(out, rows, output, c.namespace == "", time.Now())
			})
		}),
		ValidArgsFunction: completeObjects(flags, fixedIPNames),
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "List fixed addresses of all namespaces")
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "Label selector; the labels of the FixedIP and those of its pod count")
	cmd.Flags().StringVar(&filter.workload, "workload", "", "List only addresses of this workload, KIND/NAME")
	cmd.Flags().StringVar(&filter.node, "node", "", "List only addresses whose FixedIP names this node (spec.nodeName), and pool entries of this node without a FixedIP")
	completeFlag(cmd, "node", completeObjects(flags, nodeNames))
	outputFlag(cmd, &output, inWide, asNames)
	return cmd
}

// fixedAddresses reads the rows of get. If the user may not list CiliumNodes, it writes to warnings that pool entries
// without a FixedIP are missing.
func (c *cluster) fixedAddresses(ctx context.Context, warnings io.Writer) ([]fixedAddress, error) {
	var records v1alpha1.FixedIPList
	if err := c.api.List(ctx, &records, client.InNamespace(c.namespace)); err != nil {
		return nil, listError("FixedIPs", err)
	}
	var pods corev1.PodList
	if err := c.api.List(ctx, &pods, client.InNamespace(c.namespace)); err != nil {
		return nil, listError("pods", err)
	}
	l, err := c.nodePools(ctx)
	switch {
	case apierrors.IsForbidden(err):
		fmt.Fprintf(warnings, "Pool entries without a FixedIP are not shown: %v\n", err)
		l = ledger.New()
	case err != nil:
		return nil, err
	}
	return addressRows(records.Items, pods.Items, l, c.namespace), nil
}

// addressRows returns a row for each FixedIP and, for each pod that no FixedIP names, a row for its entries on each node.
// The rows are sorted by namespace, pod, FixedIP and node. If namespace is empty, the result contains all namespaces.
func addressRows(records []v1alpha1.FixedIP, pods []corev1.Pod, l *ledger.Ledger, namespace string) []fixedAddress {
	byKey := map[string]*corev1.Pod{}
	for i := range pods {
		byKey[pool.OwnerKey(pods[i].Namespace, pods[i].Name)] = &pods[i]
	}
	var rows []fixedAddress
	recorded := map[string]bool{}
	for _, r := range records {
		if namespace != "" && r.Namespace != namespace {
			continue
		}
		key := pool.OwnerKey(r.Namespace, r.Spec.PodName)
		recorded[key] = true
		row := fixedAddress{
			Namespace: r.Namespace, Name: r.Name, IPs: append([]string{}, r.Spec.IPs...), Node: r.Spec.NodeName, Pod: r.Spec.PodName,
			Workload: r.Spec.Owner.Kind + "/" + r.Spec.Owner.Name, Failover: r.Spec.Failover, CreatedAt: ptr.To(r.CreationTimestamp.Time),
		}
		if ready := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
			row.Ready, row.Reason = string(ready.Status), ready.Reason
		}
		if r.Status.ExpiresAt != nil {
			row.ExpiresAt = ptr.To(r.Status.ExpiresAt.Time)
		}
		row.setPod(byKey[key], r.Labels)
		rows = append(rows, row)
	}
	for _, owner := range l.Owners() {
		ns, name, ok := pool.SplitOwnerKey(owner)
		if !ok || recorded[owner] || namespace != "" && ns != namespace {
			continue
		}
		for _, h := range l.Held(owner) {
			e := l.EntryOf(h)
			row := fixedAddress{Namespace: ns, IPs: address.Strings(h.Addrs), Node: h.Node, Reason: "Claimed", Pod: name}
			if e.IsUnreserved() {
				row.Reason = "Unreserved"
			} else if kind, workload, ok := e.WorkloadRef(); ok {
				row.Workload = kind + "/" + workload
			}
			row.setPod(byKey[owner], nil)
			rows = append(rows, row)
		}
	}
	slices.SortStableFunc(rows, func(a, b fixedAddress) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Node, b.Node))
	})
	return rows
}

// setPod sets the fields that depend on the pod, which is nil if the pod does not exist. own are the labels of the FixedIP.
func (a *fixedAddress) setPod(pod *corev1.Pod, own map[string]string) {
	a.labels = labels.Set{}
	if pod != nil {
		maps.Copy(a.labels, pod.Labels)
		a.PodState = string(pod.Status.Phase)
		if pod.DeletionTimestamp != nil {
			a.PodState = "Terminating"
		}
	}
	maps.Copy(a.labels, own)
}

// writeAddresses writes the rows as a table, or as names if format is asNames. namespaces adds the column NAMESPACE.
func writeAddresses(out io.Writer, rows []fixedAddress, format string, namespaces bool, now time.Time) error {
	if format == asNames {
		for _, a := range rows {
			if a.Name != "" {
				fmt.Fprintf(out, "fixedip.%s/%s\n", v1alpha1.GroupVersion.Group, a.Name)
			}
		}
		return nil
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(out, "No fixed addresses found.")
		return err
	}
	cells := [][]string{{"NAMESPACE", "NAME", "IP", "NODE", "READY", "REASON", "POD", "STATE", "AGE", "WORKLOAD", "FAILOVER", "EXPIRES"}}
	for _, a := range rows {
		age, expires := "-", "-"
		if a.CreatedAt != nil {
			age = duration.HumanDuration(now.Sub(*a.CreatedAt))
		}
		if a.ExpiresAt != nil {
			expires = "in " + duration.HumanDuration(max(0, a.ExpiresAt.Sub(now)))
		}
		cells = append(cells, []string{
			a.Namespace, orDash(a.Name), orDash(strings.Join(a.IPs, ",")), orDash(a.Node), orDash(a.Ready), orDash(a.Reason), a.Pod, orDash(a.PodState), age,
			orDash(a.Workload), orDash(string(a.Failover)), expires,
		})
	}
	const narrow = 9 // The columns after AGE are for inWide.
	for i := range cells {
		if format != inWide {
			cells[i] = cells[i][:narrow]
		}
		if !namespaces {
			cells[i] = cells[i][1:]
		}
	}
	return table(out, cells)
}
