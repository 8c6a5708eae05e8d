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
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/allocate"
	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/conformance"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reservation"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// adoptionError is the reason why the IPs that a pod runs with cannot become its fixed addresses, or why its lost
// entry cannot be restored.
type adoptionError string

func (e adoptionError) Error() string { return string(e) }

// errNotReported means that the agent does not report the IPs with dynamic entries as used by the pod yet. The status of the
// pod may be from before a reboot of the node, after which another pod may have got the IPs.
var errNotReported = errors.New("the agent has not reported the IPs of the pod yet")

// reportRetry is the time between two reconciles of a pod while the agent has not reported the IPs of the pod or has
// not answered a barrier. By default, agents report at most every 15 s.
const reportRetry = 5 * time.Second

// adopt restores the lost entry of a pod that our scheduler placed. For any other pod, it makes the IPs of the pod its fixed
// addresses if the pod is selected for adoption.
func (c *Controller) adopt(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var pod corev1.Pod
	if err := c.Cached.Get(ctx, req.NamespacedName, &pod); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	var result ctrl.Result
	var err error
	if id, ours := c.Adoption.Placed(&pod, c.Kinds, c.Workloads.Controller); ours {
		result, err = c.restoreLost(ctx, &pod, id)
	} else {
		result, err = c.fixRunning(ctx, &pod)
	}
	if errors.Is(err, errNotReported) || errors.Is(err, gather.ErrAsked) {
		return ctrl.Result{RequeueAfter: reportRetry}, nil
	}
	if notProved := (*gather.NotProvedError)(nil); errors.As(err, &notProved) {
		return ctrl.Result{RequeueAfter: notProved.RetryAfter(c.Clock.Now())}, nil
	}
	if superseded(err) {
		klog.FromContext(ctx).V(3).Info("State changed while the IPs of a pod were adopted or restored; retrying", "err", err)
		return ctrl.Result{RequeueAfter: source.AfterConflict}, nil
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("adopt or restore the IPs of pod %s: %w", req, err)
	}
	return result, nil
}

// fixRunning makes the IPs that a pod runs with its fixed addresses, if c.Adoption selects the pod. The pod is a pod of another
// scheduler, or a bare pod that our scheduler placed without a fixed address and whose labels the selector matches. If other
// IPs are reserved for the pod, fixRunning records an event; but with the failover policy Reassign it deletes the FixedIP,
// unless the pool of the pod's node has the reserved IPs.
func (c *Controller) fixRunning(ctx context.Context, pod *corev1.Pod) (ctrl.Result, error) {
	id, wanted, err := c.Adoption.Wants(pod, c.Kinds)
	if err != nil {
		c.Events.Eventf(pod, nil, corev1.EventTypeWarning, "InvalidAnnotation", "AdoptAddress", "%v; the IPs of the pod are not adopted", err)
	}
	ips := conformance.AdoptableIPs(pod, c.Adoption.IPv4Only)
	if err != nil || !wanted || len(ips) == 0 {
		return ctrl.Result{}, nil
	}
	record, err := index.Get[v1alpha1.FixedIP](ctx, c.Cached, client.ObjectKeyFromObject(pod))
	if err != nil {
		return ctrl.Result{}, err
	}
	held := c.Ledger.Held(id.Key())
	var reserved []reservation.Address
	if record != nil {
		reserved = reservation.Of(record)
	}
	node, missing := conformance.MissingReserved(held, reserved, ips)
	switch {
	case record != nil && record.DeletionTimestamp != nil:
		// The deletion of the FixedIP queues the pod again.
		return ctrl.Result{}, nil
	case len(missing) > 0 && record != nil && node != pod.Spec.NodeName && cmp.Or(record.Spec.Failover, c.Failover) == v1alpha1.Reassign:
		// The pod gets a new FixedIP with the IPs of its new node when the deletion of the old FixedIP has ended.
		return ctrl.Result{}, c.Live.Delete(ctx, record, client.Preconditions{UID: &record.UID, ResourceVersion: &record.ResourceVersion})
	case len(missing) > 0:
		c.reportMissing(pod, ips, node, missing)
		return ctrl.Result{}, nil
	case record != nil && len(record.Spec.IPs) > 0, c.hasEntries(held, pod.Spec.NodeName, ips):
		return ctrl.Result{}, nil
	}
	err = c.own(ctx, pod, id, ips, true)
	if why := adoptionError(""); errors.As(err, &why) {
		c.Events.Eventf(pod, nil, corev1.EventTypeWarning, "AdoptionFailed", "AdoptAddress", "The IPs of the pod are not adopted: %v; the pod runs on without a fixed address, and the controller tries again", why)
		return ctrl.Result{RequeueAfter: source.ResyncPeriod}, nil
	}
	if err == nil {
		metrics.Adoptions.Inc()
		c.Events.Eventf(pod, nil, corev1.EventTypeNormal, "Adopted", "AdoptAddress", "Reserved the pod's current IPs: %s", address.Join(ips))
	}
	return ctrl.Result{}, err
}

// hasEntries reports whether the pool of a node has owned entries of the pod for all IPs. Entries of unreserved pods
// do not count. The FixedIP controller creates the FixedIP from the owned entries.
func (c *Controller) hasEntries(held []ledger.NodeAddresses, node string, ips []netip.Addr) bool {
	return slices.ContainsFunc(held, func(h ledger.NodeAddresses) bool {
		return h.Node == node && !c.unreserved(h, node) && !slices.ContainsFunc(ips, func(a netip.Addr) bool { return !slices.Contains(h.Addrs, a) })
	})
}

// own writes owned entries for the IPs that the pod runs with. The FixedIP controller then creates the FixedIP, as
// for every claim: a pool entry, which is written with preconditions, prevents two pods from adopting one IP, and a
// FixedIP in a cache would not. own returns adoptionError if the IPs cannot become fixed addresses of the pod. If some of
// the IPs have dynamic or cooldown entries, own returns errNotReported, gather.ErrAsked or a gather.NotProvedError until
// the evidence shows that no other pod has these IPs. Unused entries that the pod got as an unreserved pod are put into
// cooldown first. dynamic is true if the IPs may have dynamic entries, which are withdrawn first (see
// conformance.AdoptionBlocker).
func (c *Controller) own(ctx context.Context, pod *corev1.Pod, id identity.Identity, ips []netip.Addr, dynamic bool) error {
	node := pod.Spec.NodeName
	if why := conformance.AdoptionConflict(c.Ledger, id, node, ips); why != "" {
		return adoptionError(why)
	}
	n, _ := c.Ledger.Node(node)
	var offered, cooling []netip.Addr
	for _, a := range ips {
		switch e, exists := n.Entries[a]; {
		case dynamic && exists && e.Kind == pool.Dynamic:
			offered = append(offered, a)
		case e.CoolsDownFrom(""), e.CoolsDownFrom(id.Key()):
			cooling = append(cooling, a)
		}
	}
	r := allocate.Request{Node: node, Addrs: ips, Entry: id.Entry(), Pod: pod, Check: func(n pool.NodePool) error {
		if other := n.OtherAddressOf(id.Key(), ips); other != nil {
			// The cache does not show the other entry yet. When it does, the FixedIP controller creates the FixedIP from that
			// entry.
			return fmt.Errorf("%w: %w", gather.ErrSuperseded, other)
		}
		if why := conformance.AdoptionBlocker(n, id, ips, dynamic); why != nil {
			return adoptionError(why.Error())
		}
		return nil
	}}
	if len(offered) > 0 {
		if slices.ContainsFunc(offered, func(a netip.Addr) bool { return n.Used[a] != id.Key() }) {
			return errNotReported
		}
		r.Addrs = offered
		return cmp.Or(c.Allocator.Withdraw(ctx, r), gather.ErrAsked)
	}
	if spare := unusedUnreserved(n, id.Key(), ips); len(spare) > 0 {
		err := c.Writer.Write(ctx, ciliumpool.WriteRequest{Node: node, FromAPIServer: true, Decide: func(n pool.NodePool) (edits []pool.EntryChange, _ error) {
			for _, a := range unusedUnreserved(n, id.Key(), ips) {
				edits = append(edits, n.Set(a, pool.CooldownEntry("", c.Clock.Now())))
			}
			return edits, nil
		}})
		return cmp.Or(err, gather.ErrAsked)
	}
	if len(cooling) > 0 {
		evidence, err := c.Prove(ctx, node, cooling, id.Key(), func() {}, pod.UID)
		if err != nil {
			return err
		}
		r.Seen = evidence.Entries
	}
	if err := c.Allocator.Allocate(ctx, r); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Reserved the current IPs of a running pod", "ips", ips, "node", node)
	return nil
}

// unusedUnreserved returns the addresses that a pod got as an unreserved pod and that are unused: neither in ips, the IPs
// that the pod runs with, nor reported as used by the agent. Their entries have to be put into cooldown before the pod
// gets other entries: a pool must not give a pod two addresses of one family.
func unusedUnreserved(n pool.NodePool, owner string, ips []netip.Addr) (unused []netip.Addr) {
	for a, e := range n.Entries {
		if e.OwnedBy(owner) && e.IsUnreserved() && !n.InUse(a) && !slices.Contains(ips, a) {
			unused = append(unused, a)
		}
	}
	return unused
}

// reportMissing records an event on a pod that runs with the IPs in used although the IPs in reserved are reserved for it.
// node is a node whose pool has one of the reserved IPs; empty: no pool has one.
func (c *Controller) reportMissing(pod *corev1.Pod, used []netip.Addr, node string, reserved []netip.Addr) {
	where := "for which no pool has an entry that names the pod; the condition Allocated of its FixedIP gives the reason"
	switch {
	case node == pod.Spec.NodeName:
		where = "which are in the pool of this node; delete the pod; the next pod on this node gets the reserved IPs"
	case node != "":
		scheduler := "that of fixedip-scheduler"
		if len(c.Adoption.Schedulers) > 0 {
			scheduler = c.Adoption.Schedulers[0]
		}
		where = fmt.Sprintf("which are in the pool of node %s; to place the next pod there, set schedulerName of the pod, or of the pod template of its workload, to %s", node, scheduler)
	}
	c.Events.Eventf(pod, nil, corev1.EventTypeWarning, "AddressMismatch", "AdoptAddress", "Pod runs with %s on node %s instead of its reserved IPs (%s), %s",
		address.Join(used), pod.Spec.NodeName, address.Join(reserved), where)
}
