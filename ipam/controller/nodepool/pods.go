// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/podutil"
)

// nodeOf is the Node of a CiliumNode; nil: there is none. A pool that was filled before it was known
// that the node is strict would have to be emptied again.
func (r *Reconciler) nodeOf(ctx context.Context, name string) (*corev1.Node, error) {
	if node, err := index.Node(ctx, r.Cached, name); node != nil || err != nil {
		return node, err
	}
	return index.Node(ctx, r.Live, name)
}

// needsEntry tells whether a pod needs the ordinary entry of its name on a node: it is there, or
// about to be placed. One with an identity has an entry that is kept, and ordinary ones are in its
// way.
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

// livePods are the pods that are bound to a node, as the API server has them.
func (r *Reconciler) livePods(ctx context.Context, node string) ([]corev1.Pod, error) {
	var pods corev1.PodList
	if err := r.Live.List(ctx, &pods, client.MatchingFields{"spec.nodeName": node}); err != nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	return pods.Items, nil
}

// occupants are those of the pods that have or need an address. What a record keeps for a pod is
// projected, and not replaced.
func (r *Reconciler) occupants(ctx context.Context, pods []corev1.Pod) ([]nodepool.PodAddresses, error) {
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
