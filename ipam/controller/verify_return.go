// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodeutil"
)

// returns are the nodes but its own that hold something for a pod of our scheduler and would have it, made again.
// Where a node takes no pods, or not this one, a pod that was restarted for its address would wait for it, and is better
// off as it is.
//
// The caches have neither tolerations nor taints: what they say is asked of the API server before anything is done.
func (r *verifyReconciler) returns(ctx context.Context, from client.Reader, pod *corev1.Pod, held []ledger.Holding) ([]string, error) {
	var nodes []string
	for _, h := range held {
		if h.Node == pod.Spec.NodeName {
			continue
		}
		var node corev1.Node
		switch err := from.Get(ctx, types.NamespacedName{Name: h.Node}, &node); {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return nil, fmt.Errorf("read node %s, which holds %v for pod %s/%s: %w", h.Node, h.Addrs, pod.Namespace, pod.Name, err)
		}
		has, err := has(&node, pod)
		if err != nil {
			return nil, err
		}
		if has {
			nodes = append(nodes, h.Node)
		}
	}
	return nodes, nil
}

// has tells whether a node takes pods, and this one too.
func has(node *corev1.Node, pod *corev1.Pod) (bool, error) {
	if !nodeutil.IsSchedulable(node) {
		return false, nil
	}
	_, kept := schedulinghelpers.FindMatchingUntoleratedTaint(node.Spec.Taints, pod.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	})
	if kept {
		return false, nil
	}
	match, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	if err != nil {
		return false, fmt.Errorf("match pod %s/%s with node %s: %w", pod.Namespace, pod.Name, node.Name, err)
	}
	return match, nil
}
