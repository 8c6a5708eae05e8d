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
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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

// errPodGone means that a pod was not evicted, because it no longer exists or another pod has its name.
var errPodGone = fmt.Errorf("not evicted, because the pod that was checked no longer exists: %w", errSkipped)

// errMayBeEvicted means that a request to evict a pod failed, and that the API server may have evicted the pod all the same.
var errMayBeEvicted = errors.New("it is unknown whether the pod was evicted")

// repair performs the repairs of the problems, and returns the problems that remain. It writes the result of each repair
// to log. It evicts at most one pod of each workload: another eviction is safe only after the first pod has been replaced.
// policy is the mismatch policy if neither a pod nor its workload has an annotation. The error contains the errors of all
// repairs that failed; a skipped repair is no error.
func (c *cluster) repair(ctx context.Context, log io.Writer, problems []check.Problem, policy identity.OnMismatch) (remaining []check.Problem, err error) {
	// evicted contains the workloads of which a pod was evicted, or may have been (errMayBeEvicted). Key: Repair.Workload.
	evicted := map[string]bool{}
	for _, p := range problems {
		switch {
		case p.Repair == nil:
			remaining = append(remaining, p)
			continue
		case p.Repair.Evict && evicted[p.Repair.Workload]:
			fmt.Fprintf(log, "%s of %s: not repaired now, because another pod of the workload was evicted, or may have been; run the command again when that pod has been replaced.\n", p.Kind, p.Object)
			remaining = append(remaining, p)
			continue
		}
		done, failed := c.perform(ctx, *p.Repair, policy)
		if p.Repair.Evict && (failed == nil || errors.Is(failed, errMayBeEvicted)) {
			evicted[p.Repair.Workload] = true
		}
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
		if c.dry {
			done += " (dry run)"
		}
		fmt.Fprintf(log, "%s of %s: %s.\n", p.Kind, p.Object, done)
	}
	return remaining, err
}

// perform performs one repair on the object that was checked, and returns a description of the change. The error matches
// errSkipped if the repair is no longer possible or needed, because the cluster has changed, or if the mismatch policy
// does not allow it. policy is the mismatch policy if neither the pod nor its workload has an annotation.
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
		case apierrors.IsTooManyRequests(err), apierrors.IsForbidden(err):
			return "", fmt.Errorf("evict pod %s: %w", r.Pod, err)
		case err != nil:
			return "", fmt.Errorf("evict pod %s: %w: %w", r.Pod, errMayBeEvicted, err)
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
	case r.RewriteOn != "":
		return c.rewrite(ctx, r)
	case r.Handshake != nil:
		return c.withdrawHandshake(ctx, *r.Handshake)
	case r.DeleteSubnet != "":
		return c.deleteSubnet(ctx, r)
	}
	return c.release(ctx, r)
}

// rewrite writes the resource of an entry again for the FixedIP that reserves the address. The owner of the entry, which is
// all that an agent reads, stays the same.
func (c *cluster) rewrite(ctx context.Context, r check.Repair) (done string, err error) {
	pools := ciliumpool.New(c.api)
	n, err := pools.Get(ctx, r.RewriteOn)
	if err != nil {
		return "", fmt.Errorf("read the pool of node %s: %w", r.RewriteOn, err)
	}
	namespace, _, _ := pool.SplitOwnerKey(r.Pod)
	var records v1alpha1.FixedIPList
	if err := c.api.List(ctx, &records, client.InNamespace(namespace)); err != nil {
		return "", fmt.Errorf("list the FixedIPs of namespace %s: %w", namespace, err)
	}
	i := slices.IndexFunc(records.Items, func(f v1alpha1.FixedIP) bool {
		return f.DeletionTimestamp == nil && pool.OwnerKey(f.Namespace, f.Spec.PodName) == r.Pod && slices.Contains(address.ParseAll(f.Spec.IPs), r.Address)
	})
	if i < 0 || !n.Entries[r.Address].OwnedBy(r.Pod) {
		return "", fmt.Errorf("the entry of %s is not written, because the entry or its FixedIP has changed; run the command again: %w", r.Address, errSkipped)
	}
	if _, err := pools.ChangeEntries(ctx, n, []pool.EntryChange{n.Set(r.Address, check.RecordedEntry(&records.Items[i]))}, true); err != nil {
		return "", skipIfChanged(err, fmt.Sprintf("write the entry of %s in the pool of node %s", r.Address, r.RewriteOn))
	}
	return fmt.Sprintf("wrote the resource of the entry of %s on node %s", r.Address, r.RewriteOn), nil
}

// withdrawHandshake withdraws a release handshake, unless its state has changed since it was checked.
func (c *cluster) withdrawHandshake(ctx context.Context, h check.HandshakeRepair) (done string, err error) {
	pools := ciliumpool.New(c.api)
	n, err := pools.Get(ctx, h.Node)
	if err != nil {
		return "", fmt.Errorf("read the pool of node %s: %w", h.Node, err)
	}
	if n.Handshakes[h.Address] != h.State {
		return "", fmt.Errorf("the release handshake of %s is not withdrawn, because its state has changed; run the command again: %w", h.Address, errSkipped)
	}
	if _, err := pools.WithdrawHandshakes(ctx, n, []netip.Addr{h.Address}); err != nil {
		return "", skipIfChanged(err, fmt.Sprintf("withdraw the release handshake of %s on node %s", h.Address, h.Node))
	}
	return fmt.Sprintf("withdrew the release handshake of %s on node %s", h.Address, h.Node), nil
}

// deleteSubnet deletes a NodeSubnet that has not changed since it was checked. The precondition suffices, because a
// controller writes the NodeSubnet before it gives the subnet to a node.
func (c *cluster) deleteSubnet(ctx context.Context, r check.Repair) (done string, err error) {
	err = c.api.Delete(ctx, &v1alpha1.NodeSubnet{ObjectMeta: metav1.ObjectMeta{Name: r.DeleteSubnet}}, client.Preconditions{UID: &r.UID, ResourceVersion: &r.ResourceVersion})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return "", fmt.Errorf("not deleted, because the NodeSubnet has changed or no longer exists; run the command again: %w", errSkipped)
	case err != nil:
		return "", fmt.Errorf("delete NodeSubnet %s: %w", r.DeleteSubnet, err)
	}
	return "deleted NodeSubnet " + r.DeleteSubnet, nil
}

// skipIfChanged adds attempted, a description of a write, to the error of the write. The result matches errSkipped if a
// precondition of the write was not met.
func skipIfChanged(err error, attempted string) error {
	if errors.Is(err, ciliumpool.ErrChanged) {
		return fmt.Errorf("%s: the CiliumNode has changed; run the command again: %w", attempted, errSkipped)
	}
	return fmt.Errorf("%s: %w", attempted, err)
}

// mayEvict returns nil if the mismatch policy of a pod is Restart. otherwise is the policy if neither the workload nor
// the pod has an annotation. The error matches errSkipped if the policy is Report, an annotation is invalid, or the pod
// does not exist.
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

// release releases the entry of a pod of a workload. It reads the pool first, and then checks that neither the pod nor its
// FixedIP nor the workload exists: a pod gets an entry of that workload only while the workload exists. The cooldown of the
// address then begins, and the controller ends it.
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
		return "", fmt.Errorf("%s is not released, because its entry has changed; run the command again: %w", r.Address, errSkipped)
	}
	changes[0].RequireUnused = true
	if _, err := pools.ChangeEntries(ctx, n, changes, true); err != nil {
		return "", skipIfChanged(err, fmt.Sprintf("release %s in the pool of node %s", r.Address, r.ReleaseOn))
	}
	return fmt.Sprintf("released %s on node %s", r.Address, r.ReleaseOn), nil
}

// neededBy returns the kind and the name of an object for which the entry may be needed; empty if there is none.
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
