// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/pool"
)

// MoveInputs are the inputs of Move.
type MoveInputs struct {
	Record *v1alpha1.FixedIP
	// Pod is the pod that the FixedIP names; nil if it does not exist.
	Pod *corev1.Pod
	// To is the node that the addresses should move to.
	To string
	// Nodes contains all nodes. Key: the name.
	Nodes map[string]*corev1.Node
	// Pools contains the pools of all nodes.
	Pools *ledger.Ledger
	// NoWorkload is true if the FixedIP belongs to a bare pod or its workload does not exist. The failover policy is then set
	// in the FixedIP.
	NoWorkload bool
	// NotRead names the objects that could not be read, each with the reason, such as "PersistentVolume data (forbidden)".
	NotRead []string
	// Volumes are the persistent volumes of the pod.
	Volumes []Volume
	// Failover is the failover policy of FixedIPs that have none, and MigrationAllowed is allowAddressMigration of the
	// configuration; nil if it is unknown.
	Failover         v1alpha1.Failover
	MigrationAllowed *bool
}

// MovePlan is the result of Move.
type MovePlan struct {
	Report `json:",inline"`
	// SetsPolicy is true if the failover policy has to be set to Migrate first.
	SetsPolicy bool `json:"setsPolicy"`
	// Steps are the commands and remarks for the rest of the move.
	Steps []string `json:"steps,omitempty"`
}

// Move reports whether the addresses of a FixedIP can move to a node, and the steps of the move. No component moves an
// address on request. The scheduler moves the addresses of a pod when it places the pod and the node that has the addresses
// cannot take the pod (ADR 0022, 0038).
func Move(in MoveInputs) (plan MovePlan) {
	r, f := &plan.Report, in.Record
	target, from := in.Nodes[in.To], f.Spec.NodeName
	owner := pool.OwnerKey(f.Namespace, f.Spec.PodName)
	addrs := address.ParseAll(f.Spec.IPs)
	if len(in.NotRead) > 0 {
		r.fact("Not read", "%s", strings.Join(in.NotRead, ", "))
	}
	switch {
	case len(addrs) == 0:
		r.wrong("", "FixedIP %s names no address", f.Name)
		return plan
	case f.DeletionTimestamp != nil:
		r.wrong("", "FixedIP %s is being deleted", f.Name)
		return plan
	case f.Spec.AssignedTo == v1alpha1.Slot:
		r.wrong("delete the pod and the FixedIP: the workload creates another pod, which may get another address on another node", "The addresses are a slot of %s %s, and a slot does not move", f.Spec.Owner.Kind, f.Spec.Owner.Name)
		return plan
	case from == in.To:
		r.fine("The pool of node %s already has %s", in.To, address.Join(addrs))
		return plan
	}
	switch {
	case target == nil:
		r.wrong("", "Node %s does not exist", in.To)
	case !nodeutil.IsSchedulable(target):
		r.wrong("choose a node that is ready and not cordoned", "Node %s is %s", in.To, NodeState(target))
	}
	if n, ok := in.Pools.Node(in.To); target != nil && (!ok || n.Unreported) {
		r.wrong("check the cilium pod of the node", "Node %s has no pool, or its agent has not reported yet which addresses are in use", in.To)
	}
	if in.MigrationAllowed != nil && !*in.MigrationAllowed {
		r.wrong("set allowAddressMigration to true if the routing of the cluster carries single addresses", "The configuration does not allow an address to leave the subnet of its node: allowAddressMigration is false")
	}
	if _, err := in.Pools.HomeOf(owner, addrs); err != nil {
		r.wrong("", "The pod cannot take its addresses to another node: %v", err)
	}
	if target != nil {
		in.checkPod(r, target)
	}
	if r.HasProblem() {
		return plan
	}
	plan.SetsPolicy = cmp.Or(f.Spec.Failover, in.Failover) != v1alpha1.Migrate
	plan.Steps = in.steps(from, plan.SetsPolicy)
	return plan
}

// checkPod reports the volumes and the node affinity that keep the pod from the target node.
func (in MoveInputs) checkPod(r *Report, target *corev1.Node) {
	for _, v := range in.Volumes {
		if !v.usableOn(target) {
			r.wrong("choose a node that can use the volume", "V%s cannot be used on node %s", v.String()[1:], in.To)
		}
	}
	if in.Pod == nil {
		return
	}
	if match, err := nodeaffinity.GetRequiredNodeAffinity(in.Pod).Match(target); err != nil || !match {
		r.wrong("change spec.nodeSelector or spec.affinity in the pod template or, for a bare pod, when you create the pod again", "The node affinity of pod %s excludes node %s", in.Pod.Name, in.To)
	}
}

// steps returns the steps of a move from a node.
func (in MoveInputs) steps(from string, setsPolicy bool) (steps []string) {
	f := in.Record
	workload := fmt.Sprintf("%s %s", f.Spec.Owner.Kind, f.Spec.Owner.Name)
	if node := in.Nodes[from]; node != nil && nodeutil.IsSchedulable(node) {
		steps = append(steps, fmt.Sprintf("kubectl cordon %s", from))
	}
	if in.Pod != nil && in.Pod.Spec.NodeName != "" {
		steps = append(steps, fmt.Sprintf("kubectl -n %s delete pod %s", f.Namespace, f.Spec.PodName))
	}
	if in.NoWorkload && (in.Pod == nil || in.Pod.Spec.NodeName != "") {
		steps = append(steps, fmt.Sprintf("# Create pod %s again: no controller does that.", f.Spec.PodName))
	}
	steps = append(steps, fmt.Sprintf("# The scheduler chooses the node: it is sure to be %s only if the pod may run on no other node, for example because of spec.affinity.", in.To),
		fmt.Sprintf("kubectl -n %s get pod %s -o wide --watch", f.Namespace, f.Spec.PodName))
	if node := in.Nodes[from]; node != nil && nodeutil.IsSchedulable(node) {
		steps = append(steps, fmt.Sprintf("kubectl uncordon %s", from))
	}
	switch {
	case setsPolicy && in.NoWorkload:
		steps = append(steps, fmt.Sprintf("# The failover policy of FixedIP %s stays Migrate until you change spec.failover.", f.Name))
	case setsPolicy:
		steps = append(steps, fmt.Sprintf("# The failover policy of %s stays Migrate until you change the annotation %s.", workload, identity.AnnotationFailover))
	}
	return steps
}

// SubnetMoveInputs are the inputs of MoveSubnet.
type SubnetMoveInputs struct {
	Subnet *v1alpha1.NodeSubnet
	// To is the successor.
	To string
	// Nodes contains all nodes. Key: the name.
	Nodes map[string]*corev1.Node
}

// MoveSubnet reports whether a node can be named as the successor of the node of a subnet, and what happens next.
func MoveSubnet(in SubnetMoveInputs) Report {
	var r Report
	ns := in.Subnet
	if ns.Spec.NodeName == in.To && in.Nodes[in.To] != nil {
		r.fine("Node %s already has the subnet %s", in.To, ns.Spec.CIDR)
		return r
	}
	if ns.DeletionTimestamp != nil {
		r.wrong("", "NodeSubnet %s is being deleted", ns.Name)
		return r
	}
	switch {
	case in.Nodes[ns.Spec.NodeName] != nil:
		r.fine("Node %s keeps the subnet %s until the Node is deleted. Node %s then gets the subnet at once, with all fixed addresses in it", ns.Spec.NodeName, ns.Spec.CIDR, in.To)
	default:
		r.fine("No node has the subnet %s. Node %s gets it, with all fixed addresses in it", ns.Spec.CIDR, in.To)
	}
	if in.Nodes[in.To] == nil {
		r.fine("Node %s does not exist yet; the subnet waits for it", in.To)
	}
	if ns.Spec.Successor != "" && ns.Spec.Successor != in.To {
		r.fine("Node %s was the successor until now", ns.Spec.Successor)
	}
	return r
}
