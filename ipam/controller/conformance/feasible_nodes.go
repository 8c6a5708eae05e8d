// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodeutil"
)

// feasibleNodes returns the nodes, except its own, that hold entries for a pod of our scheduler and can run it. If its
// IPs are on a node that can't, a pod that was restarted for them would wait, and is better off as it is.
//
// The caches have neither tolerations nor taints: what they say is decided again from the API server.
func feasibleNodes(ctx context.Context, from client.Reader, pod *corev1.Pod, held []ledger.NodeAddresses) ([]string, error) {
	var nodes []string
	for _, h := range held {
		if h.Node == pod.Spec.NodeName {
			continue
		}
		node, err := index.Node(ctx, from, h.Node)
		if err != nil {
			return nil, fmt.Errorf("look for a node for pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		if node == nil {
			continue
		}
		if can, err := canRun(node, pod); err != nil {
			return nil, err
		} else if can {
			nodes = append(nodes, h.Node)
		}
	}
	return nodes, nil
}

// canRun reports whether a node takes pods, and this one too.
func canRun(node *corev1.Node, pod *corev1.Pod) (bool, error) {
	if !nodeutil.IsSchedulable(node) {
		return false, nil
	}
	_, tainted := schedulinghelpers.FindMatchingUntoleratedTaint(node.Spec.Taints, pod.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	})
	if tainted {
		return false, nil
	}
	match, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	if err != nil {
		return false, fmt.Errorf("match pod %s/%s with node %s: %w", pod.Namespace, pod.Name, node.Name, err)
	}
	return match, nil
}
