// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/requeue"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/conformance"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// errNotKept says why a pod can't keep the IPs that it runs with.
type errNotKept string

func (e errNotKept) Error() string { return string(e) }

// adopt looks at one pod that has no FixedIP: of our scheduler, it has lost its entry; of another scheduler, it may ask
// for its IPs to be fixed.
func (c *Controller) adopt(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var pod corev1.Pod
	if err := c.Cached.Get(ctx, req.NamespacedName, &pod); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	var result reconcile.Result
	var err error
	if id, ours := c.Adoption.Placed(&pod, c.Kinds); ours {
		result, err = c.restoreLost(ctx, &pod, id)
	} else {
		result, err = c.fixRunning(ctx, &pod)
	}
	if superseded(err) {
		klog.FromContext(ctx).V(3).Info("Adoption superseded", "err", err)
		return reconcile.Result{RequeueAfter: requeue.AfterConflict}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("fix the IPs of pod %s: %w", req, err)
	}
	return result, nil
}

// fixRunning fixes the IPs of a pod of another scheduler that asks for it.
func (c *Controller) fixRunning(ctx context.Context, pod *corev1.Pod) (reconcile.Result, error) {
	id, wanted, err := c.Adoption.Wants(pod, c.Kinds)
	if err != nil {
		c.Events.Eventf(pod, nil, corev1.EventTypeWarning, "InvalidAnnotation", "AdoptAddress", "%v; its address is not fixed", err)
	}
	ips := conformance.AdoptableIPs(pod, c.Adoption.IPv4Only)
	if err != nil || !wanted || len(ips) == 0 {
		return reconcile.Result{}, nil
	}
	record, err := index.Get[v1alpha1.FixedIP](ctx, c.Cached, client.ObjectKeyFromObject(pod))
	if err != nil {
		return reconcile.Result{}, err
	}
	held := c.Ledger.Held(id.Key())
	var reserved []reservation.Address
	if record != nil {
		reserved = reservation.Of(record)
	}
	node, missing := conformance.MissingReserved(held, reserved, ips)
	switch {
	case record != nil && record.DeletionTimestamp != nil:
		// Its deletion is an event.
		return reconcile.Result{}, nil
	case len(missing) > 0 && record != nil && node != pod.Spec.NodeName && cmp.Or(record.Spec.Failover, c.Failover) == v1alpha1.Reassign:
		// The pod keeps the IPs of its new node. A new FixedIP follows once the old one is gone.
		return reconcile.Result{}, c.Live.Delete(ctx, record, client.Preconditions{UID: &record.UID, ResourceVersion: &record.ResourceVersion})
	case len(missing) > 0:
		c.reportMissing(pod, ips, node, missing)
		return reconcile.Result{}, nil
	case record != nil && len(record.Spec.IPs) > 0, c.hasEntries(held, pod.Spec.NodeName, ips):
		return reconcile.Result{}, nil
	}
	err = c.createFixedIP(ctx, pod, id, record, ips, true)
	if why := errNotKept(""); errors.As(err, &why) {
		c.Events.Eventf(pod, nil, corev1.EventTypeWarning, "AdoptionFailed", "AdoptAddress", "Its IPs are not fixed: %v", why)
		return reconcile.Result{RequeueAfter: source.ResyncPeriod}, nil
	}
	if err == nil {
		metrics.Adopted()
		c.Events.Eventf(pod, nil, corev1.EventTypeNormal, "Adopted", "AdoptAddress", "%s is reserved for it now", address.Join(ips))
	}
	return reconcile.Result{}, err
}

// hasEntries reports whether the pool of a node has entries of the pod's own for all IPs. The FixedIP controller makes a
// FixedIP of these.
func (c *Controller) hasEntries(held []ledger.NodeAddresses, node string, ips []netip.Addr) bool {
	return slices.ContainsFunc(held, func(h ledger.NodeAddresses) bool {
		return h.Node == node && !c.unreserved(h, node) && !slices.ContainsFunc(ips, func(a netip.Addr) bool { return !slices.Contains(h.Addrs, a) })
	})
}

// createFixedIP makes the FixedIP of the IPs that a pod runs with, or puts them into record, which has none. The FixedIP
// controller then writes the owner of the entries, while the pod runs with the IPs, and waits for the agent. It returns
// errNotKept if the pod can't keep them. dynamic is whether the IPs may be dynamic entries (see
// conformance.WhyNotKept).
func (c *Controller) createFixedIP(ctx context.Context, pod *corev1.Pod, id identity.Identity, record *v1alpha1.FixedIP, ips []netip.Addr, dynamic bool) error {
	if err := stillHas(ctx, c.Live, pod, ips); err != nil {
		return err
	}
	n, err := c.Writer.Get(ctx, pod.Spec.NodeName)
	if err != nil {
		return err
	}
	if other := n.OtherAddressOf(id.Key(), ips); other != nil {
		// The cache does not show that entry yet. Once it does, package fixedip makes a FixedIP of it.
		return fmt.Errorf("%w: %w", requeue.ErrSuperseded, other)
	}
	if other, overlaps := c.Ledger.OverlapsWith(n.Name); overlaps {
		return errNotKept(fmt.Sprintf("the subnets of node %s overlap those of node %s", n.Name, other))
	}
	for _, a := range ips {
		if owner, reserved := c.Ledger.ReservedFor(a); reserved && owner != id.Key() {
			return errNotKept(fmt.Sprintf("%s is reserved for another pod by a FixedIP", a))
		}
	}
	if why := conformance.WhyNotKept(n, id, ips, dynamic); why != nil {
		return errNotKept(why.Error())
	}
	if record != nil {
		record = record.DeepCopy()
		record.Spec.IPs, record.Spec.NodeName = address.Strings(ips), n.Name
		return c.Live.Update(ctx, record)
	}
	spec := v1alpha1.FixedIPSpec{
		IPs: address.Strings(ips), NodeName: n.Name, PodName: pod.Name, Reclaim: identity.DefaultReclaim(),
		Owner: v1alpha1.OwnerReference(id.Owner),
	}
	workload, err := c.workload(id.Owner, id.Namespace)
	if err != nil {
		return err
	}
	if workload != nil {
		// Annotations that can't be read are reported by the FixedIP controller.
		if policy, err := identity.Reclaim(workload.Annotations, workload.Template); err == nil {
			spec.Reclaim = policy
		}
		if failover, err := identity.Failover(workload.Annotations, workload.Template); err == nil {
			spec.Failover = failover
		}
	}
	klog.FromContext(ctx).Info("FixedIP made of the IPs of a running pod", "ips", ips, "node", n.Name)
	return c.Live.Create(ctx, &v1alpha1.FixedIP{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Finalizers: []string{v1alpha1.Finalizer}},
		Spec:       spec,
	})
}

// reportMissing reports that a pod runs without the IPs that are reserved for it, and what helps.
func (c *Controller) reportMissing(pod *corev1.Pod, has []netip.Addr, node string, reserved []netip.Addr) {
	where := "in no node's pool"
	switch {
	case node == pod.Spec.NodeName:
		where = "on this node too; delete the pod, and the next one has it"
	case node != "":
		where = fmt.Sprintf("on node %s; with schedulerName: fixedip-scheduler the pod would be placed there", node)
	}
	c.Events.Eventf(pod, nil, corev1.EventTypeWarning, "AddressMismatch", "AdoptAddress", "Runs with %s on node %s, and %s is reserved for it %s",
		address.Join(has), pod.Spec.NodeName, address.Join(reserved), where)
}

// stillHas reads a pod from the API server. It returns requeue.ErrSuperseded if the pod does not have the IPs, or may not have
// them for long.
func stillHas(ctx context.Context, live client.Reader, pod *corev1.Pod, ips []netip.Addr) error {
	now, err := index.Get[corev1.Pod](ctx, live, client.ObjectKeyFromObject(pod))
	if err != nil {
		return err
	}
	has := conformance.AdoptableIPs(now, false)
	if now == nil || now.UID != pod.UID || slices.ContainsFunc(ips, func(a netip.Addr) bool { return !slices.Contains(has, a) }) {
		return fmt.Errorf("pod %s is gone, is being deleted, or is another one: %w", klog.KObj(pod), requeue.ErrSuperseded)
	}
	return nil
}
