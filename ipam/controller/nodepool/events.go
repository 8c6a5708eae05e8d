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

// nodeEvents requests the pool of a Node that appears, or whose labels, subnets, readiness or pod capacity change.
func nodeEvents() handler.Funcs {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q source.Queue) { q.Add(source.Named(e.Object.GetName())) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q source.Queue) {
			before, after := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
			a, b := before.Status.Allocatable[corev1.ResourcePods], after.Status.Allocatable[corev1.ResourcePods]
			if !maps.Equal(before.Labels, after.Labels) || !a.Equal(b) || nodeutil.IsReady(before) != nodeutil.IsReady(after) || !slices.Equal(before.Spec.PodCIDRs, after.Spec.PodCIDRs) {
				q.Add(source.Named(after.Name))
			}
		},
	}
}

// podEvents requests the pool of a pod's node if the pod may need an entry there, or needs it no longer. The end of a pod
// may also end the cooldown of its address.
func (r *Reconciler) podEvents() handler.Funcs {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q source.Queue) {
			r.podChanged(ctx, e.Object.(*corev1.Pod), q)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q source.Queue) {
			before, after := e.ObjectOld.(*corev1.Pod), e.ObjectNew.(*corev1.Pod)
			switch {
			case before.UID != after.UID, podutil.IsTerminal(before) != podutil.IsTerminal(after):
				r.podEnded(before, q)
				r.podEnded(after, q)
			case identity.Place(before) != identity.Place(after), !slices.Equal(before.Status.PodIPs, after.Status.PodIPs):
				r.podChanged(ctx, after, q)
				r.otherPools(after, q)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q source.Queue) { r.podEnded(e.Object.(*corev1.Pod), q) },
	}
}

func (r *Reconciler) podEnded(pod *corev1.Pod, q source.Queue) {
	if place := identity.Place(pod); place != "" {
		q.Add(source.Named(place))
	}
	r.otherPools(pod, q)
}

// otherPools requests the pools of other nodes that have an entry with a pod's name. A scheduler may have claimed an entry
// on a strict node for a pod that was then bound to another node, or to none.
func (r *Reconciler) otherPools(pod *corev1.Pod, q source.Queue) {
	for _, h := range r.Ledger.Held(pool.OwnerKey(pod.Namespace, pod.Name)) {
		if h.Node != identity.Place(pod) {
			q.Add(source.Named(h.Node))
		}
	}
}

// coolsDownFrom reports whether an address that was released from a pod's name is in cooldown on a node. It is left for
// the pod until the pod has another address.
func (r *Reconciler) coolsDownFrom(node string, pod *corev1.Pod) bool {
	n, _ := r.Ledger.Node(node)
	for _, e := range n.Entries {
		if e.CoolsDownFrom(pool.OwnerKey(pod.Namespace, pod.Name)) {
			return true
		}
	}
	return false
}

// podChanged requests the pool of a pod's node if the pod waits for an IP or had an address that is in cooldown there, and
// on a strict node in any case.
func (r *Reconciler) podChanged(ctx context.Context, pod *corev1.Pod, q source.Queue) {
	place := identity.Place(pod)
	if place == "" || pod.Spec.HostNetwork {
		return
	}
	var node corev1.Node
	err := r.Cached.Get(ctx, client.ObjectKey{Name: place}, &node)
	if err != nil || podutil.AwaitsIP(pod) || r.coolsDownFrom(place, pod) || r.StrictNodes.Matches(labels.Set(node.Labels)) {
		q.Add(source.Named(place))
	}
}
