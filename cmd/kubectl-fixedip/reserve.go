// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/explain"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/fixedips"
)

// reservation contains the arguments of reserve.
type reservation struct {
	pod   string
	addrs []netip.Addr
	// workload is Kind/name or Kind.group/name; empty: the StatefulSet with the name of the pod without its ordinal.
	workload string
	// barePod is true if the pod has no controller.
	barePod bool
}

func reserveCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var r reservation
	var ips []string
	var o changes
	cmd := &cobra.Command{
		Use:   "reserve POD --ip ADDRESS[,ADDRESS]",
		Short: "Reserve addresses for a pod that does not exist yet",
		Long: `Reserve addresses for a pod that does not exist yet, by creating its FixedIP. By default the pod belongs to the StatefulSet
with the name of the pod without its ordinal, such as web for web-0.

The right to create FixedIPs in the namespace suffices. The command refuses addresses that are taken, as far as the user may
read pools, FixedIPs and pods. Exit code 0: the FixedIP was created or, with --dry-run, could be created. 1: an address is
taken. 2: the command failed.`,
		Args: exactlyOne("name exactly one pod"),
		RunE: connected(flags, func(ctx context.Context, c *cluster, args []string) (err error) {
			if err := validFormat(o.output); err != nil {
				return err
			}
			r.pod = args[0]
			if r.addrs, err = parseAddresses(ips); err != nil {
				return fmt.Errorf("--ip: %w", err)
			}
			return c.reserve(ctx, streams, r, o)
		}),
	}
	cmd.Flags().StringSliceVar(&ips, "ip", nil, "Addresses to reserve, at most one of each family")
	cmd.Flags().StringVar(&r.workload, "workload", "", "Workload of the pod, as Kind/name or Kind.group/name; by default the StatefulSet with the name of the pod without its ordinal")
	cmd.Flags().BoolVar(&r.barePod, "for-pod", false, "The pod has no workload")
	cmd.MarkFlagsMutuallyExclusive("workload", "for-pod")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "Check the addresses and the FixedIP, and change nothing")
	outputFlag(cmd, &o.output)
	return cmd
}

// parseAddresses parses the addresses of --ip in any notation: one or two, of different families.
func parseAddresses(texts []string) (addrs []netip.Addr, err error) {
	for _, text := range texts {
		a, err := parseAddress(strings.TrimSpace(text))
		if err != nil {
			return nil, err
		}
		for _, other := range addrs {
			if address.Of(other) == address.Of(a) {
				return nil, fmt.Errorf("%s and %s are of the same family; a pod has at most one address of each family", other, a)
			}
		}
		addrs = append(addrs, a)
	}
	if len(addrs) == 0 {
		return nil, errors.New("name at least one address")
	}
	return addrs, nil
}

// reserve creates the FixedIP of a reservation. It returns errProblems if an address is taken, and another error if the FixedIP
// exists already.
func (c *cluster) reserve(ctx context.Context, streams genericiooptions.IOStreams, r reservation, o changes) error {
	owner, err := c.ownerFor(r)
	if err != nil {
		return err
	}
	existing, err := get(ctx, c, c.namespace, r.pod, &v1alpha1.FixedIP{})
	var left omissions
	switch err := left.allow("FixedIP "+r.pod, err); {
	case err != nil:
		return err
	case existing != nil:
		return fmt.Errorf("FixedIP %s/%s exists already and reserves %s; release it first (kubectl fixedip release %s)", c.namespace, r.pod, orDash(strings.Join(existing.Spec.IPs, ", ")), r.pod)
	}
	in, err := c.reserveInputs(ctx, r, &left)
	if err != nil {
		return err
	}
	report := explain.Reserve(in)
	if report.HasProblem() {
		if err := writeReport(streams.ErrOut, report); err != nil {
			return err
		}
		return errProblems
	}
	record := &v1alpha1.FixedIP{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "FixedIP"},
		ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: r.pod},
		Spec:       v1alpha1.FixedIPSpec{IPs: address.Strings(r.addrs), PodName: r.pod, Owner: owner},
	}
	if owner.Kind == identity.PodKind {
		record.Spec.Reclaim = identity.NamedReclaim()
	}
	target := c
	if o.dryRun {
		target = c.dryRun()
	}
	if err := target.api.Create(ctx, record); err != nil {
		return fmt.Errorf("create FixedIP %s/%s: %w", c.namespace, r.pod, err)
	}
	return write(streams.Out, o.output, record, func(out io.Writer) error {
		of := fmt.Sprintf(" of %s %s", owner.Kind, owner.Name)
		if r.barePod {
			of = ""
		}
		if o.dryRun {
			fmt.Fprintf(out, "FixedIP %s/%s not created (dry run): it would reserve %s for pod %s%s.\n", c.namespace, r.pod, address.Join(r.addrs), r.pod, of)
			return writeReport(out, report)
		}
		fmt.Fprintf(out, "FixedIP %s/%s created: it reserves %s for pod %s%s.\n", c.namespace, r.pod, address.Join(r.addrs), r.pod, of)
		if err := writeReport(out, report); err != nil {
			return err
		}
		_, err := fmt.Fprintf(out, "What happens next: the controller writes a pool entry for each address, and the pod gets the address when it is placed.\nA pod that already runs keeps its current addresses until it is deleted. To wait for the entries:\n  kubectl -n %s wait --for=condition=Allocated fixedip/%s\n", c.namespace, r.pod)
		return err
	})
}

// reserveInputs reads the pools, the FixedIPs and the pods. It leaves out objects that the user may not read, and adds them to
// left.
func (c *cluster) reserveInputs(ctx context.Context, r reservation, left *omissions) (in explain.ReserveInputs, err error) {
	in = explain.ReserveInputs{Owner: pool.OwnerKey(c.namespace, r.pod), Addrs: r.addrs}
	in.Pools, err = c.nodePools(ctx)
	if err := left.allow("CiliumNodes", err); err != nil {
		return in, err
	}
	var records v1alpha1.FixedIPList
	if err := c.list(ctx, left, "FixedIPs", &records); err != nil {
		return in, err
	}
	in.Reservations = ledger.New()
	if in.Pools != nil {
		in.Reservations = in.Pools
	}
	for i := range records.Items {
		in.Reservations.SetReservation(fixedips.ReservationOf(&records.Items[i]))
	}
	var pods corev1.PodList
	if err := c.list(ctx, left, "pods", &pods); err != nil {
		return in, err
	}
	in.Pods, in.NotRead = pods.Items, *left
	return in, nil
}

// ownerFor returns the owner that the FixedIP of a reservation names. It returns an error if no workload is given and the name
// of the pod has no ordinal, or if the given workload is malformed, has slots, or is of a kind that the API server does not
// serve.
func (c *cluster) ownerFor(r reservation) (v1alpha1.OwnerReference, error) {
	if r.barePod {
		return v1alpha1.OwnerReference{APIVersion: "v1", Kind: identity.PodKind, Name: r.pod}, nil
	}
	if r.workload == "" {
		name, ok := identity.StatefulSetOf(r.pod)
		if !ok {
			return v1alpha1.OwnerReference{}, fmt.Errorf("%q is not the name of a pod of a StatefulSet, such as web-0; add --for-pod if the pod has no workload, or --workload Kind.group/name", r.pod)
		}
		return v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: name}, nil
	}
	label, name, ok := strings.Cut(r.workload, "/")
	if !ok || label == "" || name == "" {
		return v1alpha1.OwnerReference{}, fmt.Errorf("--workload: %q is not Kind/name; write, for example, StatefulSet/web", r.workload)
	}
	for _, gk := range identity.LabelledKinds(label) {
		if identity.HasSlots(gk) {
			return v1alpha1.OwnerReference{}, fmt.Errorf("--workload: the pods of a %s have slots, which have no names before the pods exist; request addresses with the annotation %s on the workload", gk.Kind, identity.AnnotationIPs)
		}
		mapping, err := c.api.RESTMapper().RESTMapping(gk)
		switch {
		case notServed(err):
			continue
		case err != nil:
			return v1alpha1.OwnerReference{}, fmt.Errorf("look up the kind %s: %w", gk, err)
		}
		apiVersion, kind := mapping.GroupVersionKind.ToAPIVersionAndKind()
		return v1alpha1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name}, nil
	}
	return v1alpha1.OwnerReference{}, fmt.Errorf("--workload: the API server does not serve the kind %s", label)
}
