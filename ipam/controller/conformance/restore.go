// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/conformance"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/request"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// A restart in place writes no entry. If the watch of the scheduler is behind, or the controller dies between a
// release and its confirmation, a pod can be bound because of an entry that was released. Any replica can detect such
// a pod from the objects: our scheduler bound the pod, and the pod has neither an entry nor a FixedIP with an IP.

// lost reports whether a pod that our scheduler placed has neither an owned entry nor a FixedIP of its name with an IP. The
// FixedIP of a slot has another name, so only the entry counts for the holder of a slot. lost also returns true if the pod has
// an entry or a FixedIP, but runs with an IP of a family in which neither an owned entry nor the FixedIP has an address. An
// entry that the pod got on its node as an unreserved pod does not count. The entries of an unfinished move do not count
// either, because a pod is bound only after the move.
//
// lost returns false for a pod that is not bound, is terminal or is being deleted, and while a FixedIP with the name of the pod
// is being deleted.
func (c *Controller) lost(ctx context.Context, pod *corev1.Pod, id identity.Identity) (bool, error) {
	if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || podutil.IsTerminal(pod) {
		return false, nil
	}
	record, err := index.Get[v1alpha1.FixedIP](ctx, c.Cached, client.ObjectKeyFromObject(pod))
	if err != nil || record != nil && record.DeletionTimestamp != nil {
		return false, err
	}
	fixed := c.fixed(pod, id, record)
	return len(fixed) == 0 || len(conformance.OtherFamilies(conformance.AdoptableIPs(pod, c.Adoption.IPv4Only), fixed)) > 0, nil
}

// fixed returns the addresses of the owned entries and of the FixedIP of a pod. record may be nil. See lost.
func (c *Controller) fixed(pod *corev1.Pod, id identity.Identity, record *v1alpha1.FixedIP) (fixed []netip.Addr) {
	for _, h := range c.Ledger.Held(id.Key()) {
		if !c.unreserved(h, pod.Spec.NodeName) {
			fixed = append(fixed, h.Addrs...)
		}
	}
	if record != nil {
		fixed = append(fixed, address.ParseAll(record.Spec.IPs)...)
	}
	return fixed
}

// unreserved reports whether h is on the node and its entry is that of an unreserved pod. Such an entry is removed when no pod
// needs it any more.
func (c *Controller) unreserved(h ledger.NodeAddresses, node string) bool {
	return h.Node == node && c.Ledger.EntryOf(h).IsUnreserved()
}

// ifLost returns the request for a pod that has lost its entry, or for which the cache could not be read; none for
// other pods. It returns none for a pod of a ReplicaSet that c.Workloads has not seen yet, because the identity of the pod is
// unknown then; the next resync checks the pod again.
func (c *Controller) ifLost(ctx context.Context, obj client.Object) []ctrl.Request {
	pod := obj.(*corev1.Pod)
	id, ours := c.Adoption.Placed(pod, c.Kinds, c.Workloads.Controller)
	if !ours {
		return nil
	}
	if lost, err := c.lost(ctx, pod, id); err == nil && !lost {
		return nil
	}
	return []ctrl.Request{{NamespacedName: client.ObjectKeyFromObject(pod)}}
}

// allLost returns the names, as "namespace/name", of the pods that have lost their entries, on all nodes that have a
// CiliumNode. It reads the pods node by node, because a list of all pods of a large cluster would need too much memory.
func (c *Controller) allLost() []string {
	ctx := context.Background()
	var found []string
	for _, n := range c.Ledger.Nodes() {
		pods, err := index.PodsOnNode(ctx, c.Cached, n.Name)
		if err != nil {
			klog.Background().Error(err, "Failed to list the pods of a node; the next resync retries", "node", n.Name)
			continue
		}
		for i := range pods {
			for _, req := range c.ifLost(ctx, &pods[i]) {
				found = append(found, req.String())
			}
		}
	}
	return found
}

// restoreLost restores the entry that a pod of our scheduler has lost. If the pod already runs with an IP,
// restoreLost writes an owned entry for that IP, unless the IP has a dynamic entry, belongs to another pod, or is not
// among the IPs that the pod requests. If the entry cannot be restored or written, restoreLost evicts the pod or only
// reports the problem (see evictUnreserved). The scheduler claims an IP for the next pod. If the pod still has
// a fixed address of another family, ownOtherFamilies replaces even a dynamic entry, and the pod is not evicted.
func (c *Controller) restoreLost(ctx context.Context, pod *corev1.Pod, id identity.Identity) (ctrl.Result, error) {
	if lost, err := c.lost(ctx, pod, id); !lost || err != nil {
		return ctrl.Result{}, err
	}
	may, workload, err := c.requestAllows(pod, id)
	if err != nil {
		return ctrl.Result{}, err
	}
	record, err := index.Get[v1alpha1.FixedIP](ctx, c.Live, client.ObjectKeyFromObject(pod))
	if err != nil {
		return ctrl.Result{}, err
	}
	ips := conformance.AdoptableIPs(pod, c.Adoption.IPv4Only)
	if fixed := c.fixed(pod, id, record); len(fixed) > 0 {
		// If the cache did not show the FixedIP, the controller verify compares the pod with it.
		return ctrl.Result{}, c.ownOtherFamilies(ctx, pod, id, conformance.OtherFamilies(ips, fixed), may)
	}
	switch {
	case len(ips) == 0:
		var known bool
		if known, err = c.restoreEntry(ctx, pod, id, may); err == nil && !known {
			err = adoptionError(fmt.Sprintf("the pool of node %s has no entry that reserves an IP for the pod", pod.Spec.NodeName))
		}
	case slices.ContainsFunc(ips, func(a netip.Addr) bool { return !may(a) }):
		err = adoptionError(fmt.Sprintf("the pod runs with %s, but requests other IPs", address.Join(ips)))
	default:
		err = c.own(ctx, pod, id, ips, false)
	}
	if why := adoptionError(""); errors.As(err, &why) {
		return c.evictUnreserved(ctx, pod, id, workload, why)
	}
	return ctrl.Result{}, err
}

// ownOtherFamilies writes owned entries for the IPs that a pod runs with in the families in which the pod has no fixed
// address. This is necessary if a user created the FixedIP with addresses of the other families only, and the pool with the
// claim of the pod was lost before the FixedIP recorded the claimed addresses.
func (c *Controller) ownOtherFamilies(ctx context.Context, pod *corev1.Pod, id identity.Identity, ips []netip.Addr, may func(netip.Addr) bool) error {
	if len(ips) == 0 {
		return nil
	}
	var err error = adoptionError("the pod requests other IPs")
	if !slices.ContainsFunc(ips, func(a netip.Addr) bool { return !may(a) }) {
		err = c.own(ctx, pod, id, ips, true)
	}
	if why := adoptionError(""); errors.As(err, &why) {
		c.Events.Eventf(pod, nil, corev1.EventTypeWarning, "AddressMismatch", "AdoptAddress", "Pod runs with %s, which is not reserved for it: %v; delete the pod; the next pod gets an IP that is reserved for it", address.Join(ips), why)
		return nil
	}
	return err
}

// requestAllows returns a function that reports whether a pod may have an IP according to its request. It also returns the
// workload of the pod, which is nil if the pod is a bare pod or the workload does not exist.
func (c *Controller) requestAllows(pod *corev1.Pod, id identity.Identity) (may func(netip.Addr) bool, workload *identity.Workload, err error) {
	if workload, err = c.workload(id.Owner, id.Namespace); err != nil {
		return nil, nil, err
	}
	of := identity.Workload{GroupKind: id.Owner.GroupKind(), Name: id.Owner.Name}
	if workload != nil {
		of = *workload
	}
	requested, requests, err := request.Of(pod, of, id)
	return func(a netip.Addr) bool {
		// The scheduler refuses a pod whose request is invalid. If such a pod is bound nevertheless, it may have any IP.
		return err != nil || !requests || !slices.Contains(requested.Families(), address.Of(a)) || requested.Contains(a)
	}, workload, nil
}

// restoreEntry restores the entry that was released from the pod, if the entry is still in cooldown on the pod's node
// and the pod awaits an IP. known is false if the pool of the node has no such entry, for example because the
// CiliumNode was deleted and created again after the claim, or if no such entry may be restored (see
// conformance.RestoreReleased and may). If the ledger does not have that pool, known is true.
func (c *Controller) restoreEntry(ctx context.Context, pod *corev1.Pod, id identity.Identity, may func(netip.Addr) bool) (known bool, err error) {
	allowed := func(a netip.Addr) bool {
		owner, reserved := c.Ledger.ReservedFor(a)
		return may(a) && (!reserved || owner == id.Key())
	}
	n, ok := c.Ledger.Node(pod.Spec.NodeName)
	if !ok || len(conformance.RestoreReleased(n, id, allowed)) == 0 {
		return !ok, nil
	}
	now, err := index.Get[corev1.Pod](ctx, c.Live, client.ObjectKeyFromObject(pod))
	switch {
	case err != nil:
		return true, err
	case now == nil || now.UID != pod.UID || !podutil.AwaitsIP(now):
		return true, fmt.Errorf("pod %s is gone, was replaced or no longer awaits an IP: %w", klog.KObj(pod), gather.ErrSuperseded)
	}
	var restored []pool.EntryChange
	err = c.Writer.Write(ctx, ciliumpool.WriteRequest{Node: n.Name, FromAPIServer: true, RequireUnchangedSpec: true, SkipRateLimit: true, Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
		edits := conformance.RestoreReleased(n, id, allowed)
		if len(edits) > 0 {
			restored = edits
		}
		return edits, nil
	}})
	if err != nil {
		return true, err
	}
	for _, e := range restored {
		klog.FromContext(ctx).Info("Entry restored", "node", n.Name, "ip", e.Addr)
		c.Events.Eventf(pod, nil, corev1.EventTypeNormal, "AddressRestored", "AdoptAddress", "IP %s was released although the pod is bound to node %s; the IP is reserved for the pod again", e.Addr, n.Name)
	}
	return true, nil
}

// evictUnreserved evicts a pod for which no IP is reserved, when Config.RestartAfter has passed since the start of the pod:
// the pod has no IP yet, or its IPs cannot become its fixed addresses. If the pod is a bare pod, if its mismatch policy is
// not Restart, or if the eviction is blocked, evictUnreserved only records an event. why is part of the event.
func (c *Controller) evictUnreserved(ctx context.Context, pod *corev1.Pod, id identity.Identity, workload *identity.Workload, why adoptionError) (ctrl.Result, error) {
	report := func(end string) {
		c.Events.Eventf(pod, nil, corev1.EventTypeWarning, "AddressMismatch", "AdoptAddress", "No IP is reserved for pod %s: %v; %s", klog.KObj(pod), why, end)
	}
	policy := c.policy(pod, workload)
	begin := pod.CreationTimestamp.Time
	if pod.Status.StartTime != nil {
		begin = pod.Status.StartTime.Time
	}
	if wait := begin.Add(c.Config.RestartAfter).Sub(c.Clock.Now()); wait > 0 {
		return ctrl.Result{RequeueAfter: min(wait, c.Config.RestartAfter)}, nil
	}
	if policy != identity.Restart || metav1.GetControllerOfNoCopy(pod) == nil {
		report("delete the pod (a bare pod has to be created again); the next pod gets an IP that is reserved for it")
		return ctrl.Result{RequeueAfter: source.ResyncPeriod}, nil
	}
	now, err := index.Get[corev1.Pod](ctx, c.Live, client.ObjectKeyFromObject(pod))
	if err != nil || now == nil || now.UID != pod.UID {
		return ctrl.Result{}, err
	}
	// The cache may not show the claim yet.
	n, err := c.Writer.Get(ctx, pod.Spec.NodeName)
	if err != nil || slices.ContainsFunc(n.Owns(id.Key()), func(a netip.Addr) bool { return !n.Entries[a].IsUnreserved() }) {
		return ctrl.Result{}, err
	}
	later, err := c.evict(ctx, client.ObjectKeyFromObject(pod), id.Owner, now)
	switch {
	case errors.Is(err, errBlocked):
		report("the pod can't be evicted now: " + err.Error())
		return ctrl.Result{RequeueAfter: retryBlocked}, nil
	case err != nil || later > 0:
		return ctrl.Result{RequeueAfter: later}, err
	}
	report("the pod was evicted; the next pod gets an IP that is reserved for it")
	return ctrl.Result{}, nil
}
