// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
)

// nodeEvents asks for a node's pool when its Node comes, and when another pool is due to it: its
// labels, its subnets or the number of its pods are others.
func nodeEvents() handler.Funcs {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q source.Queue) { q.Add(Request(e.Object.GetName())) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q source.Queue) {
			before, after := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
			a, b := before.Status.Allocatable[corev1.ResourcePods], after.Status.Allocatable[corev1.ResourcePods]
			if !maps.Equal(before.Labels, after.Labels) || !a.Equal(b) || nodeutil.IsReady(before) != nodeutil.IsReady(after) || !slices.Equal(before.Spec.PodCIDRs, after.Spec.PodCIDRs) {
				q.Add(Request(after.Name))
			}
		},
	}
}

// podEvents asks for the pool of a pod's node where the pod may need an entry there, or need it no
// more. A released address may be had again, too, when the pod that has it is gone.
func (r *Reconciler) podEvents() handler.Funcs {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q source.Queue) {
			r.podCame(ctx, e.Object.(*corev1.Pod), q)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q source.Queue) {
			before, after := e.ObjectOld.(*corev1.Pod), e.ObjectNew.(*corev1.Pod)
			switch {
			case before.UID != after.UID, podutil.IsTerminal(before) != podutil.IsTerminal(after):
				r.podWent(before, q)
				r.podWent(after, q)
			case identity.Place(before) != identity.Place(after), !slices.Equal(before.Status.PodIPs, after.Status.PodIPs):
				r.podCame(ctx, after, q)
				r.elsewhere(after, q)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q source.Queue) { r.podWent(e.Object.(*corev1.Pod), q) },
	}
}

func (r *Reconciler) podWent(pod *corev1.Pod, q source.Queue) {
	if place := identity.Place(pod); place != "" {
		q.Add(Request(place))
	}
	r.elsewhere(pod, q)
}

// elsewhere asks for the pools of other nodes that have an entry of a pod's name: one that was claimed on a
// strict node for a pod that was bound to another afterwards, or never, is vacant by that alone.
func (r *Reconciler) elsewhere(pod *corev1.Pod, q source.Queue) {
	for _, h := range r.Ledger.Held(pool.OwnerKey(pod.Namespace, pod.Name)) {
		if h.Node != identity.Place(pod) {
			q.Add(Request(h.Node))
		}
	}
}

// restsFor tells whether an address that was taken from a pod's name rests on a node. Once the pod has
// another it has nothing to wait for.
func (r *Reconciler) restsFor(node string, pod *corev1.Pod) bool {
	n, _ := r.Ledger.Node(node)
	for _, e := range n.Entries {
		if e.CoolsDownFrom(pool.OwnerKey(pod.Namespace, pod.Name)) {
			return true
		}
	}
	return false
}

// podCame asks for the pool of a node where a pod waits for an address, and of a strict one for what a
// pod has got, too. What rests of its own it may have taken.
func (r *Reconciler) podCame(ctx context.Context, pod *corev1.Pod, q source.Queue) {
	place := identity.Place(pod)
	if place == "" || pod.Spec.HostNetwork {
		return
	}
	var node corev1.Node
	err := r.Cached.Get(ctx, client.ObjectKey{Name: place}, &node)
	if err != nil || podutil.AwaitsIP(pod) || r.restsFor(place, pod) || r.Config.StrictNodes.Matches(labels.Set(node.Labels)) {
		q.Add(Request(place))
	}
}
