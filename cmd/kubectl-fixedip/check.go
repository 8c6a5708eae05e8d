// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/check"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// errSkipped means that a repair was not made, because the cluster has changed since it was checked, or because the mismatch
// policy of the pod does not allow the eviction.
var errSkipped = errors.New("the repair was skipped")

// errPodGone means that a pod was not evicted, because it is gone or another pod has its name.
var errPodGone = fmt.Errorf("not evicted, because the pod that was checked no longer exists: %w", errSkipped)

// errProblems means that check has found problems. The exit code is then 1; it is 2 after any other error.
var errProblems = errors.New("problems found")

func checkCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var fix bool
	var output string
	// The plugin does not know the configuration: the name of its ConfigMap depends on the installation, and flags of the
	// controller take precedence over it. With the default, only an annotation allows an eviction.
	mismatchPolicy := string(identity.Report)
	again, stuckAfter := 5*time.Second, check.DefaultStuckAfter
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Look for contradictions between pools, FixedIPs, NodeSubnets, pods and CiliumEndpoints",
		Long: `Look for contradictions between pools, FixedIPs, NodeSubnets, pods and CiliumEndpoints of all namespaces.

If problems are found, the objects are read a second time, because a change between two requests looks like a
contradiction. Only problems that both readings show are reported. Exit code 0: no problem. 1: problems were found.
2: the objects could not be read, or a repair failed.`,
		Args: cobra.NoArgs,
		RunE: connected(flags, func(ctx context.Context, c *cluster, _ []string) error {
			if err := validFormat(output); err != nil {
				return err
			}
			policy, err := identity.ParseOnMismatch(mismatchPolicy)
			if err != nil {
				return fmt.Errorf("--mismatch-policy: %w", err)
			}
			problems, err := c.check(ctx, again, stuckAfter)
			if err != nil {
				return err
			}
			var failed error
			if fix {
				problems, failed = c.repair(ctx, streams.ErrOut, problems, policy)
			}
			if err := write(streams.Out, output, problems, func(out io.Writer) error { return writeProblems(out, problems) }); err != nil {
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
	cmd.Flags().BoolVar(&fix, "fix", false, "Repair the problems that need no decision of a person: evict pods with a wrong address whose mismatch policy is Restart, delete wrong CiliumEndpoints, release leaked entries")
	cmd.Flags().StringVar(&mismatchPolicy, "mismatch-policy", mismatchPolicy, "Mismatch policy of a pod if neither its workload nor the pod has the annotation "+identity.AnnotationOnMismatch+": Restart or Report; has to equal mismatchPolicy of the configuration")
	cmd.Flags().DurationVar(&again, "recheck-after", again, "Time between the two readings")
	cmd.Flags().DurationVar(&stuckAfter, "stuck-after", stuckAfter, "Age after which the deletion of a FixedIP or a cooldown is reported as a problem; has to be longer than --address-cooldown and --force-finalize-after of the controller")
	outputFlag(cmd, &output)
	return cmd
}

// check returns the problems that two readings of the cluster both show. The duration again lies between the readings. There
// is no second reading if the first shows no problem.
func (c *cluster) check(ctx context.Context, again, stuckAfter time.Duration) ([]check.Problem, error) {
	var readings [2][]check.Problem
	for i := range readings {
		if i > 0 {
			if len(readings[0]) == 0 {
				return []check.Problem{}, nil
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
		objects.StuckAfter = stuckAfter
		readings[i] = check.Run(objects)
	}
	return check.Lasting(readings[0], readings[1]), nil
}

// objects reads the objects that check.Run compares. Pods are read first: the pool entry of a pod that the scheduler places
// is written before the pod gets its address, so the pools that are read later have the entry.
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
	var subnets v1alpha1.NodeSubnetList
	if err := c.api.List(ctx, &subnets); err != nil {
		return o, fmt.Errorf("list NodeSubnets: %w", err)
	}
	o.Pods, o.NodeSubnets, o.Now = pods.Items, subnets.Items, time.Now()
	for i := range endpoints.Items {
		e := check.Endpoint{
			Pod: pool.OwnerKey(endpoints.Items[i].Namespace, endpoints.Items[i].Name),
			UID: endpoints.Items[i].UID, ResourceVersion: endpoints.Items[i].ResourceVersion,
		}
		if n := endpoints.Items[i].Status.Networking; n != nil {
			for _, pair := range n.Addressing {
				if pair == nil {
					continue
				}
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

// repair performs the repairs of the problems, and returns the problems that remain. It writes the result of each repair to
// log. It evicts at most one pod of each workload: the eviction of another one is safe only when the first pod is replaced.
// policy is the mismatch policy of pods without an annotation.
func (c *cluster) repair(ctx context.Context, log io.Writer, problems []check.Problem, policy identity.OnMismatch) (remaining []check.Problem, err error) {
	// evicted contains the workloads of which a pod was evicted. Key: Repair.Workload.
	evicted := map[string]bool{}
	for _, p := range problems {
		switch {
		case p.Repair == nil:
			remaining = append(remaining, p)
			continue
		case p.Repair.Evict && evicted[p.Repair.Workload]:
			fmt.Fprintf(log, "%s of %s: not repaired now, because another pod of the workload was evicted; run the command again when that pod has been replaced.\n", p.Kind, p.Object)
			remaining = append(remaining, p)
			continue
		}
		done, failed := c.perform(ctx, *p.Repair, policy)
		if errors.Is(failed, errSkipped) {
			fmt.Fprintf(log, "%s of %s: %v.\n", p.Kind, p.Object, failed)
			remaining = append(remaining, p)
			continue
		}
		if failed != nil {
			fmt.Fprintf(log, "%s of %s: %v.\n", p.Kind, p.Object, failed)
			remaining = append(remaining, p)
			err = errors.Join(err, fmt.Errorf("repair %s of %s: %w", p.Kind, p.Object, failed))
			continue
		}
		evicted[p.Repair.Workload] = evicted[p.Repair.Workload] || p.Repair.Evict
		fmt.Fprintf(log, "%s of %s: %s.\n", p.Kind, p.Object, done)
	}
	return remaining, err
}

// perform performs one repair on the object that was checked, and returns a description of the change. The error matches
// errSkipped if the repair is no longer possible or needed, because the cluster has changed, or if the mismatch policy does
// not allow it. policy is the mismatch policy of pods without an annotation.
func (c *cluster) perform(ctx context.Context, r check.Repair, policy identity.OnMismatch) (done string, err error) {
	namespace, name, _ := pool.SplitOwnerKey(r.Pod)
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	switch {
	case r.Evict:
		if err := c.mayEvict(ctx, r, policy); err != nil {
			return "", err
		}
		eviction := &policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(r.UID))}}
		err := c.api.SubResource("eviction").Create(ctx, &corev1.Pod{ObjectMeta: meta}, eviction)
		switch {
		case apierrors.IsNotFound(err), apierrors.IsConflict(err):
			return "", errPodGone
		case err != nil:
			return "", fmt.Errorf("evict pod %s: %w", r.Pod, err)
		}
		return "evicted pod " + r.Pod, nil
	case r.DeleteEndpoint:
		err := c.api.Delete(ctx, &ciliumv2.CiliumEndpoint{ObjectMeta: meta}, client.Preconditions{UID: &r.UID, ResourceVersion: &r.ResourceVersion})
		switch {
		case apierrors.IsNotFound(err), apierrors.IsConflict(err):
			return "", fmt.Errorf("not deleted, because the CiliumEndpoint has changed or no longer exists; run the command again: %w", errSkipped)
		case err != nil:
			return "", fmt.Errorf("delete CiliumEndpoint %s: %w", r.Pod, err)
		}
		return "deleted CiliumEndpoint " + r.Pod, nil
	}
	return c.release(ctx, r)
}

// mayEvict returns nil if the mismatch policy of a pod is Restart. otherwise is the policy if neither the workload nor the
// pod has an annotation. The error matches errSkipped if the policy is Report or the pod does not exist.
func (c *cluster) mayEvict(ctx context.Context, r check.Repair, otherwise identity.OnMismatch) error {
	namespace, name, _ := pool.SplitOwnerKey(r.Pod)
	pod, err := get(ctx, c, namespace, name, &corev1.Pod{})
	switch {
	case err != nil:
		return err
	case pod == nil:
		return errPodGone
	}
	workload, err := c.workloadOf(ctx, r)
	if err != nil {
		return fmt.Errorf("pod %s is not evicted, because the mismatch policy of its workload is unknown: %w", r.Pod, err)
	}
	var annotations map[string]string
	if workload != nil {
		annotations = workload.GetAnnotations()
	}
	switch policy, err := identity.MismatchPolicy(annotations, pod.Annotations, ""); {
	case err != nil:
		return fmt.Errorf("not evicted, because %w: %w", err, errSkipped)
	case policy == "" && otherwise != identity.Restart:
		return fmt.Errorf("not evicted, because neither its workload nor the pod has the annotation %s; if mismatchPolicy of the configuration is Restart, use --mismatch-policy=Restart: %w", identity.AnnotationOnMismatch, errSkipped)
	case policy == identity.Report:
		return fmt.Errorf("not evicted, because its mismatch policy is Report; delete the pod, or set the annotation %s of its workload to Restart: %w", identity.AnnotationOnMismatch, errSkipped)
	}
	return nil
}

// release releases the entry of a pod of a workload. It reads the pool first, and then checks that neither the pod nor its FixedIP
// nor the workload exists: a pod gets an entry of that workload only while the workload exists. The cooldown of the address then
// begins, and the controller ends it.
func (c *cluster) release(ctx context.Context, r check.Repair) (done string, err error) {
	pools := ciliumpool.New(c.api)
	n, err := pools.Get(ctx, r.ReleaseOn)
	if err != nil {
		return "", fmt.Errorf("read the pool of node %s: %w", r.ReleaseOn, err)
	}
	needed, err := c.neededBy(ctx, r)
	if err != nil {
		return "", err
	}
	if needed != "" {
		return "", fmt.Errorf("%s is not released, because %s exists: %w", r.Address, needed, errSkipped)
	}
	changes := slices.DeleteFunc(n.Release(r.Pod, nil, time.Now()), func(e pool.EntryChange) bool { return e.Addr != r.Address })
	if len(changes) == 0 {
		return "", fmt.Errorf("%s is not released, because its entry has changed: %w", r.Address, errSkipped)
	}
	changes[0].RequireUnused = true
	if _, err := pools.ChangeEntries(ctx, n, changes, true); err != nil {
		return "", fmt.Errorf("release %s in the pool of node %s: %w", r.Address, r.ReleaseOn, err)
	}
	return fmt.Sprintf("released %s on node %s", r.Address, r.ReleaseOn), nil
}

// neededBy returns the object for which an entry may be needed; empty if there is none.
func (c *cluster) neededBy(ctx context.Context, r check.Repair) (string, error) {
	namespace, name, _ := pool.SplitOwnerKey(r.Pod)
	if pod, err := get(ctx, c, namespace, name, &corev1.Pod{}); err != nil || pod != nil {
		return "pod " + r.Pod, err
	}
	if record, err := get(ctx, c, namespace, name, &v1alpha1.FixedIP{}); err != nil || record != nil {
		return "FixedIP " + r.Pod, err
	}
	workload, err := c.workloadOf(ctx, r)
	if err != nil || workload == nil {
		return "", err
	}
	return workload.GetKind() + " " + namespace + "/" + workload.GetName(), nil
}

// workloadOf reads the workload that a repair names, of any kind; nil if the workload does not exist.
func (c *cluster) workloadOf(ctx context.Context, r check.Repair) (*unstructured.Unstructured, error) {
	namespace, _, _ := pool.SplitOwnerKey(r.Pod)
	label, name, _ := pool.SplitWorkloadKey(r.Workload)
	served := false
	for _, gk := range identity.LabelledKinds(label) {
		mapping, err := c.api.RESTMapper().RESTMapping(gk)
		switch {
		case meta.IsNoMatchError(err):
			continue
		case err != nil:
			return nil, fmt.Errorf("look up the kind %s: %w", gk, err)
		}
		served = true
		obj := &unstructured.Unstructured{}
		obj.SetGroupVersionKind(mapping.GroupVersionKind)
		if found, err := get(ctx, c, namespace, name, obj); err != nil || found != nil {
			return found, err
		}
	}
	if !served {
		return nil, fmt.Errorf("it is unknown whether workload %s exists, because the API server does not serve the kind %s", r.Workload, label)
	}
	return nil, nil
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
