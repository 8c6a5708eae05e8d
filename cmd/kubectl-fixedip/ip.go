// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/explain"
)

func ipCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use:   "ip ADDRESS",
		Short: "Show the pool entries, FixedIPs and pods that have an address, and since when",
		Args:  exactlyOne("name exactly one address"),
		RunE: connected(flags, func(ctx context.Context, c *cluster, args []string) error {
			a, err := address.Parse(args[0])
			if err != nil {
				return err
			}
			in, err := c.addressInputs(ctx, a)
			if err != nil {
				return err
			}
			return writeReport(streams.Out, explain.Address(in))
		}),
	}
}

func (c *cluster) addressInputs(ctx context.Context, a netip.Addr) (in explain.AddressInputs, err error) {
	l, records, err := c.pools(ctx)
	if err != nil {
		return in, err
	}
	var pods corev1.PodList
	// The field selector status.podIP compares only the first IP of a pod, which may be of either family.
	if err := c.api.List(ctx, &pods); err != nil {
		return in, fmt.Errorf("list pods: %w", err)
	}
	return explain.AddressInputs{Addr: a, Pools: l.Nodes(), Records: records, Pods: pods.Items, Now: time.Now()}, nil
}
