// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/status"
	"fixedip.io/fixedip/ipam/store/fixedips"
)

// waitDefault is the duration of status --wait without a value, and waitInterval the time between two readings.
const (
	waitDefault  = 5 * time.Minute
	waitInterval = 2 * time.Second
)

// errNotReadable means that a part of the state could not be read, and that the rest has no problem.
var errNotReadable = errors.New("the state is unknown, because the user may not read all objects")

// installation contains the namespaces of fixedip and Cilium.
type installation struct {
	// namespace is that of both programs; empty: any namespace. cilium is that of the agents.
	namespace, cilium string
}

func (i *installation) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&i.namespace, "fixedip-namespace", "", "Namespace of fixedip-controller and fixedip-scheduler; if empty, they are looked for in all namespaces")
	cmd.Flags().StringVar(&i.cilium, "cilium-namespace", "kube-system", "Namespace of Cilium")
}

func statusCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var output string
	var wait time.Duration
	var where installation
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether fixedip is healthy: programs, versions, configuration, leaders, Cilium, pools and FixedIPs",
		Long: `Show whether fixedip is healthy: programs, versions, configuration, leaders, Cilium, pools and FixedIPs.

Exit code 0: healthy. 1: there are problems. 2: the state could not be read. Objects that the user may not read are
listed as not readable and never count as healthy. With --wait the command waits until fixedip is healthy, for 5 minutes or
--wait=DURATION. kubectl fixedip check looks for contradictions between objects.`,
		Args: cobra.NoArgs,
		RunE: connected(flags, func(ctx context.Context, c *cluster, _ []string) error {
			if err := validFormat(output); err != nil {
				return err
			}
			report, err := c.awaitHealthy(ctx, where, wait, waitInterval)
			if err != nil {
				return err
			}
			if err := write(streams.Out, output, report, func(out io.Writer) error { return writeStatus(out, report, time.Now()) }); err != nil {
				return err
			}
			switch {
			case len(report.Problems) > 0:
				return errProblems
			case !report.Healthy:
				return errNotReadable
			}
			return nil
		}),
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "Wait until fixedip is healthy, at most for this time")
	cmd.Flags().Lookup("wait").NoOptDefVal = waitDefault.String()
	where.addFlags(cmd)
	outputFlag(cmd, &output)
	return cmd
}

// awaitHealthy returns the state of fixedip as soon as fixedip is healthy or the user may not read an object, and at the
// latest after the duration wait. interval is the time between two readings. If a reading fails, awaitHealthy returns the
// error at once and does not read again.
func (c *cluster) awaitHealthy(ctx context.Context, where installation, wait, interval time.Duration) (status.Report, error) {
	deadline := time.Now().Add(wait)
	for {
		in, err := c.statusInputs(ctx, where)
		if err != nil {
			return status.Report{}, err
		}
		report := status.Of(in)
		if report.Healthy || len(report.NotReadable) > 0 || !time.Now().Add(interval).Before(deadline) {
			return report, nil
		}
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return status.Report{}, context.Cause(ctx)
		}
	}
}

// statusInputs reads the objects of a status. In the result, Unread contains the kinds that the user may not read, and
// MissingKinds those that the API server does not serve. The error is the first other error; the remaining objects are
// read nevertheless.
func (c *cluster) statusInputs(ctx context.Context, where installation) (in status.Inputs, err error) {
	in = status.Inputs{CiliumNamespace: where.cilium, ConfigMaps: map[string]*corev1.ConfigMap{}, Leases: map[string]*coordinationv1.Lease{}, Now: time.Now()}
	r := reader{in: &in}

	programs, err := ofPrograms()
	if err != nil {
		return in, err
	}
	deployments, pods := appsv1.DeploymentList{}, corev1.PodList{}
	r.read(status.Deployments, c.api.List(ctx, &deployments, client.InNamespace(where.namespace), programs))
	r.read(status.Pods, c.api.List(ctx, &pods, client.InNamespace(where.namespace), programs))
	in.Deployments, in.Pods = deployments.Items, pods.Items
	for _, key := range status.ConfigMapsOf(in.Deployments, in.Pods) {
		namespace, name, _ := strings.Cut(key, "/")
		found, err := get(ctx, c, namespace, name, &corev1.ConfigMap{})
		if r.read(status.Configurations, err); found != nil {
			in.ConfigMaps[key] = found
		}
	}
	for i := range in.Deployments {
		namespace, name, elects := in.LeaseOf(&in.Deployments[i])
		if !elects {
			continue
		}
		found, err := get(ctx, c, namespace, name, &coordinationv1.Lease{})
		if r.read(status.Leases, err); found != nil {
			in.Leases[namespace+"/"+name] = found
		}
	}

	config, err := get(ctx, c, where.cilium, "cilium-config", &corev1.ConfigMap{})
	r.read(status.CiliumConfig, err)
	in.CiliumConfig = config
	var agents appsv1.DaemonSetList
	r.read(status.Agents, c.api.List(ctx, &agents, client.InNamespace(where.cilium), client.MatchingLabels{"k8s-app": "cilium"}))
	if len(agents.Items) > 0 {
		in.Agents = &agents.Items[0]
	}

	l, err := c.nodePools(ctx)
	if r.read(status.CiliumNodes, err); err == nil {
		in.Pools = l
	}
	var records v1alpha1.FixedIPList
	r.read(status.FixedIPs, c.api.List(ctx, &records))
	in.FixedIPs = records.Items
	for i := range records.Items {
		if in.Pools != nil {
			in.Pools.SetReservation(fixedips.ReservationOf(&records.Items[i]))
		}
	}
	var subnets v1alpha1.NodeSubnetList
	r.read(status.NodeSubnets, c.api.List(ctx, &subnets, client.Limit(1)))
	return in, r.failed
}

// ofPrograms returns the selector of the Deployments and pods of both programs.
func ofPrograms() (client.MatchingLabelsSelector, error) {
	var components []string
	for _, program := range status.ProgramNames {
		components = append(components, status.LabelsOf(program)[status.ComponentLabel])
	}
	component, err := labels.NewRequirement(status.ComponentLabel, selection.In, components)
	if err != nil {
		return client.MatchingLabelsSelector{}, fmt.Errorf("select the programs by the label %s: %w", status.ComponentLabel, err)
	}
	selector := labels.SelectorFromSet(labels.Set{status.NameLabel: status.Product}).Add(*component)
	return client.MatchingLabelsSelector{Selector: selector}, nil
}

// reader collects the errors of requests.
type reader struct {
	in *status.Inputs
	// failed is the first error that is not about rights or a missing kind.
	failed error
}

// read records err, the result of a request for objects. It adds a missing right to Unread and a missing kind to
// MissingKinds, and stores the first other error in failed. what is the value of status.Unread.What.
func (r *reader) read(what string, err error) {
	switch {
	case err == nil:
	case apierrors.IsForbidden(err):
		if !slices.ContainsFunc(r.in.Unread, func(u status.Unread) bool { return u.What == what }) {
			r.in.Unread = append(r.in.Unread, status.Unread{What: what, Why: err.Error()})
		}
	case notServed(err):
		r.in.MissingKinds = append(r.in.MissingKinds, what)
	case r.failed == nil:
		r.failed = fmt.Errorf("read %s: %w", what, err)
	}
}

// writeStatus writes a report as text.
func writeStatus(out io.Writer, r status.Report, now time.Time) error {
	var rows [][]string
	row := func(what, text string, args ...any) {
		rows = append(rows, []string{what + ":", fmt.Sprintf(text, args...)})
	}
	unread := map[string]bool{}
	for _, u := range r.NotReadable {
		unread[u.What] = true
	}
	for _, p := range r.Programs {
		switch {
		case p.Namespace != "":
			row(p.Name, "%d of %d ready, version %s (%s), %s", p.Ready, p.Desired, orDash(p.Version), p.Image, leaderText(p, unread[status.Leases], now))
		case unread[status.Deployments]:
			row(p.Name, "not readable")
		default:
			row(p.Name, "not installed")
		}
	}
	switch {
	case r.Configuration.State == status.Same:
		row("Configuration", "same, hash %s", r.Configuration.Hash)
	case r.Configuration.State == status.Differs:
		row("Configuration", "differs")
	case unread[status.Deployments] || unread[status.Configurations]:
		row("Configuration", "not readable")
	default:
		row("Configuration", "unknown")
	}
	cilium := fmt.Sprintf("IPAM mode %s, routing mode %s", orDash(r.Cilium.IPAMMode), orDash(r.Cilium.RoutingMode))
	if unread[status.CiliumConfig] {
		cilium = "configuration not readable"
	}
	if unread[status.Agents] {
		cilium += "; agents not readable"
	} else {
		cilium += fmt.Sprintf("; %d of %d agents ready, version %s", r.Cilium.AgentsReady, r.Cilium.Agents, orDash(r.Cilium.Version))
	}
	row("Cilium", "%s", cilium)
	row("Pools", "%s", poolsText(r.Pools, unread[status.CiliumNodes]))
	row("FixedIPs", "%s", fixedIPsText(r.FixedIPs, unread[status.FixedIPs]))
	if err := table(out, rows); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for _, u := range r.NotReadable {
		fmt.Fprintf(out, "? %s could not be read: %s\n", u.What, u.Why)
	}
	for _, p := range r.Problems {
		fmt.Fprintf(out, "! %s.\n  what helps: %s\n", p.Text, p.Help)
	}
	verdict := "Healthy."
	switch {
	case len(r.Problems) > 0:
		verdict = fmt.Sprintf("\nProblems found: %d", len(r.Problems))
	case !r.Healthy:
		verdict = "\nNo problems in the objects that could be read."
	}
	_, err := fmt.Fprintln(out, verdict)
	return err
}

// leaderText describes the leader of a program. unread is true if Leases could not be read.
func leaderText(p status.Program, unread bool, now time.Time) string {
	switch {
	case unread:
		return "leader not readable"
	case p.Leader == "":
		return "no leader"
	case p.LeaderSince == nil:
		return "leader " + p.Leader
	}
	return fmt.Sprintf("leader %s for %s", p.Leader, duration.HumanDuration(now.Sub(*p.LeaderSince)))
}

func poolsText(p status.Pools, unread bool) string {
	if unread {
		return "not readable"
	}
	parts := []string{fmt.Sprintf("nodes: %d", p.Nodes)}
	for _, f := range p.Families {
		parts = append(parts, fmt.Sprintf("%s: %d of %d addresses available, full nodes: %d", f.Family, f.Available, f.Size, len(f.Full)))
	}
	for _, n := range []struct {
		what  string
		nodes []string
	}{{"without subnet", p.WithoutSubnet}, {"overlapping", p.Overlapping}, {"agent has not reported", p.Unreported}} {
		if len(n.nodes) > 0 {
			parts = append(parts, fmt.Sprintf("%s: %d", n.what, len(n.nodes)))
		}
	}
	return strings.Join(parts, "; ")
}

func fixedIPsText(c status.Counts, unread bool) string {
	if unread {
		return "not readable"
	}
	text := fmt.Sprintf("%d of %d ready", c.Ready, c.Total)
	var reasons []string
	for _, reason := range slices.Sorted(maps.Keys(c.Reasons)) {
		reasons = append(reasons, fmt.Sprintf("%s %d", reason, c.Reasons[reason]))
	}
	if len(reasons) > 0 {
		text += " (" + strings.Join(reasons, ", ") + ")"
	}
	return text
}
