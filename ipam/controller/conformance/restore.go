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
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/requeue"
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

// A bind writes nothing if the entry exists already. If the watch of the scheduler is behind, or the controller dies
// between a release and its confirmation, a pod is bound because of an entry that was released. The recorded state shows
// that at any time: our scheduler bound the pod, and there is neither an entry for it nor a FixedIP with an IP.

// lost reports whether a pod that our scheduler placed has neither an entry of its own nor a FixedIP with an IP. The
// entries of an unfinished move are none: a pod is bound when the move is done.
func (c *Controller) lost(ctx context.Context, pod *corev1.Pod, id identity.Identity) (bool, error) {
	if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || podutil.IsTerminal(pod) {
		return false, nil
	}
	if slices.ContainsFunc(c.Ledger.Held(id.Key()), func(h ledger.NodeAddresses) bool { return !c.unreserved(h, pod.Spec.NodeName) }) {
		return false, nil
	}
	record, err := index.Get[v1alpha1.FixedIP](ctx, c.Cached, client.ObjectKeyFromObject(pod))
	if err != nil {
		return false, err
	}
	return record == nil || record.DeletionTimestamp == nil && len(record.Spec.IPs) == 0, nil
}

// unreserved reports whether an entry on a node is the pod's only as long as the pod exists.
func (c *Controller) unreserved(h ledger.NodeAddresses, node string) bool {
	return h.Node == node && c.Ledger.EntryOf(h).IsUnreserved()
}

// ifLost returns the request for a pod that has lost its entry, or if that is not known.
func (c *Controller) ifLost(ctx context.Context, obj client.Object) []reconcile.Request {
	pod := obj.(*corev1.Pod)
	id, ours := c.Adoption.Placed(pod, c.Kinds)
	if !ours {
		return nil
	}
	if lost, err := c.lost(ctx, pod, id); err == nil && !lost {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(pod)}}
}

// allLost returns all pods that have lost their entries. It reads the pods of one node after another: all pods of a
// large cluster are too many to hold at once.
func (c *Controller) allLost() []string {
	ctx := context.Background()
	var found []string
	for _, n := range c.Ledger.Nodes() {
		pods, err := index.PodsOnNode(ctx, c.Cached, n.Name)
		if err != nil {
			klog.Background().Error(err, "Pods not listed; the next resync looks at them", "node", n.Name)
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

// restoreLost gives a pod of our scheduler that has lost its entry that back. A pod that runs with an IP which was never
// a dynamic entry keeps that. Any other pod runs with a wrong IP, and is evicted: the scheduler claims an IP for the next.
func (c *Controller) restoreLost(ctx context.Context, pod *corev1.Pod, id identity.Identity) (reconcile.Result, error) {
	if lost, err := c.lost(ctx, pod, id); !lost || err != nil {
		return reconcile.Result{}, err
	}
	may, workload, err := c.mayHave(pod, id)
	if err != nil {
		return reconcile.Result{}, err
	}
	ips := conformance.AdoptableIPs(pod, c.Adoption.IPv4Only)
	switch {
	case len(ips) == 0:
		return reconcile.Result{}, c.restoreEntry(ctx, pod, id, may)
	case slices.ContainsFunc(ips, func(a netip.Addr) bool { return !may(a) }):
		err = errNotKept("it asks for other IPs")
	default:
		var record *v1alpha1.FixedIP
		record, err = index.Get[v1alpha1.FixedIP](ctx, c.Live, client.ObjectKeyFromObject(pod))
		if err == nil && record != nil && len(record.Spec.IPs) > 0 {
			// The cache does not show it yet. The controller verify compares it.
			return reconcile.Result{}, nil
		}
		if err == nil {
			err = c.own(ctx, pod, id, ips, false)
		}
	}
	if why := errNotKept(""); errors.As(err, &why) {
		return c.evictUnreserved(ctx, pod, id, workload, why)
	}
	return reconcile.Result{}, err
}

// mayHave returns which IPs a pod may have by what it asks for, and its workload; nil: it has none, or that does not
// exist.
func (c *Controller) mayHave(pod *corev1.Pod, id identity.Identity) (may func(netip.Addr) bool, workload *identity.Workload, err error) {
	if workload, err = c.workload(id.Owner, id.Namespace); err != nil {
		return nil, nil, err
	}
	of := identity.Workload{GroupKind: id.Owner.GroupKind(), Name: id.Owner.Name}
	if workload != nil {
		of = *workload
	}
	requested, requests, err := request.Of(pod, of, id.Itself())
	return func(a netip.Addr) bool {
		// The scheduler refuses a request that can't be read. A pod that is bound all the same has what it has.
		return err != nil || !requests || !slices.Contains(requested.Families(), address.Of(a)) || requested.Contains(a)
	}, workload, nil
}

// restoreEntry writes the entry again that was released from the pod's name, while it cools down on the pod's node and
// the pod awaits an IP.
func (c *Controller) restoreEntry(ctx context.Context, pod *corev1.Pod, id identity.Identity, may func(netip.Addr) bool) error {
	allowed := func(a netip.Addr) bool {
		owner, reserved := c.Ledger.ReservedFor(a)
		return may(a) && (!reserved || owner == id.Key())
	}
	n, ok := c.Ledger.Node(pod.Spec.NodeName)
	if !ok || len(conformance.RestoreReleased(n, id, allowed)) == 0 {
		return nil
	}
	now, err := index.Get[corev1.Pod](ctx, c.Live, client.ObjectKeyFromObject(pod))
	switch {
	case err != nil:
		return err
	case now == nil || now.UID != pod.UID || !podutil.AwaitsIP(now):
		return fmt.Errorf("pod %s is gone or has its IP: %w", klog.KObj(pod), requeue.ErrSuperseded)
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
		return err
	}
	for _, e := range restored {
		klog.FromContext(ctx).Info("Entry restored", "node", n.Name, "ip", e.Addr)
		c.Events.Eventf(pod, nil, corev1.EventTypeNormal, "AddressRestored", "AdoptAddress", "It was bound to node %s when its IP %s had just been released; the IP is reserved for it again", n.Name, e.Addr)
	}
	return nil
}

// evictUnreserved evicts a pod that can't keep its IPs, if its policy says so, after the grace period of every wrong IP.
func (c *Controller) evictUnreserved(ctx context.Context, pod *corev1.Pod, id identity.Identity, workload *identity.Workload, why errNotKept) (reconcile.Result, error) {
	report := func(end string) {
		c.Events.Eventf(pod, nil, corev1.EventTypeWarning, "AddressMismatch", "AdoptAddress", "It runs without a reserved IP and can't keep the IP that it has: %v; %s", why, end)
	}
	policy := c.policy(pod, workload)
	begin := pod.CreationTimestamp.Time
	if pod.Status.StartTime != nil {
		begin = pod.Status.StartTime.Time
	}
	if wait := begin.Add(c.Config.RestartAfter).Sub(c.Clock.Now()); wait > 0 {
		return reconcile.Result{RequeueAfter: min(wait, c.Config.RestartAfter)}, nil
	}
	if policy != identity.Restart || metav1.GetControllerOfNoCopy(pod) == nil {
		report("delete the pod, and the next one has an IP of its own")
		return reconcile.Result{RequeueAfter: source.ResyncPeriod}, nil
	}
	now, err := index.Get[corev1.Pod](ctx, c.Live, client.ObjectKeyFromObject(pod))
	if err != nil || now == nil || now.UID != pod.UID {
		return reconcile.Result{}, err
	}
	later, err := c.evict(ctx, client.ObjectKeyFromObject(pod), id.Owner, now)
	switch {
	case errors.Is(err, errBlocked):
		report("it can't be evicted now: " + err.Error())
		return reconcile.Result{RequeueAfter: retryBlocked}, nil
	case err != nil || later > 0:
		return reconcile.Result{RequeueAfter: later}, err
	}
	report("it was evicted and starts again with another")
	return reconcile.Result{}, nil
}
