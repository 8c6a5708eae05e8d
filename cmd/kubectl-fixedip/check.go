// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/check"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// errProblems means that check has found problems. The exit code is then 1; it is 2 after any other error.
var errProblems = errors.New("problems found")

func checkCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var fix bool
	var output string
	again := 5 * time.Second
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Look for contradictions between pools, FixedIPs, NodeSubnets, pods and CiliumEndpoints",
		Long: `Look for contradictions between pools, FixedIPs, NodeSubnets, pods and CiliumEndpoints of all namespaces.

The objects are read twice, because a change between two requests looks like a contradiction. Exit code 0: no problem.
1: problems were found. 2: the objects could not be read, or a repair failed.`,
		Args: cobra.NoArgs,
		RunE: connected(flags, func(ctx context.Context, c *cluster, _ []string) error {
			if err := validFormat(output); err != nil {
				return err
			}
			problems, err := c.check(ctx, again)
			if err != nil {
				return err
			}
			if fix {
				if problems, err = c.repair(ctx, streams.ErrOut, problems); err != nil {
					return err
				}
			}
			if err := write(streams.Out, output, problems, func(out io.Writer) error { return writeProblems(out, problems) }); err != nil {
				return err
			}
			if len(problems) > 0 {
				return errProblems
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&fix, "fix", false, "Repair what can be repaired without a decision: evict pods with a wrong address, delete wrong CiliumEndpoints, release leaked entries")
	cmd.Flags().DurationVar(&again, "recheck-after", again, "Time between the two readings")
	outputFlag(cmd, &output)
	return cmd
}

// check returns the problems that two readings of the cluster show.
func (c *cluster) check(ctx context.Context, again time.Duration) ([]check.Problem, error) {
	var readings [2][]check.Problem
	for i := range readings {
		if i > 0 {
			if len(readings[0]) == 0 {
				return nil, nil
			}
			select {
			case <-time.After(again):
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		objects, err := c.objects(ctx)
		if err != nil {
			return nil, err
		}
		readings[i] = check.Run(objects)
	}
	return check.Lasting(readings[0], readings[1]), nil
}

// objects reads what a check compares. Pods are read first: a pod gets an address only after its entry and its FixedIP exist.
func (c *cluster) objects(ctx context.Context) (o check.Objects, err error) {
	var pods corev1.PodList
	if err := c.api.List(ctx, &pods); err != nil {
		return o, fmt.Errorf("list pods: %w", err)
	}
	var endpoints ciliumv2.CiliumEndpointList
	if err := c.api.List(ctx, &endpoints); err != nil && !meta.IsNoMatchError(err) {
		return o, fmt.Errorf("list CiliumEndpoints: %w", err)
	}
	if o.Pools, o.FixedIPs, err = c.pools(ctx); err != nil {
		return o, err
	}
	nodes, err := c.nodes(ctx)
	if err != nil {
		return o, err
	}
	var subnets v1alpha1.NodeSubnetList
	if err := c.api.List(ctx, &subnets); err != nil {
		return o, fmt.Errorf("list NodeSubnets: %w", err)
	}
	o.Pods, o.NodeSubnets, o.Nodes, o.Now = pods.Items, subnets.Items, map[string]bool{}, time.Now()
	for name := range nodes {
		o.Nodes[name] = true
	}
	for i := range endpoints.Items {
		e := check.Endpoint{Pod: pool.OwnerKey(endpoints.Items[i].Namespace, endpoints.Items[i].Name)}
		if n := endpoints.Items[i].Status.Networking; n != nil {
			for _, pair := range n.Addressing {
				for _, ip := range []string{pair.IPV4, pair.IPV6} {
					if a, err := address.Parse(ip); err == nil {
						e.Addrs = append(e.Addrs, a)
					}
				}
			}
		}
		o.Endpoints = append(o.Endpoints, e)
	}
	return o, nil
}

// repair performs the repairs of the problems, and returns the problems that have none. It says on log what it has done.
func (c *cluster) repair(ctx context.Context, log io.Writer, problems []check.Problem) (remaining []check.Problem, err error) {
	for _, p := range problems {
		if p.Repair == nil {
			remaining = append(remaining, p)
			continue
		}
		done, err := c.perform(ctx, *p.Repair)
		if err != nil {
			return nil, fmt.Errorf("repair %s of %s: %w", p.Kind, p.Object, err)
		}
		fmt.Fprintf(log, "%s of %s: %s.\n", p.Kind, p.Object, done)
	}
	return remaining, nil
}

// perform performs one repair, and returns what it has done.
func (c *cluster) perform(ctx context.Context, r check.Repair) (done string, err error) {
	namespace, name, _ := pool.SplitOwnerKey(r.Pod)
	switch {
	case r.Evict:
		pod, err := get(ctx, c, namespace, name, &corev1.Pod{})
		if err != nil || pod == nil {
			return "the pod is gone", err
		}
		eviction := &policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}}
		if err := c.api.SubResource("eviction").Create(ctx, pod, eviction); err != nil {
			return "", fmt.Errorf("evict pod %s: %w", r.Pod, err)
		}
		return "evicted pod " + r.Pod, nil
	case r.DeleteEndpoint:
		endpoint, err := get(ctx, c, namespace, name, &ciliumv2.CiliumEndpoint{})
		if err != nil || endpoint == nil {
			return "the CiliumEndpoint is gone", err
		}
		if err := c.api.Delete(ctx, endpoint, client.Preconditions{UID: &endpoint.UID, ResourceVersion: &endpoint.ResourceVersion}); err != nil {
			return "", fmt.Errorf("delete CiliumEndpoint %s: %w", r.Pod, err)
		}
		return "deleted CiliumEndpoint " + r.Pod, nil
	}
	return c.release(ctx, r.ReleaseOn, r.Pod)
}

// release releases the entries of a pod that does not exist in the pool of a node. The cooldown of the addresses then begins,
// and the controller ends it.
func (c *cluster) release(ctx context.Context, node, owner string) (done string, err error) {
	pools := ciliumpool.New(c.api)
	n, err := pools.Get(ctx, node)
	if err != nil {
		return "", fmt.Errorf("read the pool of node %s: %w", node, err)
	}
	changes := n.Release(owner, nil, time.Now())
	// A pod that got the address in the meantime is reported by its agent: the patch then fails.
	for i := range changes {
		changes[i].RequireUnused = true
	}
	if len(changes) == 0 {
		return "the entries are gone", nil
	}
	if _, err := pools.ChangeEntries(ctx, n, changes, true); err != nil {
		return "", fmt.Errorf("release the entries of %s in the pool of node %s: %w", owner, node, err)
	}
	released := make([]netip.Addr, len(changes))
	for i, change := range changes {
		released[i] = change.Addr
	}
	slices.SortFunc(released, netip.Addr.Compare)
	return fmt.Sprintf("released %s on node %s", address.Join(released), node), nil
}

// writeProblems writes each problem with what helps.
func writeProblems(out io.Writer, problems []check.Problem) error {
	if len(problems) == 0 {
		_, err := fmt.Fprintln(out, "No problems found.")
		return err
	}
	for _, p := range problems {
		fmt.Fprintf(out, "! %s: %s. %s.\n  what helps: %s\n", p.Object, p.Kind, p.Text, p.Help)
	}
	_, err := fmt.Fprintf(out, "\n%d problems found.\n", len(problems))
	return err
}
