// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// The node of a pod's address may be gone. Another node inherits its subnet then, and only the scheduler knows which nodes
// can run the pod. So the pod is nominated to one of them (status.nominatedNodeName), which keeps room for it there, and
// tells cluster-autoscaler and Karpenter that the pod needs no new node. The controller reads the nominations and gives
// the subnet to a node that pods are nominated to.

// SeeksHeir reports whether no node has the subnet of the pod's address, and the node that inherits it is still to be
// found.
func (p *Plan) SeeksHeir() bool { return p.reservation.lost != "" }

// Lost is the node that had the pod's address and is gone.
func (p *Plan) Lost() string { return p.reservation.lost }

// ForHeir returns the plan by which Fits accepts the nodes that may inherit the subnet.
func (p *Plan) ForHeir() *Plan {
	return &Plan{id: p.id, uid: p.uid, reservation: p.reservation, heir: true}
}

// ExplainHeir says what a pod waits for whose address has no node, and what helps. heir is the node that it is nominated
// to; empty: no node can run it, for the reasons in refused.
func (b *Binder) ExplainHeir(p *Plan, heir, refused string) *Refusal {
	r := &Refusal{
		Reason: fmt.Sprintf("its address %s was on node %s, which is gone, ", address.Join(p.reservation.addrs), p.reservation.lost),
		WakeOn: p.wakeOn().And(metrics.Workload, p.id.Resource()).AndHome(p.reservation.addrs...),
	}
	if heir != "" {
		r.Reason += fmt.Sprintf("node %s can run it and inherits that subnet when the grace period ends", heir)
	} else {
		r.Reason += "and no node that could inherit its subnet can run the pod: " + refused
	}
	return r
}

// fitsHeir accepts a node that may inherit a subnet: it is ready, and its agent works with the subnets that it has.
func (b *Binder) fitsHeir(node *corev1.Node) error {
	n, ok := b.Cache.Ledger.Node(node.Name)
	if !ok || len(n.Subnets) == 0 || !nodeutil.IsSchedulable(node) {
		return refuse(requeue.WakeOn{}, "node(s) couldn't inherit a subnet now")
	}
	return nil
}

// noteSeeking records whether a pod seeks an heir, for SeeksHeir.
func (b *Binder) noteSeeking(pod *corev1.Pod, seeks bool) {
	if seeks {
		b.remember(&b.seeking, pod)
	} else {
		b.seeking.Delete(pod.UID)
	}
}

// SeeksHeir reports whether the last plan of a pod seeks an heir: then a change of any node may help it.
func (b *Binder) SeeksHeir(pod *corev1.Pod) bool {
	_, seeks := b.seeking.Load(pod.UID)
	return seeks
}
