// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
)

// agentTaint begins the key of the taint that Cilium's operator puts on a node whose agent does not run
// (agent-not-ready-taint-key).
const agentTaint = "node.cilium.io/agent-not-ready"

// Evidence is what the API server says about the node of a pod without a CiliumEndpoint. It is read live.
type Evidence struct {
	Pod *corev1.Pod
	// Node and Pool are nil if there is no Node or no CiliumNode.
	Node *corev1.Node
	Pool *pool.NodePool
	// Agents are the pods of the Cilium agent on the node; none if the agent does not run as a labelled pod.
	Agents []corev1.Pod
}

// EvictionBlocker returns why the pod may not be evicted for its missing CiliumEndpoint; empty: nothing prevents it. A
// restart helps only if the agent works: without one the next pod has no network at all.
func (e Evidence) EvictionBlocker() string {
	name := e.Pod.Spec.NodeName
	switch {
	case e.Node == nil || e.Pool == nil:
		return fmt.Sprintf("node %s or its CiliumNode does not exist", name)
	case !nodeutil.IsReady(e.Node):
		return fmt.Sprintf("node %s is not ready", name)
	}
	for _, t := range e.Node.Spec.Taints {
		if strings.HasPrefix(t.Key, agentTaint) {
			return fmt.Sprintf("node %s has the taint %s", name, t.Key)
		}
	}
	for _, c := range e.Node.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue {
			return fmt.Sprintf("the network of node %s is unavailable", name)
		}
	}
	for i := range e.Agents {
		if !podutil.IsReady(&e.Agents[i]) {
			return fmt.Sprintf("the Cilium agent of node %s is not ready", name)
		}
	}
	reports := func(a netip.Addr) bool { _, used := e.Pool.Used[a]; return used }
	for _, a := range podutil.IPs(e.Pod) {
		if !reports(a) {
			return fmt.Sprintf("the agent of node %s does not report %s as used", name, a)
		}
	}
	return ""
}

const (
	// fewMissing CiliumEndpoints are never too many, and neither is one pod in perMissing.
	fewMissing = 5
	perMissing = 100
)

// TooManyMissing reports whether so many pods have no CiliumEndpoint that the cause is not in the pods: a restart of all
// of them would be an outage. total returns the number of CiliumEndpoints; it is called only if it matters.
func TooManyMissing(missing int, total func() int) bool {
	return missing > fewMissing && missing > total()/perMissing
}
