// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/explain"
)

func ipCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "ip ADDRESS",
		Short: "Show the pool entries, FixedIPs and pods that have an address, since when, and its recent events",
		Long: `Show the pool entries, FixedIPs, pods and CiliumEndpoints that have an address, since when, and the events that mention
it. The API server keeps events for an hour by default.

The rights to read a namespace suffice: the report names the objects that could not be read. Exit code 0: nothing is wrong.
1: two pods, FixedIPs or CiliumEndpoints have the address, or it is in the subnets of two nodes. 2: the command failed.`,
		Args: exactlyOne("name exactly one address"),
		RunE: connected(flags, func(ctx context.Context, c *cluster, args []string) error {
			if err := validFormat(output); err != nil {
				return err
			}
			a, err := parseAddress(args[0])
			if err != nil {
				return err
			}
			in, err := c.addressInputs(ctx, a)
			if err != nil {
				return err
			}
			report := listed(explain.Address(in))
			if err := write(streams.Out, output, report, func(out io.Writer) error { return writeReport(out, report) }); err != nil {
				return err
			}
			return problemsOf(report)
		}),
	}
	outputFlag(cmd, &output)
	return cmd
}

// parseAddress parses an address in any notation, such as FD00:0::1.
func parseAddress(text string) (netip.Addr, error) {
	if strings.Contains(text, "/") {
		return netip.Addr{}, fmt.Errorf("%q is a subnet; name one address of it (kubectl fixedip map shows subnets)", text)
	}
	if a, err := netip.ParseAddr(text); err == nil {
		text = a.String()
	}
	return address.Parse(text)
}

// addressInputs reads the objects that may have an address, and all events. Objects that the user may not read are left
// out, and named in the result. If these include all pools, FixedIPs and pods, it returns an error.
func (c *cluster) addressInputs(ctx context.Context, a netip.Addr) (in explain.AddressInputs, err error) {
	in = explain.AddressInputs{Addr: a, Now: time.Now()}
	var left omissions
	pools, err := c.nodePools(ctx)
	if err := left.allow("CiliumNodes", err); err != nil {
		return in, err
	}
	if pools != nil {
		in.Pools = pools.Nodes()
	}
	var records v1alpha1.FixedIPList
	if err := c.list(ctx, &left, "FixedIPs", &records); err != nil {
		return in, err
	}
	var pods corev1.PodList
	// The field selector status.podIP compares only the first IP of a pod, which may be of either family.
	if err := c.list(ctx, &left, "pods", &pods); err != nil {
		return in, err
	}
	if in.Pools == nil && slices.Contains(left, "FixedIPs (forbidden)") && slices.Contains(left, "pods (forbidden)") {
		return in, fmt.Errorf("no object that may have the address can be read: %s", strings.Join(left, ", "))
	}
	var endpoints ciliumv2.CiliumEndpointList
	// Cilium may run without CiliumEndpoints.
	if err := c.list(ctx, &left, "CiliumEndpoints", &endpoints); err != nil && !notServed(err) {
		return in, err
	}
	var events corev1.EventList
	if err := c.list(ctx, &left, "events", &events); err != nil {
		return in, err
	}
	in.Endpoints = map[string][]netip.Addr{}
	for i := range endpoints.Items {
		e := &endpoints.Items[i]
		in.Endpoints[e.Namespace+"/"+e.Name] = endpointAddrs(e)
	}
	in.Records, in.Pods, in.Events, in.NotRead = records.Items, pods.Items, events.Items, left
	return in, nil
}
