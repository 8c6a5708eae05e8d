// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeutil evaluates one Node: its readiness, whether it takes pods, and its subnets.
//
// The functions read only the Node that is passed to them. They must not read a cache or call an API, because the scheduler,
// the controllers and the tools share them.
package nodeutil

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/core/address"
)

// IsReady reports whether the condition Ready of the node is true. A node without the condition is not ready.
func IsReady(node *corev1.Node) bool {
	c := readyCondition(node)
	return c != nil && c.Status == corev1.ConditionTrue
}

// NodeState describes whether a node can run its pods, in words that complete the sentence "the node is ...".
type NodeState string

// The states of a node, in the order in which State checks them: Gone means that the Node does not exist, NotReady that
// IsReady is false, Cordoned that the node is ready and unschedulable, Deleting that the Node has a deletion timestamp, and Ready
// that the node is in no other state.
const (
	Gone     NodeState = "gone"
	NotReady NodeState = "not ready"
	Cordoned NodeState = "cordoned"
	Deleting NodeState = "being deleted"
	Ready    NodeState = "ready"
)

// NodeStates are all states of a node.
var NodeStates = []NodeState{Gone, NotReady, Cordoned, Deleting, Ready}

// State returns the state of a node. A nil node is Gone.
func State(node *corev1.Node) NodeState {
	switch {
	case node == nil:
		return Gone
	case !IsReady(node):
		return NotReady
	case node.Spec.Unschedulable:
		return Cordoned
	case node.DeletionTimestamp != nil:
		return Deleting
	}
	return Ready
}

// IsSchedulable reports whether the node is ready and takes new pods: it is neither cordoned nor being deleted.
func IsSchedulable(node *corev1.Node) bool { return State(node) == Ready }

// ReadySince returns the time at which the node became ready; zero: unknown. ok is false if the condition Ready exists and is
// not true; since has no meaning then. For a node without the condition, which has never run a pod, ReadySince returns the zero
// time and true.
func ReadySince(node *corev1.Node) (since time.Time, ok bool) {
	c := readyCondition(node)
	if c == nil {
		return time.Time{}, true
	}
	return c.LastTransitionTime.Time, c.Status == corev1.ConditionTrue
}

func readyCondition(node *corev1.Node) *corev1.NodeCondition {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if i < 0 {
		return nil
	}
	return &node.Status.Conditions[i]
}

// PodCIDRs returns spec.podCIDRs of the Node: the subnets that Kubernetes has assigned. If address.ParseSubnet refuses one
// of them, it returns an error that names the node.
func PodCIDRs(node *corev1.Node) ([]netip.Prefix, error) {
	var own []netip.Prefix
	for _, s := range node.Spec.PodCIDRs {
		subnet, err := address.ParseSubnet(s)
		if err != nil {
			return nil, fmt.Errorf("spec.podCIDRs of node %s: %w", node.Name, err)
		}
		own = append(own, subnet)
	}
	return own, nil
}
