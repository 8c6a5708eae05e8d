// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeutil answers questions about a Node that several controllers have.
package nodeutil

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/address"
)

// Get reads a Node. It returns nil if there is none.
func Get(ctx context.Context, from client.Reader, name string) (*corev1.Node, error) {
	var node corev1.Node
	switch err := from.Get(ctx, client.ObjectKey{Name: name}, &node); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read node %s: %w", name, err)
	}
	return &node, nil
}

// IsReady reports whether the kubelet of a node reports that it works, and has done so lately.
func IsReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// IsSchedulable reports whether pods can be placed on a node.
func IsSchedulable(n *corev1.Node) bool {
	return n.DeletionTimestamp == nil && !n.Spec.Unschedulable && IsReady(n)
}

// ReadySince returns since when a node is ready; the zero time if it does not report that. ok is false if the node is
// not ready. A node that has never reported anything has never run a pod, and counts as ready.
func ReadySince(n *corev1.Node) (since time.Time, ok bool) {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.LastTransitionTime.Time, c.Status == corev1.ConditionTrue
		}
	}
	return time.Time{}, true
}

// PodCIDRs returns the subnets that Kubernetes gave a node.
func PodCIDRs(n *corev1.Node) ([]netip.Prefix, error) {
	var own []netip.Prefix
	for _, s := range n.Spec.PodCIDRs {
		subnet, err := address.ParseSubnet(s)
		if err != nil {
			return nil, fmt.Errorf("spec.podCIDRs of node %s: %w", n.Name, err)
		}
		own = append(own, subnet)
	}
	return own, nil
}
