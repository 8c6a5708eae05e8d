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

// pod says how a pod that exists stands with its address.
func (e *explanation) pod() {
	_, fixed, err := identity.Of(e.Pod, identity.NewKinds(), identity.NoControllers)
	switch {
	case err != nil:
		e.wrong("correct the annotation in the pod template", "It can't be told whether it is to have a fixed address: %v", err)
	case !fixed && len(e.held) == 0 && e.Record == nil:
		e.unfixed()
	case e.Pod.Spec.NodeName == "":
		e.waiting()
	default:
		e.bound()
	}
}

// unfixed says why a pod has no fixed address.
func (e *explanation) unfixed() {
	const text = "It has no fixed address: "
	owner := metav1.GetControllerOfNoCopy(e.Pod)
	switch {
	case e.Pod.Spec.HostNetwork:
		e.fine(text + "it uses the network of its host")
	case identity.OptsOut(e.Pod.Annotations):
		e.fine(text+"it is annotated %s: %s", identity.AnnotationEnabled, e.Pod.Annotations[identity.AnnotationEnabled])
	case owner == nil:
		e.fine(text+"it belongs to no workload and does not say that it is to have one; with the annotation %s: \"true\" a pod that comes back under its name keeps its address", identity.AnnotationEnabled)
	case !identity.OptsIn(e.Pod.Annotations):
		e.fine(text+"it belongs to %s %s, and only the pods of StatefulSets have one by default", owner.Kind, owner.Name)
	case e.Pod.Spec.NodeName == "":
		e.wrong("its kind of workload in workloads of the scheduler's FixedIPArgs, and in --workload-kind of the controller",
			"It is annotated %s: %s and waits for an address of %s %s", identity.AnnotationEnabled, e.Pod.Annotations[identity.AnnotationEnabled], owner.Kind, owner.Name)
		e.schedulerSaid()
	default:
		e.wrong("schedulerName: "+schedulerName+" in the pod template; its kind of workload in workloads of the scheduler's FixedIPArgs, and in --workload-kind of the controller",
			"It is annotated %s: %s, and %s placed it without a fixed address", identity.AnnotationEnabled, e.Pod.Annotations[identity.AnnotationEnabled], e.Pod.Spec.SchedulerName)
	}
}

// bound says whether a pod on a node has what is reserved for it.
func (e *explanation) bound() {
	node, has := e.Pod.Spec.NodeName, podutil.IPs(e.Pod)
	switch {
	case len(e.reserved) == 0 && e.Pod.Spec.SchedulerName != schedulerName:
		e.wrong("schedulerName: "+schedulerName+" in the pod template, or labels that the controller's --label-selector matches, or the annotation "+identity.AnnotationEnabled+": \"true\"",
			"Its address is not fixed: %s placed it, and the controller has not adopted it", e.Pod.Spec.SchedulerName)
	case len(e.reserved) == 0:
		e.wrong("", "It is bound to node %s without an address of its own: the agent gives it any", node)
	case len(has) == 0 && e.owner == node:
		e.fine("Node %s is about to start it; the agent there will give it %s", node, address.Join(e.reserved))
		e.usedByOther(e.reserved)
	case len(has) == 0:
		e.wrong(e.bringBack(), "It is bound to node %s, and its address %s belongs to %s", node, address.Join(e.reserved), e.ownerName())
	case slices.ContainsFunc(e.reserved, func(a netip.Addr) bool { return slices.Contains(has, a) }):
		e.fine("It runs with its fixed address %s", address.Join(e.reserved))
		e.usedByOther(e.reserved)
	case e.owner == node:
		e.wrong(fmt.Sprintf("kubectl -n %s delete pod %s", e.Namespace, e.Name),
			"It runs with %s, and %s is kept for it on this node: the agent had not seen the entry when it started", address.Join(has), address.Join(e.reserved))
	default:
		e.wrong(e.bringBack(), "It runs with %s, and its address %s belongs to %s", address.Join(has), address.Join(e.reserved), e.ownerName())
	}
	if e.Record == nil && len(e.held) > 0 {
		e.fine("The claim has no FixedIP yet; the controller writes one when the pod is bound")
	}
}

func (e *explanation) ownerName() string {
	if e.owner == "" {
		return "no node"
	}
	return "node " + e.owner
}

// bringBack is what brings a pod to the node of its address.
func (e *explanation) bringBack() string {
	if e.Pod.Spec.SchedulerName != schedulerName {
		return "schedulerName: " + schedulerName + " in the pod template brings it back to the node of its address"
	}
	return fmt.Sprintf("kubectl -n %s delete pod %s", e.Namespace, e.Name)
}

// usedByOther tells of an address that the agent gave to somebody else.
func (e *explanation) usedByOther(addrs []netip.Addr) {
	n, ok := e.Pools.Node(e.owner)
	if !ok {
		return
	}
	for _, a := range addrs {
		if user := n.Used[a]; user != "" && user != pool.OwnerKey(e.Namespace, e.Name) {
			e.wrong("delete the pod of the two that may have another address", "The agent of node %s says that %s is used by %s", e.owner, a, user)
		}
	}
}

// waiting says why a pod is not placed.
func (e *explanation) waiting() {
	if e.Pod.Spec.SchedulerName != schedulerName {
		e.wrong("schedulerName: "+schedulerName+" in the pod template",
			"It waits for %s, which knows nothing of fixed addresses", e.Pod.Spec.SchedulerName)
	}
	switch {
	case e.Record != nil && e.Record.DeletionTimestamp != nil:
		e.wrong("", "Its former address %s is being released; it gets a new one when FixedIP %s is gone", strings.Join(e.Record.Spec.IPs, ", "), e.Record.Name)
	case len(e.reserved) > 0 && e.owner == "":
		was := ""
		if e.Record.Spec.NodeName != "" {
			was = ", and was kept on node " + e.Record.Spec.NodeName
		}
		e.wrong(fmt.Sprintf("a node that joins under the former name has the subnet again; kubectl -n %s delete fixedip %s gives the address up", e.Namespace, e.Record.Name),
			"Its address %s is in no node's subnet%s", address.Join(e.reserved), was)
	case len(e.reserved) > 0:
		e.ownerCan()
	default:
		e.room()
	}
	e.schedulerSaid()
}

// schedulerSaid is what its scheduler wrote on a pod that it could not place.
func (e *explanation) schedulerSaid() {
	for _, c := range e.Pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" {
			e.fine("%s said: %s", e.Pod.Spec.SchedulerName, c.Message)
		}
	}
}

// ownerCan says whether the node of the pod's address can take it.
func (e *explanation) ownerCan() {
	text := fmt.Sprintf("Its address %s belongs to node %s, which ", address.Join(e.reserved), e.owner)
	node := e.Nodes[e.owner]
	help := ""
	switch {
	case node == nil:
		help = "it waits for that node to come back under its name"
	case !nodeutil.IsReady(node):
		help = "bring that node back"
	case node.Spec.Unschedulable:
		help = "kubectl uncordon " + e.owner
	}
	switch failover := e.failover(); {
	case help == "":
		e.fine("%sis ready for pods", text)
	case node == nil && failover != v1alpha1.Migrate && failover != v1alpha1.Reassign && e.homeward() != "":
		e.fine("%s%s; it goes back to node %s, in whose subnet it is, which %s", text, nodeIs(node), e.homeward(), nodeIs(e.Nodes[e.homeward()]))
	case failover == v1alpha1.Migrate || failover == v1alpha1.Reassign:
		e.wrong(help, "%s%s", text, nodeIs(node))
		e.fine("Its failover is %s: it goes to another node as soon as it is sure that its former pod does not run any more", failover)
	default:
		e.wrong(help+"; the annotation "+identity.AnnotationFailover+" of its StatefulSet lets it go to another node", "%s%s", text, nodeIs(node))
	}
	e.disputed(e.owner)
	e.usedByOther(e.reserved)
}

// homeward is the node in whose subnets the pod's addresses are, which were moved to another; empty: there is none.
func (e *explanation) homeward() string {
	if home, _ := e.Pools.Home(e.reserved[0]); home != e.owner && e.Nodes[home] != nil {
		return home
	}
	return ""
}

// failover is the policy that is recorded; empty where the scheduler's default counts.
func (e *explanation) failover() v1alpha1.Failover {
	if e.Record == nil {
		return ""
	}
	return e.Record.Spec.Failover
}

// nodeIs is the state of a node as the end of a sentence.
func nodeIs(node *corev1.Node) string {
	if node == nil {
		return NodeState(node)
	}
	return "is " + NodeState(node)
}

// room says whether a pod without an address can get one.
func (e *explanation) room() {
	var disputed []string
	with, without := 0, 0
	for _, n := range e.Pools.Nodes() {
		if _, ok := e.Pools.Disputed(n.Name); ok {
			disputed = append(disputed, n.Name)
		}
		if e.Pools.Room(n.Name, address.IPv4)+e.Pools.Room(n.Name, address.IPv6) > 0 {
			with++
		} else {
			without++
		}
	}
	if with > 0 {
		e.fine("It has no address yet; %d nodes have one for it, %d have none left", with, without)
	} else {
		e.wrong("give back addresses that nobody needs, or add nodes; kubectl fixedip nodes shows how full each is", "It has no address yet, and none of %d nodes has one for it", without)
	}
	for _, name := range disputed {
		e.disputed(name)
	}
}

func (e *explanation) disputed(name string) {
	if other, ok := e.Pools.Disputed(name); ok {
		e.wrong("change spec.ipam.podCIDRs of one of the two CiliumNodes", "The subnets of node %s overlap those of node %s; nothing in them is handed out", name, other)
	}
}

// kept says why an address is kept that no pod has.
func (e *explanation) kept() {
	rec := e.Record
	switch {
	case rec == nil:
		e.wrong("if no pod is to have it: remove the owner from the entry in the CiliumNode", "A pool has an entry for it, and there is neither a pod nor a FixedIP")
		return
	case rec.DeletionTimestamp != nil:
		e.wrong("", "Its address goes back; FixedIP %s has been on its way out for %s", rec.Name, e.since(rec.DeletionTimestamp.Time))
		return
	}
	name := fmt.Sprintf("%s %s", rec.Spec.Owner.Kind, rec.Spec.Owner.Name)
	giveUp := fmt.Sprintf("kubectl -n %s delete fixedip %s gives the address back", e.Namespace, rec.Name)
	switch {
	case rec.Status.ExpiresAt != nil:
		e.fine("Its address is kept until %s, in case a pod comes back under the name", rec.Status.ExpiresAt.UTC().Format("2006-01-02 15:04:05 MST"))
	case e.Unread != "":
		e.fine("Its address is kept for %s; whether that is still there can't be told: %s", name, e.Unread)
	case e.Workload == nil && rec.Spec.Owner.UID == "":
		e.fine("Its address is kept for %s, which has never been there", name)
	case e.Workload == nil && rec.Spec.Reclaim.WhenDeleted == v1alpha1.Retain:
		e.Findings = append(e.Findings, Finding{Text: fmt.Sprintf("Its address is kept although %s is gone: whenDeleted is Retain", name), Help: giveUp})
	case e.Workload == nil:
		e.wrong("", "%s is gone, and its address is about to go back", name)
	case rec.Name != rec.Spec.PodName:
		e.fine("Its address is kept for the next pod that %s makes", name)
	case e.Workload.Excludes(e.Name) && rec.Spec.Reclaim.WhenScaled == v1alpha1.Delete:
		e.wrong("", "%s is scaled down, and its address is about to go back", name)
	case e.Workload.Excludes(e.Name):
		e.Findings = append(e.Findings, Finding{Text: fmt.Sprintf("Its address is kept for when %s is scaled up again: whenScaled is Retain", name), Help: giveUp})
	default:
		e.fine("Its address is kept for the pod that %s is about to make", name)
	}
}
