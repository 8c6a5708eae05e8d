// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/check"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
)

// errProblems means that a command has found problems. The exit code is then 1; it is 2 after any other error.
var errProblems = errors.New("problems found")

func checkCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var fix, dryRun bool
	var output, mismatchPolicy string
	var source configurationSource
	times := checkTimes{again: 5 * time.Second, stuck: check.DefaultStuckAfter}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Look for contradictions between pools, FixedIPs, NodeSubnets, pods and CiliumEndpoints",
		Long: `Look for contradictions between pools, FixedIPs, NodeSubnets, pods and CiliumEndpoints of all namespaces.

If problems are found, the objects are read a second time, because a change between two requests looks like a
contradiction. Only problems that both readings show are reported. Exit code 0: no problem. 1: problems were found.
2: the objects could not be read, or a repair failed. After --fix, only the remaining problems count; after
--fix --dry-run, all.`,
		Args: cobra.NoArgs,
		RunE: connected(flags, func(ctx context.Context, c *cluster, _ []string) error {
			if err := validFormat(output); err != nil {
				return err
			}
			if dryRun && !fix {
				return errors.New("--dry-run needs --fix")
			}
			policy, err := c.mismatchPolicy(ctx, mismatchPolicy, source)
			if err != nil {
				return err
			}
			problems, err := c.check(ctx, times)
			if err != nil {
				return err
			}
			var failed error
			switch {
			case fix && dryRun:
				fmt.Fprintln(streams.ErrOut, "Dry run: nothing is changed.")
				_, failed = c.dryRun().repair(ctx, streams.ErrOut, problems, policy)
			case fix:
				problems, failed = c.repair(ctx, streams.ErrOut, problems, policy)
			}
			if err := write(streams.Out, output, listOf(problems), func(out io.Writer) error { return writeProblems(out, problems) }); err != nil {
				return err
			}
			switch {
			case failed != nil:
				return failed
			case len(problems) > 0:
				return errProblems
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&fix, "fix", false, "Repair the problems for which no user has to decide: evict pods with a wrong address whose mismatch policy is Restart, delete wrong CiliumEndpoints and NodeSubnets that are left over, release leaked entries, correct resources of entries, withdraw release handshakes")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "With --fix: show the repairs, and change nothing")
	cmd.Flags().StringVar(&mismatchPolicy, "mismatch-policy", "", "Mismatch policy of a pod if neither its workload nor the pod has the annotation "+identity.AnnotationOnMismatch+": Restart or Report; if empty, mismatchPolicy of the configuration, or Report if the configuration cannot be read")
	cmd.Flags().DurationVar(&times.again, "recheck-after", times.again, "Time between the two readings")
	cmd.Flags().DurationVar(&times.stuck, "stuck-after", times.stuck, "Age after which the deletion of a FixedIP, a cooldown, or an orphaned NodeSubnet that is not needed is reported as a problem; has to be longer than --address-cooldown and --force-finalize-after of the controller")
	source.addFlags(cmd)
	outputFlag(cmd, &output)
	return cmd
}

// dryRun returns a cluster whose writes change nothing. The API server checks their preconditions and the rights of the
// user.
func (c *cluster) dryRun() *cluster {
	return &cluster{api: client.NewDryRunClient(c.api), namespace: c.namespace, dry: true}
}

// checkTimes are the times of a check.
type checkTimes struct {
	// again is the time between the two readings.
	again time.Duration
	// stuck is the value of check.Objects.StuckAfter.
	stuck time.Duration
}

// check returns the problems that two readings of the cluster show. There is no second reading if the first shows no problem.
func (c *cluster) check(ctx context.Context, times checkTimes) ([]check.Problem, error) {
	read := func() ([]check.Problem, error) {
		objects, err := c.objects(ctx)
		if err != nil {
			return nil, err
		}
		objects.StuckAfter = times.stuck
		return check.Run(objects), nil
	}
	problems, err := read()
	if err != nil || len(problems) == 0 {
		return []check.Problem{}, err
	}
	select {
	case <-time.After(times.again):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	again, err := read()
	if err != nil {
		return nil, err
	}
	return append([]check.Problem{}, check.Lasting(problems, again)...), nil
}

// objects reads the objects that check.Run compares. Pods are read first: the pool entry of a pod that the scheduler places
// is written before the pod gets its address, so the pools that are read later have the entry.
func (c *cluster) objects(ctx context.Context) (o check.Objects, err error) {
	var pods corev1.PodList
	if err := c.api.List(ctx, &pods); err != nil {
		return o, fmt.Errorf("list pods: %w", err)
	}
	var endpoints ciliumv2.CiliumEndpointList
	// Cilium may run without CiliumEndpoints.
	if err := c.api.List(ctx, &endpoints); err != nil && !notServed(err) {
		return o, fmt.Errorf("list CiliumEndpoints: %w", err)
	}
	if o.Pools, o.FixedIPs, err = c.pools(ctx); err != nil {
		return o, err
	}
	var subnets v1alpha1.NodeSubnetList
	if err := c.api.List(ctx, &subnets); err != nil {
		return o, fmt.Errorf("list NodeSubnets: %w", err)
	}
	if o.Nodes, err = c.nodes(ctx); err != nil {
		return o, err
	}
	o.Pods, o.NodeSubnets, o.Now = pods.Items, subnets.Items, time.Now()
	for i := range endpoints.Items {
		e := check.Endpoint{
			Pod: pool.OwnerKey(endpoints.Items[i].Namespace, endpoints.Items[i].Name),
			UID: endpoints.Items[i].UID, ResourceVersion: endpoints.Items[i].ResourceVersion,
		}
		e.Addrs = endpointAddrs(&endpoints.Items[i])
		o.Endpoints = append(o.Endpoints, e)
	}
	return o, nil
}

// endpointAddrs returns the addresses of a CiliumEndpoint; none if its agent has not written them yet.
func endpointAddrs(e *ciliumv2.CiliumEndpoint) (addrs []netip.Addr) {
	if e.Status.Networking == nil {
		return nil
	}
	for _, pair := range e.Status.Networking.Addressing {
		if pair == nil {
			continue
		}
		addrs = append(addrs, address.ParseAll([]string{pair.IPV4, pair.IPV6})...)
	}
	return addrs
}

// writeProblems writes each problem with its advice, and the number of problems.
func writeProblems(out io.Writer, problems []check.Problem) error {
	if len(problems) == 0 {
		_, err := fmt.Fprintln(out, "No problems found.")
		return err
	}
	for _, p := range problems {
		fmt.Fprintf(out, "! %s: %s. %s.\n  what helps: %s\n", p.Object, p.Kind, p.Text, p.Help)
	}
	_, err := fmt.Fprintf(out, "\nProblems found: %d\n", len(problems))
	return err
}
