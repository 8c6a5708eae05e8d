// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/podutil"
)

// nodeOf returns the Node of a CiliumNode; nil if there is none. It asks the API server if the cache has none: a pool that
// is filled before its node is known to be strict would have to be emptied again.
func (r *Reconciler) nodeOf(ctx context.Context, name string) (*corev1.Node, error) {
	if node, err := index.Node(ctx, r.Cached, name); node != nil || err != nil {
		return node, err
	}
	return index.Node(ctx, r.Live, name)
}

// heldOn returns a function that reports whether a pod on the node has an address by the cache, which is earlier than the
// report of the agent.
func (r *Reconciler) heldOn(ctx context.Context, node string) func(netip.Addr) bool {
	return func(a netip.Addr) bool {
		pods, err := index.PodsWithIP(ctx, r.Cached, a)
		return err != nil || slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Spec.NodeName == node })
	}
}

// needsEntry reports whether an unreserved pod needs the entry with its name on a node: it is bound to the node, or not
// bound yet. A pod with an identity gets an entry of its identity, which the other one is in the way of.
func needsEntry(ctx context.Context, from client.Reader, kinds identity.Kinds, node, namespace, name string) (bool, error) {
	var pod corev1.Pod
	err := from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &pod)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read pod %s/%s: %w", namespace, name, err)
	}
	if podutil.IsTerminal(&pod) {
		return false, nil
	}
	if place := identity.Place(&pod); place != "" {
		return place == node, nil
	}
	_, fixed, err := identity.Of(&pod, kinds, identity.NoControllers)
	return err != nil || !fixed, nil
}

// podAddresses returns the pods among pods that have IPs or need some, except those with a FixedIP: the controller fixedip
// adds their entries.
func (r *Reconciler) podAddresses(ctx context.Context, pods []corev1.Pod) ([]nodepool.PodAddresses, error) {
	var list []nodepool.PodAddresses
	for i := range pods {
		pod := &pods[i]
		if pod.Spec.HostNetwork || pod.DeletionTimestamp != nil || podutil.IsTerminal(pod) {
			continue
		}
		var record v1alpha1.FixedIP
		err := r.Cached.Get(ctx, client.ObjectKeyFromObject(pod), &record)
		if err == nil && len(record.Spec.IPs) > 0 {
			continue
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("read FixedIP %s/%s from the cache: %w", pod.Namespace, pod.Name, err)
		}
		list = append(list, nodepool.PodAddresses{Namespace: pod.Namespace, Name: pod.Name, Addrs: podutil.IPs(pod)})
	}
	return list, nil
}
