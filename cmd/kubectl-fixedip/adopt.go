// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/conformance"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
)

// adoption contains the values of the flags of adopt.
type adoption struct {
	selector      string
	all, allPods  bool
	kinds         []string
	excludeBranch []string
	source        configurationSource
	output        string
}

// adoptionReport is the output of adopt --preview.
type adoptionReport struct {
	Pods []conformance.AdoptedPod `json:"pods"`
	// Totals contains the number of pods. Key: the outcome.
	Totals map[conformance.AdoptionOutcome]int `json:"totals"`
	// Restarts is the number of pods that the adoption restarts: always 0.
	Restarts int `json:"restarts"`
	// MismatchPolicy is the policy of the configuration for pods that run with another address than their fixed one; Report
	// if the configuration cannot be read.
	MismatchPolicy identity.OnMismatch `json:"mismatchPolicy"`
}

func adoptCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var preview bool
	var o adoption
	cmd := &cobra.Command{
		Use:   "adopt --preview",
		Short: "Show which pods of other schedulers would keep their current addresses as fixed addresses",
		Long: `Show what adoption.podSelector of the configuration, or another selector, would do: which pods of other schedulers would
keep the addresses that they run with, and why the others would not. Nothing is changed: to adopt pods, set
adoption.podSelector in the configuration. An adoption restarts no pod.

Exit code 0: every selected pod can be adopted. 1: a selected pod cannot be adopted. 2: the command failed.`,
		Args: cobra.NoArgs,
		RunE: connected(flags, func(ctx context.Context, c *cluster, _ []string) error {
			if err := validFormat(o.output); err != nil {
				return err
			}
			if !preview {
				return errors.New("kubectl fixedip adopt only shows what an adoption would do: add --preview; to adopt pods, set adoption.podSelector in the configuration of fixedip")
			}
			report, err := c.adoptionReport(ctx, o)
			if err != nil {
				return err
			}
			if err := write(streams.Out, o.output, report, func(out io.Writer) error { return writeAdoption(out, report) }); err != nil {
				return err
			}
			if report.Totals[conformance.AdoptionBlocked] > 0 {
				return errProblems
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&preview, "preview", false, "Show what an adoption would do; required")
	cmd.Flags().StringVarP(&o.selector, "selector", "l", "", "Label selector of the pods to adopt; if empty, adoption.podSelector of the configuration")
	cmd.Flags().BoolVar(&o.all, "all", false, "Preview with a selector that selects all pods")
	cmd.Flags().BoolVarP(&o.allPods, "all-namespaces", "A", false, "Show the pods of all namespaces")
	cmd.Flags().StringSliceVar(&o.kinds, "workloads", nil, "Kinds of workloads whose pods may have fixed addresses, in addition to StatefulSets, such as CloneSet.apps.kruise.io=PodName; if empty, workloads of the configuration")
	cmd.Flags().StringSliceVar(&o.excludeBranch, "exclude-dbbranch-prefixes", nil, "Prefixes of the label "+identity.LabelDBBranch+" that exclude a pod, as for the controller")
	cmd.MarkFlagsMutuallyExclusive("selector", "all")
	o.source.addFlags(cmd)
	outputFlag(cmd, &o.output)
	return cmd
}

// adoptionReport reads the cluster and previews the adoption.
func (c *cluster) adoptionReport(ctx context.Context, o adoption) (r adoptionReport, err error) {
	settings, unread := c.configuration(ctx, o.source)
	in := conformance.AdoptionInputs{Kinds: identity.NewKinds(settings.Workloads...)}
	// If the configuration cannot be read, its families are unknown, and the preview is for both.
	in.Adoption = identity.Adoption{ExcludeDBBranch: o.excludeBranch, Schedulers: settings.SchedulerNames, IPv4Only: unread == nil && settings.IPv4Only()}
	switch {
	case o.all:
		in.Adoption.Selector = labels.Everything()
	case o.selector != "":
		if in.Adoption.Selector, err = labels.Parse(o.selector); err != nil {
			return r, fmt.Errorf("--selector: %w", err)
		}
	case unread != nil:
		return r, fmt.Errorf("adoption.podSelector of the configuration is unknown; select the pods with --selector or --all: %w", unread)
	default:
		if in.Adoption.Selector, err = settings.Adopted(); err != nil {
			return r, fmt.Errorf("adoption.podSelector of the configuration: %w", err)
		}
	}
	if len(o.kinds) > 0 {
		if in.Kinds, err = parseKinds(o.kinds); err != nil {
			return r, err
		}
	}
	if in.Pools, in.FixedIPs, err = c.pools(ctx); err != nil {
		return r, err
	}
	var pods corev1.PodList
	if err := c.api.List(ctx, &pods, client.InNamespace("")); err != nil {
		return r, listError("pods", err)
	}
	in.AllPods = pods.Items
	for i := range pods.Items {
		if o.allPods || pods.Items[i].Namespace == c.namespace {
			in.Pods = append(in.Pods, pods.Items[i])
		}
	}
	r = adoptionReport{Pods: append([]conformance.AdoptedPod{}, conformance.PreviewAdoption(in)...), Totals: map[conformance.AdoptionOutcome]int{}, MismatchPolicy: settings.MismatchPolicy}
	if unread != nil {
		r.MismatchPolicy = identity.Report
	}
	for _, p := range r.Pods {
		r.Totals[p.Outcome]++
	}
	return r, nil
}

// outcomes are the outcomes in the order in which their totals are shown, with their texts.
var outcomes = []struct {
	outcome conformance.AdoptionOutcome
	text    string
}{
	{conformance.Adopted, "pods that keep their current addresses as fixed addresses"},
	{conformance.AlreadyFixed, "pods that already have fixed addresses"},
	{conformance.AdoptedLater, "selected pods that are adopted when they run with an address"},
	{conformance.AdoptionBlocked, "selected pods that cannot be adopted"},
	{conformance.NotSelected, "pods that the adoption does not concern"},
}

func writeAdoption(out io.Writer, r adoptionReport) error {
	rows := [][]string{{"NAMESPACE", "POD", "NODE", "ADDRESSES", "OUTCOME", "REASON"}}
	for _, p := range r.Pods {
		namespace, name, _ := pool.SplitOwnerKey(p.Pod)
		rows = append(rows, []string{namespace, name, orDash(p.Node), orDash(strings.Join(p.IPs, ",")), string(p.Outcome), orDash(p.Reason)})
	}
	if len(r.Pods) > 0 {
		if err := table(out, rows); err != nil {
			return err
		}
		fmt.Fprintln(out)
	}
	fmt.Fprintf(out, "Pods: %d; restarts: %d\n", len(r.Pods), r.Restarts)
	for _, o := range outcomes {
		if n := r.Totals[o.outcome]; n > 0 {
			fmt.Fprintf(out, "  %s: %d\n", o.text, n)
		}
	}
	if r.Totals[conformance.Adopted]+r.Totals[conformance.AdoptedLater] == 0 {
		return nil
	}
	fmt.Fprintln(out, "\nThe scheduler of an adopted pod does not know the node of the address. Set schedulerName of the pod templates to a profile of\nfixedip-scheduler, so that the pods return to their nodes when they start again.")
	if r.MismatchPolicy == identity.Restart {
		fmt.Fprintln(out, "mismatchPolicy of the configuration is Restart: an adopted pod that starts elsewhere with another address is restarted.")
	}
	return nil
}
