// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
)

// SlotRequest returns the request for a workload, named as in pool entries, if its kind has slots.
func SlotRequest(kinds identity.Kinds, resource string) []reconcile.Request {
	namespace, name, _ := strings.Cut(resource, "/")
	label, _, ok := strings.Cut(name, "/")
	if kind, known := kinds.Labelled(label); !ok || !known || kind.Identity != identity.Slot {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}}
}

// allSlots returns the requests for all workloads with slots.
func (c *Controller) allSlots() []reconcile.Request {
	var all []reconcile.Request
	for _, resource := range c.Ledger.Workloads() {
		all = append(all, SlotRequest(c.Kinds, resource)...)
	}
	return all
}

// ofSlot returns the request for the workload of a slot.
func (c *Controller) ofSlot(record *v1alpha1.FixedIP) []reconcile.Request {
	o := identity.OwnerOf(record)
	return SlotRequest(c.Kinds, identity.Resource(record.Namespace, o.GroupKind(), o.Name))
}

// ofPod returns the requests for the identity of a pod and for the workload whose slot it holds.
func (c *Controller) ofPod(ctx context.Context, obj client.Object) []reconcile.Request {
	pod := obj.(*corev1.Pod)
	key := pool.OwnerKey(pod.Namespace, pod.Name)
	held := c.Ledger.Held(key)
	var requests []reconcile.Request
	for _, h := range held {
		if label, name, ok := c.Ledger.EntryOf(h).WorkloadRef(); ok {
			requests = append(requests, SlotRequest(c.Kinds, pool.WorkloadKey(pod.Namespace, label, name))...)
		}
	}
	_, fixed, err := identity.Of(pod, c.Kinds, identity.NoControllers)
	entries := len(held) + len(c.Ledger.Away(key)) + len(c.Ledger.Arriving(key))
	if err == nil && fixed || entries > 0 || c.recorded(ctx, pod) {
		requests = append(requests, source.Request(key)...)
	}
	return requests
}

// recorded reports whether a pod has a FixedIP: that of a pod without a workload may lack its entry.
func (c *Controller) recorded(ctx context.Context, pod *corev1.Pod) bool {
	var record v1alpha1.FixedIP
	return c.Cached.Get(ctx, client.ObjectKeyFromObject(pod), &record, client.UnsafeDisableDeepCopy) == nil
}

// OfWorkload returns the requests for every identity of a workload, recorded or only claimed.
func (c *Controller) OfWorkload(ctx context.Context, w identity.Workload) []reconcile.Request {
	var requests []reconcile.Request
	var records v1alpha1.FixedIPList
	if err := c.Cached.List(ctx, &records, index.OfWorkload(w.Resource()), client.UnsafeDisableDeepCopy); err != nil {
		klog.FromContext(ctx).Error(err, "FixedIPs not listed from the cache; the next resync looks at them", "kind", w.Kind, "workload", klog.KRef(w.Namespace, w.Name))
	}
	for _, record := range records.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&record)})
	}
	for _, owner := range c.Ledger.OwnersOf(w.Namespace, identity.Label(w.GroupKind), w.Name) {
		requests = append(requests, source.Request(owner)...)
	}
	return requests
}

// OfNode returns the requests for the identities whose addresses have their home on a node that appeared or has other
// subnets, and that have no entry there: their entries can be written now. At the start all identities are queued
// anyway.
func (c *Controller) OfNode(node string) []reconcile.Request {
	n, ok := c.Ledger.Node(node)
	if !ok || c.PoolsSeen == nil || !c.PoolsSeen() || len(n.Subnets) == 0 {
		return nil
	}
	var requests []reconcile.Request
	for _, k := range c.Ledger.ReservationsIn(n.Subnets...) {
		if slices.ContainsFunc(k.Addrs, func(a netip.Addr) bool { return n.Home(a) && !n.Entries[a].OwnedBy(k.Owner) }) {
			requests = append(requests, source.Request(k.Record)...)
		}
	}
	return requests
}
