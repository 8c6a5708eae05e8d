// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/explain"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/store/workloads"
)

func explainCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var controllers string
	schedulers := []string{"fixedip-scheduler"}
	cmd := &cobra.Command{
		Use:   "explain POD",
		Short: "Explain where the address of a pod is, why the pod waits or its address is reserved, and what helps",
		Args:  exactlyOne("name exactly one pod; the pod may already be deleted"),
		RunE: connected(flags, func(ctx context.Context, c *cluster, args []string) error {
			inputs, err := c.inputs(ctx, args[0], controllers)
			if err != nil {
				return err
			}
			if inputs.Schedulers = schedulers; len(schedulers) == 0 {
				return errors.New("--scheduler-names is empty; name the profiles of fixedip-scheduler")
			}
			return writeReport(streams.Out, explain.Explain(inputs))
		}),
	}
	cmd.Flags().StringVar(&controllers, "controller-lease", "fixedip-system/cilium-ipam-leader", "Lease of the controllers, as namespace/name: --leader-election-namespace and --leader-election-id of the controller")
	cmd.Flags().StringSliceVar(&schedulers, "scheduler-names", schedulers, "Names of the profiles of fixedip-scheduler; has to equal schedulerNames of the configuration")
	return cmd
}

// inputs reads all objects that concern one pod. It leaves out optional objects that cannot be read, for example because of
// missing rights. controllers is the Lease of the controllers, "namespace/name".
func (c *cluster) inputs(ctx context.Context, name, controllers string) (explain.Inputs, error) {
	in := explain.Inputs{Namespace: c.namespace, Name: name, Now: time.Now()}
	var records []v1alpha1.FixedIP
	var err error
	if in.Pools, records, err = c.pools(ctx); err != nil {
		return in, err
	}
	if in.Nodes, err = c.nodes(ctx); err != nil {
		return in, err
	}
	if in.Pod, err = get(ctx, c, c.namespace, name, &corev1.Pod{}); err != nil {
		return in, err
	}
	if in.Pod != nil {
		in.Volumes = c.volumes(ctx, in.Pod)
	}
	// The FixedIP of a slot does not have the name of the pod.
	ofPod := func(r v1alpha1.FixedIP) bool { return r.Namespace == c.namespace && r.Spec.PodName == name }
	if i := slices.IndexFunc(records, ofPod); i >= 0 {
		in.Record = &records[i]
		in.Workload, in.Unread = c.workload(ctx, in.Record.Spec.Owner)
	}
	if endpoint, _ := get(ctx, c, c.namespace, name, &ciliumv2.CiliumEndpoint{}); endpoint != nil {
		in.Endpoint = &endpoint.ObjectMeta
	}
	namespace, name, _ := strings.Cut(controllers, "/")
	in.Lease, _ = get(ctx, c, namespace, name, &coordinationv1.Lease{})
	return in, nil
}

// volumes returns the persistent volumes of a pod. It leaves out volumes that are not bound yet or cannot be read.
func (c *cluster) volumes(ctx context.Context, pod *corev1.Pod) (found []explain.Volume) {
	for _, claim := range podutil.Claims(pod) {
		pvc, _ := get(ctx, c, pod.Namespace, claim, &corev1.PersistentVolumeClaim{})
		if pvc == nil || pvc.Spec.VolumeName == "" {
			continue
		}
		if pv, _ := get(ctx, c, "", pvc.Spec.VolumeName, &corev1.PersistentVolume{}); pv != nil {
			found = append(found, explain.Volume{Claim: claim, Volume: pv})
		}
	}
	return found
}

// workload reads a workload of any kind; w is nil if it does not exist. If it cannot be read, for example because of missing
// rights, w is nil and unread is the reason.
func (c *cluster) workload(ctx context.Context, of v1alpha1.OwnerReference) (w *identity.Workload, unread string) {
	obj := &unstructured.Unstructured{}
	obj.SetAPIVersion(of.APIVersion)
	obj.SetKind(of.Kind)
	switch obj, err := get(ctx, c, c.namespace, of.Name, obj); {
	case err != nil:
		return nil, err.Error()
	case obj == nil:
		return nil, ""
	default:
		return workloads.Decode(obj), ""
	}
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
