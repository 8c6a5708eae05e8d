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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/explain"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/store/fixedips"
)

// subnetPrefix is the beginning of an argument of move that names a subnet.
const subnetPrefix = "subnet/"

func moveCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var o changes
	var to string
	var source configurationSource
	cmd := &cobra.Command{
		Use:   "move (FIXEDIP | subnet/CIDR) --to NODE",
		Short: "Prepare the move of addresses to another node, or name the successor of a subnet's node",
		Long: `move FIXEDIP checks that the addresses and their pod can move to a node, sets the failover policy of the workload, or of the
FixedIP if there is no workload, to Migrate, and prints the remaining steps. It moves nothing itself: the scheduler moves the
addresses of a pod when it places the pod and their node cannot take the pod, and the scheduler chooses the node.

move subnet/CIDR names the node that gets a subnet, with all fixed addresses in it, when the node of the subnet is deleted.

Exit code 0: done. 1: the addresses or the subnet cannot move to the node. 2: the command failed, or the user declined.`,
		Args: exactlyOne("name exactly one FixedIP, or subnet/CIDR"),
		RunE: connected(flags, func(ctx context.Context, c *cluster, args []string) error {
			if err := validFormat(o.output); err != nil {
				return err
			}
			if to == "" {
				return errors.New("--to is missing: name the node")
			}
			if subnet, ok := strings.CutPrefix(args[0], subnetPrefix); ok {
				return c.moveSubnet(ctx, streams, subnet, to, o)
			}
			return c.move(ctx, streams, args[0], to, source, o)
		}),
	}
	cmd.Flags().StringVar(&to, "to", "", "Node that the addresses or the subnet should go to")
	completeFlag(cmd, "to", completeObjects(flags, nodeNames))
	source.addFlags(cmd)
	o.addFlags(cmd)
	return cmd
}

// move checks whether the addresses can move and, unless --dry-run is set, sets the failover policy to Migrate if another
// policy applies. It prints the remaining steps.
func (c *cluster) move(ctx context.Context, streams genericiooptions.IOStreams, name, to string, source configurationSource, o changes) error {
	in, workload, err := c.moveInputs(ctx, name, to, source)
	if err != nil {
		return err
	}
	plan := explain.Move(in)
	plan.Report = listed(plan.Report)
	if plan.HasProblem() {
		if err := write(streams.Out, o.output, plan, func(out io.Writer) error { return writeReport(out, plan.Report) }); err != nil {
			return err
		}
		return errProblems
	}
	if plan.SetsPolicy && !o.dryRun {
		of := "FixedIP " + c.namespace + "/" + name
		if workload != nil {
			of = fmt.Sprintf("%s %s/%s", in.Record.Spec.Owner.Kind, c.namespace, in.Record.Spec.Owner.Name)
		}
		if err := o.confirm(streams, fmt.Sprintf("Set the failover policy of %s to Migrate?", of)); err != nil {
			return err
		}
		if err := c.setMigrate(ctx, in.Record, workload); err != nil {
			return err
		}
		fmt.Fprintf(streams.ErrOut, "The failover policy of %s is Migrate now.\n", of)
	}
	return write(streams.Out, o.output, plan, func(out io.Writer) error { return writeMove(out, plan) })
}

func writeMove(out io.Writer, plan explain.MovePlan) error {
	if err := writeReport(out, plan.Report); err != nil || len(plan.Steps) == 0 {
		return err
	}
	fmt.Fprintln(out, "Next steps:")
	for _, step := range plan.Steps {
		fmt.Fprintf(out, "  %s\n", step)
	}
	return nil
}

// moveInputs reads the objects on which a move depends. workload is the workload of the FixedIP; nil if the FixedIP belongs to
// a bare pod or the workload does not exist.
func (c *cluster) moveInputs(ctx context.Context, name, to string, source configurationSource) (in explain.MoveInputs, workload *unstructured.Unstructured, err error) {
	in = explain.MoveInputs{To: to}
	in.Record, err = get(ctx, c, c.namespace, name, &v1alpha1.FixedIP{})
	switch {
	case err != nil:
		return in, nil, err
	case in.Record == nil:
		return in, nil, fmt.Errorf("FixedIP %s/%s does not exist; kubectl fixedip get lists FixedIPs", c.namespace, name)
	}
	if owner := identity.OwnerOf(in.Record); !owner.IsPod() {
		of := &unstructured.Unstructured{}
		of.SetAPIVersion(owner.APIVersion)
		of.SetKind(owner.Kind)
		if workload, err = get(ctx, c, in.Record.Namespace, owner.Name, of); err != nil {
			return in, nil, err
		}
	}
	in.NoWorkload = workload == nil
	settings, unread := c.configuration(ctx, source)
	in.Failover = settings.Failover
	if unread == nil {
		in.MigrationAllowed = settings.AllowAddressMigration
	}
	if in.Pools, err = c.nodePools(ctx); err != nil {
		return in, nil, err
	}
	in.Pools.SetReservation(fixedips.ReservationOf(in.Record))
	if in.Nodes, err = c.nodes(ctx); err != nil {
		return in, nil, err
	}
	if in.Pod, err = get(ctx, c, c.namespace, in.Record.Spec.PodName, &corev1.Pod{}); err != nil || in.Pod == nil {
		return in, workload, err
	}
	var left omissions
	in.Volumes, err = c.volumes(ctx, in.Pod, &left)
	in.NotRead = left
	return in, workload, err
}

// setMigrate sets the failover policy of a FixedIP to Migrate: in the annotation of its workload, from which the controller
// copies it, or in the FixedIP if workload is nil.
func (c *cluster) setMigrate(ctx context.Context, record *v1alpha1.FixedIP, workload *unstructured.Unstructured) error {
	if workload == nil {
		after := record.DeepCopy()
		after.Spec.Failover = v1alpha1.Migrate
		if err := c.api.Patch(ctx, after, client.MergeFromWithOptions(record, client.MergeFromWithOptimisticLock{})); err != nil {
			return fmt.Errorf("set spec.failover of FixedIP %s/%s: %w", record.Namespace, record.Name, err)
		}
		return nil
	}
	before := workload.DeepCopy()
	annotations := workload.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[identity.AnnotationFailover] = string(v1alpha1.Migrate)
	workload.SetAnnotations(annotations)
	if err := c.api.Patch(ctx, workload, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("set the annotation %s of %s %s/%s: %w", identity.AnnotationFailover, workload.GetKind(), workload.GetNamespace(), workload.GetName(), err)
	}
	return nil
}

// moveSubnet checks whether a node can get a subnet and, unless --dry-run is set or the node has the subnet already, names
// the node as the successor of the node of the subnet. subnet is the CIDR or the name of the NodeSubnet.
func (c *cluster) moveSubnet(ctx context.Context, streams genericiooptions.IOStreams, subnet, to string, o changes) error {
	name := subnet
	if cidr, err := address.ParseSubnet(subnet); err == nil {
		name = address.SubnetName(cidr)
	}
	ns, err := get(ctx, c, "", name, &v1alpha1.NodeSubnet{})
	switch {
	case err != nil:
		return err
	case ns == nil:
		return fmt.Errorf("NodeSubnet %s does not exist; kubectl get nodesubnets lists the subnets", name)
	}
	nodes, err := c.nodes(ctx)
	if err != nil {
		return err
	}
	report := listed(explain.MoveSubnet(explain.SubnetMoveInputs{Subnet: ns, To: to, Nodes: nodes}))
	text := func(out io.Writer) error { return writeReport(out, report) }
	if report.HasProblem() {
		if err := write(streams.Out, o.output, report, text); err != nil {
			return err
		}
		return errProblems
	}
	if ns.Spec.NodeName != to && !o.dryRun {
		if err := text(streams.ErrOut); err != nil {
			return err
		}
		if err := o.confirm(streams, fmt.Sprintf("Name node %s as the successor for %s?", to, ns.Spec.CIDR)); err != nil {
			return err
		}
		after := ns.DeepCopy()
		after.Spec.Successor = to
		if err := c.api.Patch(ctx, after, client.MergeFromWithOptions(ns, client.MergeFromWithOptimisticLock{})); err != nil {
			return fmt.Errorf("set spec.successor of NodeSubnet %s: %w", name, err)
		}
		text = func(out io.Writer) error {
			_, err := fmt.Fprintf(out, "NodeSubnet %s: the successor is node %s\n", name, to)
			return err
		}
	}
	return write(streams.Out, o.output, report, text)
}
