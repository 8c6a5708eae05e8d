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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/explain"
	"fixedip.io/fixedip/ipam/core/identity"
)

// releasePlan describes the release of one FixedIP: its effects and, when it has been performed, its result.
type releasePlan struct {
	FixedIP string   `json:"fixedIP"`
	IPs     []string `json:"ips"`
	// Pod is the pod that the FixedIP names; empty if it does not exist.
	Pod string `json:"pod,omitempty"`
	// Effects are the consequences, as sentences.
	Effects []string `json:"effects"`
	// Released is true if the FixedIP was deleted, and Restarted if its pod was deleted.
	Released  bool `json:"released"`
	Restarted bool `json:"restarted,omitempty"`

	record *v1alpha1.FixedIP
	pod    *corev1.Pod
	// deletesPod is true if the effects say that the pod is deleted.
	deletesPod bool
}

func releaseCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var o changes
	var restart bool
	cmd := &cobra.Command{
		Use:   "release FIXEDIP...",
		Short: "Release the addresses of FixedIPs",
		Long: `Release the addresses of FixedIPs by deleting the FixedIPs. The command first shows which pods use the addresses and what the
release does, and asks for confirmation. A running pod keeps its address until it is deleted; with --restart-pod the command
also deletes the pod. The next pod gets another address, unless its annotations request the released one.

Exit code 0: the FixedIPs are deleted, or --dry-run was set. 2: the command failed, or the user declined.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("name at least one FixedIP")
			}
			return nil
		},
		ValidArgsFunction: completeObjects(flags, fixedIPNames),
		RunE: connected(flags, func(ctx context.Context, c *cluster, args []string) error {
			if err := validFormat(o.output); err != nil {
				return err
			}
			plans, err := c.planRelease(ctx, args, restart)
			if err != nil {
				return err
			}
			return c.releaseAll(ctx, streams, plans, o)
		}),
	}
	cmd.Flags().BoolVar(&restart, "restart-pod", false, "Also delete the pods that block the release of the addresses, so that their workloads create them again with other addresses; a bare pod is not created again")
	o.addFlags(cmd)
	return cmd
}

// planRelease reads the FixedIPs with these names, their pods and their workloads. It fails if one of the FixedIPs does not
// exist.
func (c *cluster) planRelease(ctx context.Context, names []string, restart bool) (plans []releasePlan, err error) {
	for _, name := range names {
		record, err := get(ctx, c, c.namespace, name, &v1alpha1.FixedIP{})
		switch {
		case err != nil:
			return nil, err
		case record == nil:
			return nil, fmt.Errorf("FixedIP %s/%s does not exist; kubectl fixedip get lists FixedIPs", c.namespace, name)
		}
		p := releasePlan{FixedIP: record.Namespace + "/" + record.Name, IPs: record.Spec.IPs, record: record}
		if p.pod, err = get(ctx, c, c.namespace, record.Spec.PodName, &corev1.Pod{}); err != nil {
			return nil, err
		}
		in := explain.ReleaseInputs{Record: record, Pod: p.pod, RestartPod: restart}
		if !identity.OwnerOf(record).IsPod() {
			in.Workload, in.Unread = c.workload(ctx, record.Spec.Owner)
		}
		if p.pod != nil {
			p.Pod = p.pod.Namespace + "/" + p.pod.Name
		}
		p.Effects, p.deletesPod = explain.Release(in)
		plans = append(plans, p)
	}
	return plans, nil
}

// releaseAll shows the plans, asks for confirmation, and deletes the FixedIPs. A dry run only shows the plans.
func (c *cluster) releaseAll(ctx context.Context, streams genericiooptions.IOStreams, plans []releasePlan, o changes) error {
	shown := streams.Out
	if o.output != "" || !o.dryRun {
		// Out is for the result. In a dry run without --output, the plans are the result.
		shown = streams.ErrOut
	}
	if o.output == "" || !o.dryRun {
		writePlans(shown, plans)
	}
	if o.dryRun {
		return write(streams.Out, o.output, listOf(plans), func(out io.Writer) error {
			_, err := fmt.Fprintln(out, "Dry run: nothing was changed.")
			return err
		})
	}
	if err := o.confirm(streams, fmt.Sprintf("Delete these FixedIPs (%d) and release their addresses?", len(plans))); err != nil {
		return err
	}
	var failed error
	for i := range plans {
		failed = errors.Join(failed, c.releaseOne(ctx, &plans[i]))
	}
	return errors.Join(failed, write(streams.Out, o.output, listOf(plans), func(out io.Writer) error {
		for _, p := range plans {
			if p.Released {
				fmt.Fprintf(out, "FixedIP %s deleted\n", p.FixedIP)
			}
			if p.Restarted {
				fmt.Fprintf(out, "Pod %s deleted\n", p.Pod)
			}
		}
		return nil
	}))
}

// releaseOne deletes the FixedIP of a plan and, if the plan says so, its pod. The UIDs are preconditions: other objects with
// these names were not shown to the user.
func (c *cluster) releaseOne(ctx context.Context, p *releasePlan) error {
	err := c.api.Delete(ctx, p.record, client.Preconditions{UID: &p.record.UID})
	if err = client.IgnoreNotFound(err); err != nil {
		return fmt.Errorf("delete FixedIP %s: %w", p.FixedIP, conflictText(err))
	}
	p.Released = true
	if !p.deletesPod {
		return nil
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.pod.Namespace, Name: p.pod.Name}}
	err = c.api.Delete(ctx, pod, client.Preconditions{UID: &p.pod.UID})
	if err = client.IgnoreNotFound(err); err != nil {
		return fmt.Errorf("delete pod %s: %w", p.Pod, conflictText(err))
	}
	p.Restarted = true
	return nil
}

// conflictText adds an explanation to the error of a precondition. It returns any other error unchanged.
func conflictText(err error) error {
	if apierrors.IsConflict(err) {
		return fmt.Errorf("another object has this name now, and was not deleted; run the command again: %w", err)
	}
	return err
}

func writePlans(out io.Writer, plans []releasePlan) {
	for _, p := range plans {
		fmt.Fprintf(out, "FixedIP %s: %s\n", p.FixedIP, orDash(strings.Join(p.IPs, ", ")))
		for _, effect := range p.Effects {
			fmt.Fprintf(out, "  %s\n", effect)
		}
	}
}
