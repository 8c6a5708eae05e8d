// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
)

// pod reports on a pod that exists.
func (e *explanation) pod() {
	e.Waits = !podutil.IsTerminal(e.Pod) && (e.Pod.Spec.NodeName == "" || !podutil.HasIPs(e.Pod))
	_, fixed, err := e.identity()
	switch {
	case err != nil:
		help := "correct the annotation in the pod template or, for a bare pod, on the pod"
		if errors.Is(err, identity.ErrUnseen) {
			help = "compare the ReplicaSet with metadata.ownerReferences of the pod: if their UIDs differ, the ReplicaSet was created again, and the pod belongs to the former one"
		}
		e.wrong(help, "Whether the pod has a fixed address is unknown: %v", err)
	case identity.OptsOut(e.Pod), !fixed && len(e.claims) == 0 && e.Record == nil:
		e.unfixed()
	case podutil.IsTerminal(e.Pod):
		e.ended()
	case e.Pod.Spec.NodeName == "":
		e.waiting()
	default:
		e.bound()
	}
}

// identity returns the identity of the pod, and whether it has a fixed address, according to the configured kinds. If the kinds
// or the controllers of ReplicaSets are unknown, the default kinds apply instead.
func (e *explanation) identity() (id identity.Identity, fixed bool, err error) {
	kinds, controllers := e.Kinds, e.Controllers
	if len(kinds.All()) == 0 || controllers == nil {
		kinds, controllers = identity.NewKinds(), identity.NoControllers
	}
	return identity.Of(e.Pod, kinds, controllers)
}

// ended reports on a pod that has ended (podutil.IsTerminal).
func (e *explanation) ended() {
	how, reserved := string(e.Pod.Status.Phase), ""
	if e.Pod.Status.Reason != "" {
		how += ", " + e.Pod.Status.Reason
	}
	if len(e.reserved) > 0 {
		reserved = fmt.Sprintf("; %s %s still reserved", address.Join(e.reserved), plural(e.reserved, "is", "are"))
	}
	when := "if the workload does not replace the pod"
	if e.isBarePod() {
		when = "if the pod has to run again"
	}
	e.wrong(e.deleteHelp()+", "+when, "The pod has ended (%s) and uses no address%s", how, reserved)
}

// unfixed reports why a pod has no fixed address. The text does not depend on the configured kinds, because they may be
// unknown.
func (e *explanation) unfixed() {
	const text = "The pod has no fixed address: "
	enabled, annotated := e.Pod.Annotations[identity.AnnotationEnabled]
	of, never := "", ""
	if owner := metav1.GetControllerOfNoCopy(e.Pod); owner != nil {
		of = identity.OwnerFrom(owner).Label() + " " + owner.Name
		if !identity.Configurable(identity.OwnerFrom(owner).GroupKind()) {
			never = fmt.Sprintf("it belongs to %s, and pods of a %s cannot have fixed addresses", of, owner.Kind)
		}
	}
	kindHelp := "if the kind of the pod's workload is not configured, add it to workloads in the configuration of fixedip"
	if !e.placedByUs() {
		kindHelp = e.schedulerHelp() + "; " + kindHelp
	}
	switch {
	case e.Pod.Spec.HostNetwork:
		e.fine(text + "it uses the host network")
	case identity.OptsOut(e.Pod):
		e.fine(text+"it is annotated %s: %s", identity.AnnotationEnabled, enabled)
	case e.isBarePod():
		e.fine(text+"it is a bare pod that is not annotated %s: \"true\" and requests no addresses, and the controller has not adopted its address; if it is created with the annotation, pods with this name keep their address", identity.AnnotationEnabled)
	case never != "" && annotated:
		e.wrong("remove the annotation from the pod template", "%s%s; its annotation %s is %q and has no effect", text, never, identity.AnnotationEnabled, enabled)
	case never != "":
		e.fine("%s%s", text, never)
	case identity.OptsIn(e.Pod.Annotations) && e.Pod.Spec.NodeName == "":
		e.wrong(kindHelp, "The pod is annotated %s: %s, and has neither a fixed address nor a node yet; it belongs to %s", identity.AnnotationEnabled, enabled, of)
	case identity.OptsIn(e.Pod.Annotations):
		e.wrong(kindHelp, "The pod is annotated %s: %s, but is bound to node %s without a fixed address; it belongs to %s", identity.AnnotationEnabled, enabled, e.Pod.Spec.NodeName, of)
	case annotated:
		e.wrong("correct the annotation in the pod template", text+"its annotation %s is %q; write \"true\" or \"false\"", identity.AnnotationEnabled, enabled)
	default:
		e.fine(text+"it belongs to %s and is not annotated %s: \"true\"; without the annotation, a pod gets one only if the kind of its workload is configured with enabled: ByDefault", of, identity.AnnotationEnabled)
	}
	if len(e.claims) == 0 {
		for _, h := range e.held {
			e.fine("The pool of node %s has %s for %s, because the node is or was strict; the controller removes the %s when the pod is gone", h.Node, plural(h.Addrs, "an entry", "entries"), address.Join(h.Addrs), plural(h.Addrs, "entry", "entries"))
		}
	}
	if e.Pod.Spec.NodeName == "" {
		e.schedulerMessage()
	}
}

// bound reports whether a bound pod runs with its reserved addresses, and otherwise why not.
func (e *explanation) bound() {
	node, has := e.Pod.Spec.NodeName, podutil.IPs(e.Pod)
	reserved, its := address.Join(e.reserved), "its "+plural(e.reserved, "address", "addresses")
	running := slices.DeleteFunc(slices.Clone(e.reserved), func(a netip.Addr) bool { return !podutil.RunsWith(e.Pod, a) })
	switch {
	case len(e.reserved) == 0 && !e.placedByUs():
		help := e.schedulerHelp()
		if !e.isSlot() { // the controller adopts no slots
			help += "; or let the controller adopt the address: set the annotation " + identity.AnnotationEnabled + ": \"true\" or a label that adoption.podSelector selects (if the adoption fails, an event of the pod gives the reason)"
		}
		e.wrong(help,
			"The address of the pod is not fixed: its schedulerName is %s, and the controller has not adopted the address", e.Pod.Spec.SchedulerName)
	case len(e.reserved) == 0 && e.unpooled:
		e.fine("The pod is bound to node %s, and no FixedIP reserves an address for it; whether the pool of the node has one for the pod is unknown", node)
	case len(e.reserved) == 0:
		e.wrong("see the events of the pod: the controller restores a lost entry, or evicts the pod if its mismatch policy is Restart and it is not a bare pod; if neither happens, run "+e.deleteHelp()+"; the next pod gets a fixed address; if StatefulSets are configured with enabled: ByAnnotation, a pod without the annotation "+identity.AnnotationEnabled+": \"true\" has no fixed address, and nothing has to be done",
			"The pod is bound to node %s, but neither a pool entry nor a FixedIP reserves an address for it", node)
	case slices.ContainsFunc(e.claims, func(h ledger.NodeAddresses) bool { return h.Node == node && e.recordsOther(h.Addrs) }):
		e.wrong("", "The pool of node %s reserves %s for the pod, but FixedIP %s reserves %s; with the failover policy Reassign the controller replaces the FixedIP", node, address.Join(e.Pools.HeldOn(pool.OwnerKey(e.Namespace, e.Name), node)), e.Record.Name, strings.Join(e.Record.Spec.IPs, ", "))
	case len(has) == 0 && e.unpooled && (e.owner == node || e.owner == ""):
		e.fine("The pod is bound to node %s and has no IP yet; FixedIP %s reserves %s for it", node, e.Record.Name, reserved)
	case len(running) == 0 && e.owner == node && len(e.claims) == 0 && !e.unpooled:
		e.wrong("", "The pod is bound to node %s, but the pool of the node has no entry for %s %s, which FixedIP %s reserves; without the entry, the pod may run with another address", node, its, reserved, e.Record.Name)
	case len(has) == 0 && e.owner == node:
		e.fine("The pod is bound to node %s and has no IP yet; the pool of the node has %s %s", node, its, reserved)
		e.usedByOther(e.reserved)
	case len(has) == 0:
		e.wrong(e.returnHelp(), "The pod is bound to node %s, but %s %s %s", node, its, reserved, e.whereabouts())
	case len(running) > 0 && !slices.ContainsFunc(e.reserved, func(a netip.Addr) bool { return podutil.RunsWithOther(e.Pod, a) }):
		e.fine("The pod runs with its fixed %s %s", plural(running, "address", "addresses"), address.Join(running))
		e.usedByOther(running)
	case e.owner == node:
		e.wrong(e.deleteHelp()+"; the controller evicts the pod after --mismatch-grace-period, unless it is a bare pod or its mismatch policy is Report",
			"The pod runs with %s, but %s %s reserved for the pod on this node; the agent probably had not seen the reservation when the pod started", address.Join(has), reserved, plural(e.reserved, "is", "are"))
		e.usedByOther(e.reserved)
		e.budgets()
	default:
		e.wrong(e.returnHelp(), "The pod runs with %s, but %s %s %s", address.Join(has), its, reserved, e.whereabouts())
	}
	if len(has) == 0 {
		e.startFailures()
	}
	if e.Record == nil && len(e.claims) > 0 {
		e.fine("The pod has no FixedIP yet; the controller creates one when the bound pod has IPs, if the kind of its workload is configured; an event of the pod reports if the API server refuses the FixedIP")
	}
}

// whereabouts returns the place of the reserved addresses, as the end of a sentence whose subject is the addresses.
func (e *explanation) whereabouts() string {
	switch {
	case e.owner != "":
		return plural(e.reserved, "belongs", "belong") + " to node " + e.owner
	case e.unpooled:
		return plural(e.reserved, "belongs", "belong") + " to a node that is unknown"
	case e.overlappingNode() != "":
		return fmt.Sprintf("%s in the subnets of node %s, which overlap those of another node", plural(e.reserved, "is", "are"), e.overlappingNode())
	}
	return plural(e.reserved, "is", "are") + " in no node's subnet"
}

// overlappingNode returns a node whose subnets contain a reserved address and overlap those of another node; empty if
// there is none. It returns the first such node, by name, of the first reserved address that has one.
func (e *explanation) overlappingNode() string {
	for _, a := range e.reserved {
		for _, name := range slices.Sorted(slices.Values(e.Pools.HomesOf(a))) {
			if _, overlaps := e.Pools.OverlapsWith(name); overlaps {
				return name
			}
		}
	}
	return ""
}

// isBarePod reports whether the pod has no controller.
func (e *explanation) isBarePod() bool { return metav1.GetControllerOfNoCopy(e.Pod) == nil }

// isSlot reports whether the addresses of the pod are a slot of its workload. Without a FixedIP, the kind of the workload
// decides; if the kind is unknown, only pods of ReplicaSets count.
func (e *explanation) isSlot() bool {
	if e.Record != nil {
		return e.Record.Spec.AssignedTo == v1alpha1.Slot
	}
	id, _, _ := e.identity()
	owner := metav1.GetControllerOfNoCopy(e.Pod)
	return id.Slot || owner != nil && identity.OwnerFrom(owner).GroupKind() == identity.ReplicaSets
}

// placedByUs reports whether the pod names a profile of our scheduler.
func (e *explanation) placedByUs() bool {
	return slices.Contains(e.Schedulers, e.Pod.Spec.SchedulerName)
}

// schedulerHelp returns the advice for a pod that another scheduler places.
func (e *explanation) schedulerHelp() string {
	if e.isBarePod() {
		return "create the pod with schedulerName: " + e.Schedulers[0]
	}
	return "set schedulerName: " + e.Schedulers[0] + " in the pod template"
}

// deleteHelp returns the command that deletes the pod. For a bare pod, which no controller creates again, it adds that the pod
// has to be created again.
func (e *explanation) deleteHelp() string {
	help := fmt.Sprintf("kubectl -n %s delete pod %s", e.Namespace, e.Name)
	if e.isBarePod() {
		help += ", and create the pod again"
	}
	return help
}

// subnetHelp returns the advice for addresses of a FixedIP that have no home node.
func (e *explanation) subnetHelp() string {
	if e.overlappingNode() != "" {
		return pool.OverlapHelp
	}
	return "add a node whose subnets contain the reserved IPs, such as a node with the name of the previous one; or give up the IPs: " + e.releaseCommand()
}

// releaseCommand returns the command that deletes the FixedIP.
func (e *explanation) releaseCommand() string {
	return fmt.Sprintf("kubectl -n %s delete fixedip %s", e.Namespace, e.Record.Name)
}

// returnHelp returns the advice for a pod that is bound to a node other than the node that has its reserved addresses. That
// node may be unknown, or there may be none.
func (e *explanation) returnHelp() string {
	switch {
	case e.owner == "" && e.unpooled:
		return e.deleteHelp()
	case e.owner == "":
		return e.subnetHelp()
	case !e.placedByUs():
		return fmt.Sprintf("%s, so that the next pod is placed on node %s", e.schedulerHelp(), e.owner)
	}
	return fmt.Sprintf("%s; the next pod is placed on node %s, or waits if that node cannot take it", e.deleteHelp(), e.owner)
}

// failoverHelp returns the advice for a pod whose node cannot take it: change the failover policy or, for a slot, delete the
// pod. It is empty for a bare pod without a FixedIP.
func (e *explanation) failoverHelp() string {
	const policy = "Reassign (another address) or, if the routing carries single addresses, to Migrate"
	switch {
	case e.isSlot():
		return "delete the pod: its workload creates another pod, which may get another address"
	case !e.isBarePod():
		return "set the annotation " + identity.AnnotationFailover + " on the workload of the pod to " + policy
	case e.Record != nil:
		return fmt.Sprintf("set spec.failover of FixedIP %s to %s", e.Record.Name, policy)
	}
	return ""
}

// usedByOther reports those of addrs that the agent of the owner node reports as used by another pod or by the node
// itself.
func (e *explanation) usedByOther(addrs []netip.Addr) {
	n, _ := e.Pools.Node(e.owner)
	for _, a := range addrs {
		user, help := n.Used[a], ""
		if user == "" || user == pool.OwnerKey(e.Namespace, e.Name) {
			continue
		}
		if pool.IsPodKey(user) {
			user = "pod " + user
			help = "delete " + user + " if it still runs and no FixedIP reserves the address for it; the report changes when the agent reports again"
		}
		e.wrong(help, "The agent of node %s reports that %s is used by %s", e.owner, a, user)
	}
}

// waiting reports why a pod is not bound.
func (e *explanation) waiting() {
	e.gates()
	if !e.placedByUs() {
		e.wrong(e.schedulerHelp(), "The pod waits for %s, which is not among the known profiles of fixedip-scheduler (%s)", e.Pod.Spec.SchedulerName, strings.Join(e.Schedulers, ", "))
	}
	what := fmt.Sprintf("%s %s of the pod", plural(e.reserved, "Address", "Addresses"), address.Join(e.reserved))
	switch {
	case e.Record != nil && e.Record.DeletionTimestamp != nil && e.Record.Spec.AssignedTo != v1alpha1.Slot:
		e.wrong(e.blockedHelp(), "FixedIP %s of the pod is being deleted; the pod gets a new address when the previous one (%s) is released and the FixedIP is gone", e.Record.Name, cmp.Or(strings.Join(e.Record.Spec.IPs, ", "), "none"))
	case len(e.reserved) > 0 && e.unpooled && (e.owner == "" || e.Nodes == nil):
		e.fine("%s %s reserved%s; the state of the node is unknown", what, plural(e.reserved, "is", "are"), e.formerNode())
	case len(e.reserved) > 0 && e.owner == "" && e.overlappingNode() != "":
		e.fine("%s %s", what, e.whereabouts())
		e.overlap(e.overlappingNode())
	case len(e.reserved) > 0 && e.owner == "" && e.Pod.Status.NominatedNodeName != "":
		e.fine("%s %s%s; node %s can run the pod, and may inherit the subnet when the grace period ends", what, e.whereabouts(), e.formerNode(), e.Pod.Status.NominatedNodeName)
	case len(e.reserved) > 0 && e.owner == "":
		e.wrong(e.subnetHelp(), "%s %s%s", what, e.whereabouts(), e.formerNode())
	case len(e.reserved) > 0:
		e.ownerNode(what)
	case e.unpooled:
		e.fine("The pod has no address yet; the free addresses of the nodes are unknown")
	default:
		e.firstAddress()
	}
	e.volumes()
	e.schedulerMessage()
}

// blockedHelp returns the command that shows the blocker of the release of the addresses.
func (e *explanation) blockedHelp() string {
	return fmt.Sprintf("if the release takes long: kubectl -n %s describe fixedip %s shows what blocks it", e.Namespace, e.Record.Name)
}

// schedulerMessage reports the message of the condition PodScheduled.
func (e *explanation) schedulerMessage() {
	for _, c := range e.Pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" {
			e.fine("Condition PodScheduled of the pod is False: %s", c.Message)
		}
	}
}

// ownerNode reports the state of the node that has the pod's address, with advice if that node takes no pods. The argument
// what is the beginning of a sentence; it names the address.
func (e *explanation) ownerNode(what string) {
	text := fmt.Sprintf("%s %s, which ", what, e.whereabouts())
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
	// If the policy is empty, the policy of the configuration applies, which is unknown here.
	var failover v1alpha1.Failover
	if e.Record != nil {
		failover = e.Record.Spec.Failover
	}
	home, _ := e.Pools.Home(e.reserved[0])
	switch {
	case e.Nodes == nil:
		e.fine("%s %s; the state of the node is unknown", what, e.whereabouts())
	case help == "" && !nodeutil.IsSchedulable(node):
		e.fine("%s%s", text, nodeIs(node))
	case help == "":
		e.fine("%sis ready and not cordoned", text)
	case !e.isSlot() && (failover == v1alpha1.Migrate || failover == v1alpha1.Reassign):
		e.wrong(help, "%s%s", text, nodeIs(node))
		e.fine("The failover policy is %s: the pod may go to another node when the previous pod has provably stopped", failover)
	case !e.isSlot() && node == nil && home != e.owner && e.Nodes[home] != nil:
		e.fine("%s%s; %s to home node %s, which %s", text, nodeIs(node), plural(e.reserved, "the address returns", "the addresses return"), home, nodeIs(e.Nodes[home]))
	default:
		if other := e.failoverHelp(); other != "" {
			help += "; or " + other
		}
		e.wrong(help, "%s%s", text, nodeIs(node))
	}
	e.overlap(e.owner)
	e.usedByOther(e.reserved)
}

// formerNode returns the node that had the addresses of the FixedIP, as the end of a sentence; empty if the FixedIP names
// no node.
func (e *explanation) formerNode() string {
	if e.Record.Spec.NodeName == "" {
		return ""
	}
	return "; previous node: " + e.Record.Spec.NodeName
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
		e.wrong("check the cilium pods of these nodes if this does not change", "Nodes whose Cilium agent has not reported yet which addresses are in use: %d; no pod gets a new address there before the agent has reported", unreported)
	}
	if with > 0 {
		e.fine("The pod has no address yet; nodes with a free IPv4 or IPv6 address: %d, without: %d", with, without)
	} else if unreported == 0 || without > 0 {
		e.wrong("delete FixedIPs that are not needed, or add nodes; kubectl fixedip top shows the free addresses of each node", "The pod has no address yet; nodes with a free address: 0, without: %d", without)
	}
	for _, name := range overlapping {
		e.overlap(name)
	}
}

// overlap reports the overlap of the subnets of a node with those of another node, if there is one.
func (e *explanation) overlap(name string) {
	if other, ok := e.Pools.OverlapsWith(name); ok {
		e.wrong(pool.OverlapHelp, "The subnets of node %s overlap those of node %s; no address in them is claimed", name, other)
	}
}
