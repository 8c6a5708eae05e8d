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

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/explain"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/store/fixedips"
	"fixedip.io/fixedip/ipam/store/workloads"
)

// leases are the names of the Leases of the programs, "namespace/name".
type leases struct{ controllers, schedulers string }

func explainCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var output string
	var names leases
	var source configurationSource
	var schedulers, kinds []string
	cmd := &cobra.Command{
		Use:   "explain POD",
		Short: "Explain where the address of a pod is, why the pod waits or its address is reserved, and what helps",
		Long: `Explain where the address of a pod is, why the pod waits or its address is reserved, and what helps.

The rights to read a namespace suffice: the report names the objects that could not be read. Exit code 0: nothing is wrong.
1: the pod waits, or something is wrong. 2: the command failed.`,
		Args:              exactlyOne("name exactly one pod; the pod may already be deleted"),
		ValidArgsFunction: completeOne(flags, podNames),
		RunE: connected(flags, func(ctx context.Context, c *cluster, args []string) error {
			if err := validFormat(output); err != nil {
				return err
			}
			in, err := c.inputs(ctx, args[0], names, source)
			if err != nil {
				return err
			}
			if len(schedulers) > 0 {
				in.Schedulers = schedulers
			}
			if len(kinds) > 0 {
				if in.Kinds, err = parseKinds(kinds); err != nil {
					return err
				}
			}
			report := listed(explain.Explain(in))
			if err := write(streams.Out, output, report, func(out io.Writer) error { return writeReport(out, report) }); err != nil {
				return err
			}
			return problemsOf(report)
		}),
	}
	cmd.Flags().StringVar(&names.controllers, "controller-lease", "fixedip-system/cilium-ipam-leader", "Lease of the controllers, as namespace/name: --leader-election-namespace and --leader-election-id of the controller")
	cmd.Flags().StringVar(&names.schedulers, "scheduler-lease", "fixedip-system/fixedip-scheduler", "Lease of the schedulers, as namespace/name: leaderElection of the scheduler")
	cmd.Flags().StringSliceVar(&schedulers, "scheduler-names", nil, "Names of the profiles of fixedip-scheduler; if empty, schedulerNames of the configuration, or fixedip-scheduler if the configuration cannot be read")
	cmd.Flags().StringSliceVar(&kinds, "workloads", nil, "Kinds of workloads whose pods may have fixed addresses, in addition to StatefulSets, such as Deployment.apps=Slot; if empty, workloads of the configuration")
	source.addFlags(cmd)
	outputFlag(cmd, &output)
	return cmd
}

// listed returns the report with an empty list instead of nil as Findings, which JSON would show as null.
func listed(r explain.Report) explain.Report {
	if r.Findings == nil {
		r.Findings = []explain.Finding{}
	}
	return r
}

// problemsOf returns errProblems if a report contains a problem.
func problemsOf(r explain.Report) error {
	if r.HasProblem() {
		return errProblems
	}
	return nil
}

// parseKinds returns the kinds of the flag --workloads. An error names the flag.
func parseKinds(texts []string) (identity.Kinds, error) {
	var list []identity.Kind
	for _, text := range texts {
		kind, err := identity.ParseKind(text)
		if err != nil {
			return identity.Kinds{}, fmt.Errorf("--workloads: %w", err)
		}
		list = append(list, kind)
	}
	if errs := identity.ValidateKinds(field.NewPath("--workloads"), list); len(errs) > 0 {
		return identity.Kinds{}, errs.ToAggregate()
	}
	return identity.NewKinds(list...), nil
}

// inputs reads all objects that concern one pod. It leaves out objects that do not exist or that the user may not read. The
// result names those that the user may not read, the ConfigMap of the configuration if it does not exist, and
// CiliumEndpoint if the API server does not serve that kind. inputs needs only the right to read pods of the namespace.
func (c *cluster) inputs(ctx context.Context, name string, names leases, source configurationSource) (explain.Inputs, error) {
	in := explain.Inputs{Namespace: c.namespace, Name: name, Now: time.Now()}
	var left omissions
	source = c.locate(ctx, source)
	settings, unread := c.configuration(ctx, source)
	if unread == nil {
		in.Kinds = identity.NewKinds(settings.Workloads...)
	} else if err := left.allowMissing("ConfigMap "+string(source), unread); err != nil {
		return in, err
	}
	in.Schedulers = settings.SchedulerNames
	var err error
	if in.Pod, err = get(ctx, c, c.namespace, name, &corev1.Pod{}); err != nil {
		return in, err
	}
	records, err := c.state(ctx, &in, &left)
	if err != nil {
		return in, err
	}
	// The FixedIP of a slot does not have the name of the pod.
	ofPod := func(r v1alpha1.FixedIP) bool { return r.Namespace == c.namespace && r.Spec.PodName == name }
	if i := slices.IndexFunc(records, ofPod); i >= 0 {
		in.Record = &records[i]
		in.Workload, in.Unread = c.workload(ctx, in.Record.Spec.Owner)
	}
	if in.Pod != nil {
		if err := c.ofPod(ctx, &in, &left); err != nil {
			return in, err
		}
	}
	if in.Events, err = c.eventsOf(ctx, in, &left); err != nil {
		return in, err
	}
	endpoint, err := get(ctx, c, c.namespace, name, &ciliumv2.CiliumEndpoint{})
	if err := left.allowMissing("CiliumEndpoint", err); err != nil {
		return in, err
	}
	if endpoint != nil {
		in.Endpoint = &endpoint.ObjectMeta
	}
	for _, l := range []struct {
		name string
		to   **coordinationv1.Lease
	}{{names.controllers, &in.Lease}, {names.schedulers, &in.SchedulerLease}} {
		namespace, name, _ := strings.Cut(l.name, "/")
		lease, err := get(ctx, c, namespace, name, &coordinationv1.Lease{})
		if err := left.allowMissing("Lease "+l.name, err); err != nil {
			return in, err
		}
		*l.to = lease
	}
	in.NotRead = left
	return in, nil
}

// state reads the pools and the Nodes into in, and returns the FixedIPs.
func (c *cluster) state(ctx context.Context, in *explain.Inputs, left *omissions) ([]v1alpha1.FixedIP, error) {
	pools, err := c.nodePools(ctx)
	if err := left.allow("CiliumNodes", err); err != nil {
		return nil, err
	}
	nodes, err := c.nodes(ctx)
	if err := left.allow("nodes", err); err != nil {
		return nil, err
	}
	in.Pools, in.Nodes = pools, nodes
	var records v1alpha1.FixedIPList
	if err := c.list(ctx, left, "FixedIPs", &records); err != nil {
		return nil, err
	}
	for i := range records.Items {
		if in.Pools != nil {
			in.Pools.SetReservation(fixedips.ReservationOf(&records.Items[i]))
		}
	}
	return records.Items, nil
}

// ofPod reads the volumes of a pod that exists, the PodDisruptionBudgets of its namespace and, if a ReplicaSet controls the
// pod, the controller of that ReplicaSet.
func (c *cluster) ofPod(ctx context.Context, in *explain.Inputs, left *omissions) error {
	var err error
	if in.Volumes, err = c.volumes(ctx, in.Pod, left); err != nil {
		return err
	}
	var budgets policyv1.PodDisruptionBudgetList
	if err := c.listHere(ctx, left, "PodDisruptionBudgets", &budgets); err != nil {
		return err
	}
	in.Budgets, in.Controllers = budgets.Items, identity.NoControllers
	controller := metav1.GetControllerOfNoCopy(in.Pod)
	if controller == nil || identity.OwnerFrom(controller).GroupKind() != identity.ReplicaSets {
		return nil
	}
	in.Controllers, err = c.controllers(ctx, in.Pod.Namespace, controller.Name, left)
	return err
}

// controllers returns a function that returns the controller of one ReplicaSet; nil if the ReplicaSet does not exist or
// the user may not read it.
func (c *cluster) controllers(ctx context.Context, namespace, name string, left *omissions) (identity.Controllers, error) {
	replicaSet := &metav1.PartialObjectMetadata{}
	replicaSet.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))
	replicaSet, err := get(ctx, c, namespace, name, replicaSet)
	if err := left.allowMissing("ReplicaSet "+name, err); err != nil {
		return nil, err
	}
	if replicaSet == nil {
		return nil, nil
	}
	by := metav1.GetControllerOf(replicaSet)
	return func(_ string, of metav1.OwnerReference) (*metav1.OwnerReference, bool) {
		return by, of.UID == replicaSet.UID
	}, nil
}

// eventsOf reads the events of the pod, of its FixedIP and of the workload that the FixedIP names. Without a FixedIP, it reads
// the events of the pod and of the StatefulSet that the name of the pod suggests. It selects events only by the names of
// these objects, so the result may contain events of other objects with the same names. If the user may not list events,
// eventsOf adds them to left.
func (c *cluster) eventsOf(ctx context.Context, in explain.Inputs, left *omissions) ([]corev1.Event, error) {
	names := []string{in.Name}
	if in.Record != nil {
		names = append(names, in.Record.Name, in.Record.Spec.Owner.Name)
	} else if workload, ok := identity.StatefulSetOf(in.Name); ok {
		names = append(names, workload)
	}
	slices.Sort(names)
	var found []corev1.Event
	for _, name := range slices.Compact(names) {
		var events corev1.EventList
		before := len(*left)
		if err := c.listHere(ctx, left, "events", &events, client.MatchingFields{"involvedObject.name": name}); err != nil {
			return nil, err
		}
		if len(*left) > before {
			break
		}
		found = append(found, events.Items...)
	}
	return found, nil
}

// volumes returns the persistent volumes of a pod. It leaves out volumes that are not bound yet or that the user may not read.
func (c *cluster) volumes(ctx context.Context, pod *corev1.Pod, left *omissions) (found []explain.Volume, err error) {
	for _, claim := range podutil.Claims(pod) {
		pvc, err := get(ctx, c, pod.Namespace, claim, &corev1.PersistentVolumeClaim{})
		if err := left.allow("PersistentVolumeClaim "+claim, err); err != nil {
			return nil, err
		}
		if pvc == nil || pvc.Spec.VolumeName == "" {
			continue
		}
		pv, err := get(ctx, c, "", pvc.Spec.VolumeName, &corev1.PersistentVolume{})
		if err := left.allow("PersistentVolume "+pvc.Spec.VolumeName, err); err != nil {
			return nil, err
		}
		if pv != nil {
			found = append(found, explain.Volume{Claim: claim, Volume: pv})
		}
	}
	return found, nil
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

// writeReport writes the facts of a report as a table, then its history and its findings.
func writeReport(out io.Writer, r explain.Report) error {
	var rows [][]string
	for _, f := range r.Facts {
		rows = append(rows, []string{f.What + ":", f.Is})
	}
	if err := table(out, rows); err != nil {
		return err
	}
	if len(r.Facts) > 0 && len(r.Findings)+len(r.History) > 0 {
		fmt.Fprintln(out)
	}
	if len(r.History) > 0 {
		if err := writeHistory(out, r.History); err != nil {
			return err
		}
		if len(r.Findings) > 0 {
			fmt.Fprintln(out)
		}
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

// writeHistory writes events as a table, oldest first.
func writeHistory(out io.Writer, history []explain.HistoryEvent) error {
	rows := [][]string{{"TIME", "OBJECT", "EVENT", "MESSAGE"}}
	for _, h := range history {
		rows = append(rows, []string{h.At.UTC().Format(time.RFC3339), h.Object, h.Reason, h.Message})
	}
	return table(out, rows)
}
