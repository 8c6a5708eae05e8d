// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// A pod is orphaned if the subnet of its address is orphaned and another node will inherit it. Only the scheduler knows
// which nodes can run the pod, so it nominates the pod to one of them (status.nominatedNodeName). The controller reads the
// nominations and gives the subnet to a node that pods are nominated to (ADR 0027).

// Orphaned reports whether no node has the subnet of the pod's address, and another node will inherit it.
func (p *Plan) Orphaned() bool { return p.reservation.lost != "" }

// Lost returns the deleted node that had the address of an orphaned pod; empty if the pod is not orphaned.
func (p *Plan) Lost() string { return p.reservation.lost }

// ForCandidates returns a plan for an orphaned pod with which Fits accepts the nodes that may inherit the subnet.
func (p *Plan) ForCandidates() *Plan {
	return &Plan{id: p.id, uid: p.uid, reservation: p.reservation, candidates: true}
}

// ExplainOrphaned returns the Refusal of an orphaned pod: the reason why the pod waits, and the changes of the cluster that
// requeue it. nominated is the node that the pod is nominated to. If nominated is empty, no node can run the pod now, and
// refused contains the reasons.
func (b *Binder) ExplainOrphaned(p *Plan, nominated, refused string) *Refusal {
	addrs := addressText(p.reservation.addrs)
	reason := fmt.Sprintf("no node's subnets contain the %s of the pod (last on node %s); node %s can run the pod and may inherit the subnet after the grace period", addrs, p.Lost(), nominated)
	if nominated == "" {
		reason = fmt.Sprintf("no node's subnets contain the %s of the pod (last on node %s), and no node that could inherit the subnet can run the pod now: %s", addrs, p.Lost(), refused)
	}
	wake := p.wakeOn().And(metrics.Workload, p.id.Resource()).AndHome(p.reservation.addrs...)
	if nominated == "" {
		// A node that joins the cluster becomes a candidate when it has a subnet: see fitsCandidate.
		wake = wake.AndAnySubnet()
	}
	return &Refusal{Reason: reason, WakeOn: wake}
}

// fitsCandidate returns nil if the node may inherit a subnet: it has a subnet already, is ready, and takes new pods.
func (b *Binder) fitsCandidate(node *corev1.Node) error {
	n, ok := b.Cache.Ledger.Node(node.Name)
	if !ok || len(n.Subnets) == 0 || !nodeutil.IsSchedulable(node) {
		return refuse(requeue.WakeOn{}, "node(s) can't be nominated while they are cordoned, not ready, being deleted or without a subnet")
	}
	return nil
}

// noteOrphaned records for IsOrphaned whether a pod is orphaned.
func (b *Binder) noteOrphaned(pod *corev1.Pod, orphaned bool) {
	if orphaned {
		b.remember(&b.orphaned, pod)
	} else {
		b.orphaned.Delete(pod.UID)
	}
}

// IsOrphaned reports whether a pod was orphaned at its last plan. A change of any node may help such a pod.
func (b *Binder) IsOrphaned(pod *corev1.Pod) bool {
	_, orphaned := b.orphaned.Load(pod.UID)
	return orphaned
}
