// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
)

// pod reports on a pod that exists.
func (e *explanation) pod() {
	_, fixed, err := identity.Of(e.Pod, identity.NewKinds(), identity.NoControllers)
	switch {
	case err != nil:
		e.wrong("correct the annotation in the pod template", "Whether the pod has a fixed address is unknown: %v", err)
	case e.Pod.Spec.HostNetwork, !fixed && len(e.held) == 0 && e.Record == nil:
		e.unfixed()
	case podutil.IsTerminal(e.Pod):
		e.ended()
	case e.Pod.Spec.NodeName == "":
		e.waiting()
	default:
		e.bound()
	}
}

// ended reports on a pod that has ended (podutil.IsTerminal).
func (e *explanation) ended() {
	how, reserved := string(e.Pod.Status.Phase), ""
	if e.Pod.Status.Reason != "" {
		how += ", " + e.Pod.Status.Reason
	}
	if len(e.reserved) > 0 {
		reserved = "; " + address.Join(e.reserved) + " stays reserved for the next pod"
	}
	e.wrong(fmt.Sprintf("kubectl -n %s delete pod %s, if the workload does not replace the pod", e.Namespace, e.Name), "The pod has ended (%s) and uses no address%s", how, reserved)
}

// unfixed reports why a pod has no fixed address.
func (e *explanation) unfixed() {
	const text = "The pod has no fixed address: "
	owner := metav1.GetControllerOfNoCopy(e.Pod)
	switch {
	case e.Pod.Spec.HostNetwork:
		e.fine(text + "it uses the host network")
	case identity.OptsOut(e.Pod):
		e.fine(text+"it is annotated %s: %s", identity.AnnotationEnabled, e.Pod.Annotations[identity.AnnotationEnabled])
	case owner == nil:
		e.fine(text+"it is a bare pod without the annotation %s: \"true\"; with it, a pod with this name keeps its address", identity.AnnotationEnabled)
	case !identity.OptsIn(e.Pod.Annotations):
		e.fine(text+"it belongs to %s %s, and only pods of StatefulSets have one by default", owner.Kind, owner.Name)
	case e.Pod.Spec.NodeName == "":
		e.wrong("add its kind of workload to workloads in the scheduler's FixedIPArgs, and to --workload-kind of the controller",
			"The pod is annotated %s: %s and waits for an address of %s %s", identity.AnnotationEnabled, e.Pod.Annotations[identity.AnnotationEnabled], owner.Kind, owner.Name)
		e.schedulerMessage()
	default:
		e.wrong("set schedulerName: "+e.Schedulers[0]+" in the pod template; add its kind of workload to workloads in the scheduler's FixedIPArgs, and to --workload-kind of the controller",
			"The pod is annotated %s: %s, and %s placed it without a fixed address", identity.AnnotationEnabled, e.Pod.Annotations[identity.AnnotationEnabled], e.Pod.Spec.SchedulerName)
	}
}

// bound reports whether a bound pod runs with its reserved addresses, and otherwise why not.
func (e *explanation) bound() {
	node, has := e.Pod.Spec.NodeName, podutil.IPs(e.Pod)
	owner := "no node"
	if e.owner != "" {
		owner = "node " + e.owner
	}
	switch {
	case len(e.reserved) == 0 && !e.placedByUs():
		e.wrong("set schedulerName: "+e.Schedulers[0]+" in the pod template, or labels that the controller's --label-selector matches, or the annotation "+identity.AnnotationEnabled+": \"true\"",
			"The address of the pod is not fixed: %s placed it, and the controller has not adopted it", e.Pod.Spec.SchedulerName)
	case len(e.reserved) == 0:
		e.wrong("", "The pod is bound to node %s without a claim; the agent gives the pod any free address", node)
	case len(has) == 0 && e.owner == node:
		e.fine("The pod is about to start on node %s and gets %s", node, address.Join(e.reserved))
		e.usedByOther(e.reserved)
	case len(has) == 0:
		e.wrong(e.returnHelp(), "The pod is bound to node %s, and its address %s belongs to %s", node, address.Join(e.reserved), owner)
	case slices.ContainsFunc(e.reserved, func(a netip.Addr) bool { return podutil.RunsWith(e.Pod, a) }) &&
		!slices.ContainsFunc(e.reserved, func(a netip.Addr) bool { return podutil.RunsWithOther(e.Pod, a) }):
		e.fine("The pod runs with its fixed address %s", address.Join(e.reserved))
		e.usedByOther(e.reserved)
	case e.owner == node:
		e.wrong(fmt.Sprintf("kubectl -n %s delete pod %s", e.Namespace, e.Name),
			"The pod runs with %s, but %s is reserved for the pod on this node: the agent had not seen the entry when the pod started", address.Join(has), address.Join(e.reserved))
	default:
		e.wrong(e.returnHelp(), "The pod runs with %s, and its address %s belongs to %s", address.Join(has), address.Join(e.reserved), owner)
	}
	if e.Record == nil && len(e.held) > 0 {
		e.fine("The claim has no FixedIP yet; the controller creates one when the bound pod has IPs")
	}
}

// placedByUs reports whether the pod names a profile of our scheduler.
func (e *explanation) placedByUs() bool {
	return slices.Contains(e.Schedulers, e.Pod.Spec.SchedulerName)
}

// returnHelp returns the advice for a pod that is on another node than its address.
func (e *explanation) returnHelp() string {
	if !e.placedByUs() {
		return "set schedulerName: " + e.Schedulers[0] + " in the pod template, so that the pod returns to the node of its address"
	}
	return fmt.Sprintf("kubectl -n %s delete pod %s", e.Namespace, e.Name)
}

// usedByOther reports those of addrs that the agent of the owner node reports as used by another pod.
func (e *explanation) usedByOther(addrs []netip.Addr) {
	n, _ := e.Pools.Node(e.owner)
	for _, a := range addrs {
		if user := n.Used[a]; user != "" && user != pool.OwnerKey(e.Namespace, e.Name) {
			e.wrong("delete the one of the two pods that can run with another address", "The agent of node %s reports that %s is used by %s", e.owner, a, user)
		}
	}
}

// waiting reports why a pod is not bound.
func (e *explanation) waiting() {
	if !e.placedByUs() {
		e.wrong("set schedulerName: "+e.Schedulers[0]+" in the pod template",
			"The pod waits for %s, which does not support fixed addresses", e.Pod.Spec.SchedulerName)
	}
	switch {
	case e.Record != nil && e.Record.DeletionTimestamp != nil:
		e.wrong("", "The previous address %s of the pod is being released; the pod gets a new one when FixedIP %s is gone", strings.Join(e.Record.Spec.IPs, ", "), e.Record.Name)
	case len(e.reserved) > 0 && e.owner == "" && e.Pod.Status.NominatedNodeName != "":
		e.fine("Address %s of the pod is in no node's subnet%s; node %s can run the pod and inherits the subnet when the grace period ends", address.Join(e.reserved), e.formerNode(), e.Pod.Status.NominatedNodeName)
	case len(e.reserved) > 0 && e.owner == "":
		e.wrong(fmt.Sprintf("add a node with the previous name, which gets the subnet again; kubectl -n %s delete fixedip %s releases the address", e.Namespace, e.Record.Name),
			"Address %s of the pod is in no node's subnet%s", address.Join(e.reserved), e.formerNode())
	case len(e.reserved) > 0:
		e.ownerNode()
	default:
		e.firstAddress()
	}
	e.volumes()
	e.schedulerMessage()
}

// schedulerMessage reports the message of the condition PodScheduled.
func (e *explanation) schedulerMessage() {
	for _, c := range e.Pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" {
			e.fine("%s reported: %s", e.Pod.Spec.SchedulerName, c.Message)
		}
	}
}

// ownerNode reports the state of the node that has the pod's address, and what helps if that node takes no pods.
func (e *explanation) ownerNode() {
	text := fmt.Sprintf("Address %s of the pod belongs to node %s, which ", address.Join(e.reserved), e.owner)
	node := e.Nodes[e.owner]
	help := ""
	switch {
	case node == nil:
		help = "add a node with that name"
	case !nodeutil.IsReady(node):
		help = "repair that node"
	case node.Spec.Unschedulable:
		help = "kubectl uncordon " + e.owner
	}
	// If the policy is empty, the default of the scheduler applies, which is unknown here.
	var failover v1alpha1.Failover
	if e.Record != nil {
		failover = e.Record.Spec.Failover
	}
	home, _ := e.Pools.Home(e.reserved[0])
	switch {
	case help == "":
		e.fine("%sis ready for pods", text)
	case failover == v1alpha1.Migrate || failover == v1alpha1.Reassign:
		e.wrong(help, "%s%s", text, nodeIs(node))
		e.fine("The failover policy is %s: the pod goes to another node when the previous pod has provably stopped", failover)
	case node == nil && home != e.owner && e.Nodes[home] != nil:
		e.fine("%s%s; the address returns to its home node %s, which %s", text, nodeIs(node), home, nodeIs(e.Nodes[home]))
	default:
		e.wrong(help+"; the annotation "+identity.AnnotationFailover+" on the workload of the pod allows another node", "%s%s", text, nodeIs(node))
	}
	e.overlap(e.owner)
	e.usedByOther(e.reserved)
}

// formerNode returns which node had the address of the FixedIP, as the end of a sentence; empty if the FixedIP does not name it.
func (e *explanation) formerNode() string {
	if e.Record.Spec.NodeName == "" {
		return ""
	}
	return "; it was on node " + e.Record.Spec.NodeName
}

// nodeIs returns the state of a node as the end of a sentence, such as "is cordoned" or "does not exist".
func nodeIs(node *corev1.Node) string {
	if node == nil {
		return NodeState(node)
	}
	return "is " + NodeState(node)
}

// firstAddress explains whether a pod without an address can get one: how many nodes have a free address, have none, or have
// an agent that has not reported, and which subnets overlap.
func (e *explanation) firstAddress() {
	var overlapping []string
	with, without, unreported := 0, 0, 0
	for _, n := range e.Pools.Nodes() {
		if _, ok := e.Pools.OverlapsWith(n.Name); ok {
			overlapping = append(overlapping, n.Name)
		}
		switch {
		case e.Pools.HasAvailable(n.Name, address.IPv4) || e.Pools.HasAvailable(n.Name, address.IPv6):
			with++
		case n.Unreported:
			unreported++
		default:
			without++
		}
	}
	if unreported > 0 {
		e.wrong("check the cilium pods of these nodes if this does not change", "The Cilium agents of %d nodes have not reported yet which addresses are in use; until they do, no new pod gets an address there", unreported)
	}
	if with > 0 {
		e.fine("The pod has no address yet; %d nodes have a free address, %d have none", with, without)
	} else if unreported == 0 || without > 0 {
		e.wrong("delete FixedIPs that are not needed, or add nodes; kubectl fixedip nodes shows the free addresses of each node", "The pod has no address yet, and none of %d nodes has a free address", without)
	}
	for _, name := range overlapping {
		e.overlap(name)
	}
}

// overlap reports the overlap of the subnets of a node with those of another node, if there is one.
func (e *explanation) overlap(name string) {
	if other, ok := e.Pools.OverlapsWith(name); ok {
		e.wrong("change spec.ipam.podCIDRs of one of the two CiliumNodes", "The subnets of node %s overlap those of node %s; no IP in them is assigned", name, other)
	}
}

// withoutPod reports why an address is reserved although the pod does not exist.
func (e *explanation) withoutPod() {
	rec := e.Record
	switch {
	case rec == nil:
		e.wrong("if no pod needs the address, remove the owner from the entry in the CiliumNode", "A pool has an entry for this name, but neither a pod nor a FixedIP exists")
		return
	case rec.DeletionTimestamp != nil:
		e.wrong("", "The address is being released; FixedIP %s has been in deletion for %s", rec.Name, e.since(rec.DeletionTimestamp.Time))
		return
	}
	name := fmt.Sprintf("%s %s", rec.Spec.Owner.Kind, rec.Spec.Owner.Name)
	releaseHelp := fmt.Sprintf("kubectl -n %s delete fixedip %s releases the address", e.Namespace, rec.Name)
	switch {
	case rec.Status.ExpiresAt != nil:
		e.fine("The address is reserved until %s in case a pod with this name returns", rec.Status.ExpiresAt.UTC().Format("2006-01-02 15:04:05 MST"))
	case e.Unread != "":
		e.fine("The address is reserved for %s; it is unknown whether that workload exists: %s", name, e.Unread)
	case e.Workload == nil && rec.Spec.Owner.UID == "":
		e.fine("The address is reserved for %s, which does not exist yet", name)
	case e.Workload == nil && rec.Spec.Reclaim.WhenDeleted == v1alpha1.Retain:
		e.Findings = append(e.Findings, Finding{Text: fmt.Sprintf("The address is reserved although %s is deleted: whenDeleted is Retain", name), Help: releaseHelp})
	case e.Workload == nil:
		e.wrong("", "%s is deleted, and the address is about to be released", name)
	case rec.Name != rec.Spec.PodName:
		e.fine("The address is reserved for the next pod of %s", name)
	case e.Workload.Excludes(e.Name) && rec.Spec.Reclaim.WhenScaled == v1alpha1.Delete:
		e.wrong("", "%s is scaled down, and the address is about to be released", name)
	case e.Workload.Excludes(e.Name):
		e.Findings = append(e.Findings, Finding{Text: fmt.Sprintf("The address is reserved until %s is scaled up again: whenScaled is Retain", name), Help: releaseHelp})
	default:
		e.fine("The address is reserved for the pod that %s is about to create", name)
	}
}
