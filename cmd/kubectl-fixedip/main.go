// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-fixedip is a kubectl plugin. It shows fixed addresses and their pods, the free addresses of nodes, why a
// pod waits, and contradictions between the objects of a cluster. Only check --fix writes.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/explain"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/fixedips"
	"fixedip.io/fixedip/ipam/store/workloads"
	"fixedip.io/fixedip/ipam/version"
)

func main() {
	ctrllog.SetLogger(klog.Background())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	if err := command(streams).ExecuteContext(ctx); err != nil {
		os.Exit(exitCode(err))
	}
}

// exitCode returns 1 if the command has found problems, and 2 if it has failed.
func exitCode(err error) int {
	if errors.Is(err, errProblems) {
		return 1
	}
	return 2
}

func command(streams genericiooptions.IOStreams) *cobra.Command {
	flags := genericclioptions.NewConfigFlags(true)
	root := &cobra.Command{
		Use:          "kubectl-fixedip",
		Short:        "Show fixed addresses, and why a pod waits for one",
		SilenceUsage: true,
		Version:      version.Fixedip(),
		Annotations:  map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl fixedip"},
	}
	root.SetVersionTemplate(version.Text("kubectl-fixedip") + "\n")
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	flags.AddFlags(root.PersistentFlags())
	root.AddCommand(listCommand(flags, streams), explainCommand(flags, streams), ipCommand(flags, streams), nodesCommand(flags, streams), checkCommand(flags, streams), drainCheckCommand(flags, streams))
	return root
}

// connected returns a function for cobra that runs a command with a connection to the cluster.
func connected(flags *genericclioptions.ConfigFlags, run func(ctx context.Context, c *cluster, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := connect(flags)
		if err != nil {
			return err
		}
		return run(cmd.Context(), c, args)
	}
}

// exactlyOne returns a check that a command has exactly one argument. message is the text of the error.
func exactlyOne(message string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return errors.New(message)
		}
		return nil
	}
}

func listCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List fixed addresses and their pods, including pool entries without a FixedIP",
		Args:  cobra.NoArgs,
		RunE: connected(flags, func(ctx context.Context, c *cluster, _ []string) error {
			if all {
				c.namespace = ""
			}
			l, records, err := c.pools(ctx)
			if err != nil {
				return err
			}
			var pods corev1.PodList
			if err := c.api.List(ctx, &pods, client.InNamespace(c.namespace)); err != nil {
				return fmt.Errorf("list pods: %w", err)
			}
			return writeList(streams.Out, records, pods.Items, l, c.namespace, time.Now())
		}),
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "List fixed addresses of all namespaces")
	return cmd
}

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

func nodesCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use:   "nodes",
		Short: "Show the subnets and free addresses of each node",
		Args:  cobra.NoArgs,
		RunE: connected(flags, func(ctx context.Context, c *cluster, _ []string) error {
			l, _, err := c.pools(ctx)
			if err != nil {
				return err
			}
			nodes, err := c.nodes(ctx)
			if err != nil {
				return err
			}
			return writeNodes(streams.Out, l, nodes)
		}),
	}
}

func drainCheckCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	failover := string(v1alpha1.Wait)
	cmd := &cobra.Command{
		Use:   "drain-check NODE",
		Short: "Show what a drain of a node would do to its pods with fixed addresses, and what would stop it",
		Args:  exactlyOne("name exactly one node"),
		RunE: connected(flags, func(ctx context.Context, c *cluster, args []string) error {
			policy, err := identity.ParseFailover(failover)
			if err != nil {
				return fmt.Errorf("--failover: %w", err)
			}
			in, err := c.drain(ctx, args[0])
			if err != nil {
				return err
			}
			in.Failover = policy
			return writeDrain(streams.Out, in)
		}),
	}
	cmd.Flags().StringVar(&failover, "failover", failover, "Failover policy of FixedIPs that have none; has to equal failover of the configuration")
	return cmd
}

// cluster is a connection to the API server. Its methods read the objects that the commands show, and perform the repairs of
// check --fix.
type cluster struct {
	api client.Client
	// namespace is the namespace that the commands show; empty: all namespaces.
	namespace string
}

func connect(flags *genericclioptions.ConfigFlags) (*cluster, error) {
	cfg, err := flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	namespace, _, err := flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, err
	}
	kinds, err := scheme.New()
	if err != nil {
		return nil, err
	}
	api, err := client.New(cfg, client.Options{Scheme: kinds})
	if err != nil {
		return nil, err
	}
	return &cluster{api: api, namespace: namespace}, nil
}

// pools returns a ledger with the pools of all nodes and the reservations of all FixedIPs, and the FixedIPs.
func (c *cluster) pools(ctx context.Context) (*ledger.Ledger, []v1alpha1.FixedIP, error) {
	var nodes ciliumv2.CiliumNodeList
	if err := c.api.List(ctx, &nodes); err != nil {
		return nil, nil, fmt.Errorf("list CiliumNodes: %w", err)
	}
	l := ledger.New()
	for i := range nodes.Items {
		l.SetNode(ciliumpool.FromCiliumNode(&nodes.Items[i]))
	}
	var records v1alpha1.FixedIPList
	if err := c.api.List(ctx, &records); err != nil {
		return nil, nil, fmt.Errorf("list FixedIPs: %w", err)
	}
	for i := range records.Items {
		l.SetReservation(fixedips.ReservationOf(&records.Items[i]))
	}
	return l, records.Items, nil
}

// nodes returns all Nodes. Key: the name of the node.
func (c *cluster) nodes(ctx context.Context) (map[string]*corev1.Node, error) {
	var nodes corev1.NodeList
	if err := c.api.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	byName := map[string]*corev1.Node{}
	for i := range nodes.Items {
		byName[nodes.Items[i].Name] = &nodes.Items[i]
	}
	return byName, nil
}

// drain reads the objects on which the effect of draining a node depends. The caller sets the failover policy of the result.
func (c *cluster) drain(ctx context.Context, node string) (in explain.DrainInputs, err error) {
	switch found, err := get(ctx, c, "", node, &corev1.Node{}); {
	case err != nil:
		return in, err
	case found == nil:
		return in, fmt.Errorf("node %q does not exist", node)
	}
	var pods corev1.PodList
	if err := c.api.List(ctx, &pods, client.MatchingFields{"spec.nodeName": node}); err != nil {
		return in, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	var budgets policyv1.PodDisruptionBudgetList
	if err := c.api.List(ctx, &budgets); err != nil {
		return in, fmt.Errorf("list PodDisruptionBudgets: %w", err)
	}
	var records v1alpha1.FixedIPList
	if err := c.api.List(ctx, &records); err != nil {
		return in, fmt.Errorf("list FixedIPs: %w", err)
	}
	in.Pods, in.Budgets, in.Records = pods.Items, budgets.Items, records.Items
	return in, nil
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

// get reads an object into obj and returns obj; nil if the object does not exist.
func get[P client.Object](ctx context.Context, c *cluster, namespace, name string, obj P) (found P, err error) {
	kind := kindOf(obj)
	err = c.api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, obj)
	switch {
	case apierrors.IsNotFound(err):
		return found, nil
	case err != nil:
		return found, fmt.Errorf("read %s %s: %w", kind, strings.TrimPrefix(namespace+"/"+name, "/"), err)
	}
	return obj, nil
}

// kindOf returns the kind of an object: the one that the object states or, if there is none, the name of its type.
func kindOf(obj client.Object) string {
	if kind := obj.GetObjectKind().GroupVersionKind().Kind; kind != "" {
		return kind
	}
	name := fmt.Sprintf("%T", obj)
	return name[strings.LastIndex(name, ".")+1:]
}
