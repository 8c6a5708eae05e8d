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
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
	"fixedip.io/fixedip/ipam/core/reservation"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
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
	err = c.own(ctx, pod, id, ips, true)
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

// own makes the entries of the IPs that a pod runs with the pod's own. The FixedIP controller then creates the FixedIP, as
// for every claim, and waits for the agent: an entry in the pool, which is written with preconditions, keeps two pods from
// adopting one IP, and a FixedIP in a cache would not. It returns errNotKept if the pod can't keep the IPs. dynamic is
// whether they may be dynamic entries (see conformance.WhyNotKept).
func (c *Controller) own(ctx context.Context, pod *corev1.Pod, id identity.Identity, ips []netip.Addr, dynamic bool) error {
	if err := stillHas(ctx, c.Live, pod, ips); err != nil {
		return err
	}
	node := pod.Spec.NodeName
	if other, overlaps := c.Ledger.OverlapsWith(node); overlaps {
		return errNotKept(fmt.Sprintf("the subnets of node %s overlap those of node %s", node, other))
	}
	for _, a := range ips {
		if owner, reserved := c.Ledger.ReservedFor(a); reserved && owner != id.Key() {
			return errNotKept(fmt.Sprintf("%s is reserved for another pod by a FixedIP", a))
		}
	}
	_, err := c.Writer.Apply(ctx, ciliumpool.Change{
		WriteRequest: ciliumpool.WriteRequest{Node: node, FromAPIServer: true, Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
			if other := n.OtherAddressOf(id.Key(), ips); other != nil {
				// The cache does not show that entry yet. Once it does, the FixedIP controller makes a FixedIP of it.
				return nil, fmt.Errorf("%w: %w", requeue.ErrSuperseded, other)
			}
			if why := conformance.WhyNotKept(n, id, ips, dynamic); why != nil {
				return nil, errNotKept(why.Error())
			}
			return reclaim.AllocateEntries(n, ips, id.Entry(), func(netip.Addr) bool { return true }, c.Clock.Now())
		}},
		// If the pod has ended during the write, its agent may have given an IP that was offered to all pods to another.
		Confirm: func(ctx context.Context, written []pool.EntryChange) ([]pool.EntryChange, error) {
			err := stillHas(ctx, c.Live, pod, ips)
			if !errors.Is(err, requeue.ErrSuperseded) {
				return nil, err
			}
			return slices.DeleteFunc(slices.Clone(written), func(e pool.EntryChange) bool { return e.From == nil }), nil
		},
	})
	switch {
	case errors.Is(err, ciliumpool.ErrUndone), errors.Is(err, ciliumpool.ErrGone), errors.Is(err, pool.ErrTaken):
		return fmt.Errorf("make %s the pod's own: %w: %w", address.Join(ips), requeue.ErrSuperseded, err)
	case err != nil:
		return err
	}
	klog.FromContext(ctx).Info("Running pod made the owner of its IPs", "ips", ips, "node", node)
	return nil
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
