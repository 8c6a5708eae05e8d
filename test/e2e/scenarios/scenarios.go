// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

// need is the part of the cluster that a scenario must have for itself. Scenarios that need only their pods or the third node
// run at the same time, each in its own namespace, because most of the time is spent waiting for agents that report rarely.
type need int

const (
	// ownPods is for scenarios that use only pods of their namespace on the calm nodes.
	ownPods need = iota
	// thirdNode is for scenarios that use the third node.
	thirdNode
	// wholeCluster is for scenarios that measure, or that would affect all other scenarios.
	wholeCluster
	// changedCluster is for scenarios that leave a changed cluster behind.
	changedCluster
)

// scenarios contains all scenarios. Scenarios with the same need start in this order. The longest scenario that needs only its
// pods is among the first, so that other scenarios run beside it. The scenario that uses up the addresses of the third node is
// the last one there.
var scenarios = []scenario{
	{"first placement", "pods get an address of each family, claimed before they are bound", firstPlacement, ownPods, true, false},
	{"Deployment slots", "a rollout of a Deployment stays within its set of addresses", deploymentSlots, ownPods, true, false},
	{"pod deleted by force", "its addresses are reused only after the pod has provably stopped", podForceDeleted, ownPods, true, false},
	{"pod deleted", "its replacement has the same addresses", podDeleted, ownPods, true, false},
	{"rolling update", "all pods are replaced, all keep their addresses", rollingUpdate, ownPods, true, false},
	{"scaled down and up", "the addresses of the removed pods stay reserved for them", scaledDownAndUp, ownPods, true, false},
	{"deleted and recreated within the TTL", "the new StatefulSet has the addresses of the old one", recreatedWithinTTL, ownPods, true, false},
	{"deleted and recreated after the TTL", "the addresses are released, and no FixedIP is left", recreatedAfterTTL, ownPods, true, false},
	{"requested address", "a pod gets the addresses that its template requests", requestedAddresses, ownPods, true, false},
	{"pool written by hand", "a pod gets the addresses of the entries that an administrator wrote, and a FixedIP", handWritten, ownPods, true, false},
	{"quota reached", "a pod waits with a reason, and is placed when the quota allows its FixedIP", quotaReached, ownPods, true, false},
	{"sticky MAC", "the interface has the MAC address that it had before", stickyMAC, ownPods, true, false},
	{"sandbox killed", "the pod continues in a new sandbox with the same addresses", sandboxKilled, ownPods, true, false},

	{"node drained", "the pod waits for its node and has its addresses there again", nodeDrained, thirdNode, true, false},
	{"drained with a budget", "the message of the waiting pod names the node, an event of the node names the pod, and the drain stops", drainedWithBudget, thirdNode, true, false},
	{"drained with a budget, Migrate", "the pods move, and the drain ends", drainedWithBudgetAndMoved, thirdNode, true, true},
	{"volume", "the pod runs where its volume and its address are", volume, thirdNode, true, false},
	{"agent cut off", "a replaced pod has its addresses again, and a new pod ends up with fixed addresses", agentCutOff, thirdNode, true, false},
	{"agent cut off, strict", "a pod never runs with an address other than the claimed one", agentCutOffStrict, thirdNode, true, false},
	{"kubelet stopped", "the addresses of a pod whose node does not report stay reserved", kubeletStopped, thirdNode, true, false},
	{"node rebooted", "its pods have their addresses again", nodeRebooted, thirdNode, true, false},
	{"node rebooted, its disk lost", "its pods have their addresses again, although the disk is empty", nodeReinstalled, thirdNode, true, false},
	{"two want the last address", "one pod gets it, the other waits with a reason and gets it next", lastAddress, thirdNode, true, false},

	{ratioScenario, "a pod with a fixed address is replaced as fast as another pod", ratio, wholeCluster, false, false},
	{"burst of 60", "60 unreserved pods start on one node, and pods with fixed addresses there keep their addresses", burst, wholeCluster, true, false},
	{"migrated and back", "the pod keeps its addresses when it moves to another node and back", migratedAndBack, wholeCluster, true, true},
	{"agent restarted", "pods that are replaced during the restart have the same addresses", agentRestarted, wholeCluster, true, false},
	{"agent restarted ten times", "the addresses of the node itself, such as that of its router, stay the same", agentRestartedOften, wholeCluster, false, false},
	{"CiliumNode deleted", "pods on the node keep their addresses, and no other pod gets one of these", ciliumNodeDeleted, wholeCluster, true, false},
	{"API server restarted", "pods that are replaced during the restart have the same addresses", apiServerRestarted, wholeCluster, true, false},

	{"node surged", "a node that joined before inherits the subnet, and the pods follow their addresses", nodeSurged, changedCluster, true, false},
	{"node removed", "a node that joined at the start inherits the subnet", nodeRemoved, changedCluster, true, false},
	{"node replaced", "another node inherits the subnet, and the pods follow their addresses", nodeReplaced, changedCluster, true, false},
	{"placed by another scheduler", "a pod keeps the address that it runs with", adopted, changedCluster, true, false},
}
