// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

// need is the part of the cluster that a scenario must have for itself. Other scenarios run at the same time, each in its
// own namespace, because most of the time is spent waiting for agents that report rarely.
type need int

const (
	// itsPods needs only pods of its namespace on the calm nodes.
	itsPods need = iota
	// theVictim needs the third node.
	theVictim
	// everything is for scenarios that measure, or that would affect all other scenarios.
	everything
	// everythingForGood is for scenarios that leave a changed cluster behind.
	everythingForGood
)

// scenarios contains all scenarios. Scenarios with the same need run in this order: long ones first, so that others run
// beside them until the end, and those that use up the addresses of a node last.
var scenarios = []scenario{
	{"first placement", "pods get an address of each family, claimed before they are bound", firstPlacement, itsPods, true, false},
	{"Deployment slots", "a rollout of a Deployment stays within its set of addresses", deploymentSlots, itsPods, true, false},
	{"pod deleted by force", "its addresses wait until the pod has provably stopped", podForceDeleted, itsPods, true, false},
	{"pod deleted", "it comes back with its addresses", podDeleted, itsPods, true, false},
	{"rolling update", "all pods are replaced, all keep their addresses", rollingUpdate, itsPods, true, false},
	{"scaled down and up", "the addresses of pods that are left out wait for them", scaledDownAndUp, itsPods, true, false},
	{"deleted and recreated within the TTL", "the new StatefulSet has the addresses of the old one", recreatedWithinTTL, itsPods, true, false},
	{"deleted and recreated after the TTL", "the addresses went back, and nothing remembers them", recreatedAfterTTL, itsPods, true, false},
	{"asked-for address", "a pod gets the addresses that its template asks for", askedFor, itsPods, true, false},
	{"pool written by hand", "an entry that an administrator wrote is respected, and recorded", handWritten, itsPods, true, false},
	{"quota reached", "a pod waits with a reason, and is placed when the quota allows its FixedIP", quotaReached, itsPods, true, false},
	{"sticky MAC", "the interface has the MAC address that it had before", stickyMAC, itsPods, true, false},
	{"sandbox killed", "the pod runs on in a new sandbox with the addresses of the old one", sandboxKilled, itsPods, true, false},

	{"node drained", "the pod waits for its node and has its addresses there again", nodeDrained, theVictim, true, false},
	{"drained with a budget", "a waiting pod and the node name each other, and the drain stops", drainedWithBudget, theVictim, true, false},
	{"drained with a budget, Migrate", "the pods move, and the drain ends", drainedWithBudgetAndMoved, theVictim, true, true},
	{"volume", "the pod runs where its volume and its address are", volume, theVictim, true, false},
	{"agent cut off", "who had an address has it again; who gets a first one keeps what it got", agentCutOff, theVictim, true, false},
	{"agent cut off, strict", "no pod ever has another address than its own", agentCutOffStrict, theVictim, true, false},
	{"kubelet stopped", "a node that is silent keeps its pods' addresses", kubeletStopped, theVictim, true, false},
	{"node rebooted", "its pods have their addresses again", nodeRebooted, theVictim, true, false},
	{"node rebooted, its disk lost", "so they have on a machine that knows nothing", nodeReinstalled, theVictim, true, false},
	{"two want the last address", "one pod gets it, the other waits with a reason and gets it next", lastAddress, theVictim, true, false},

	{ratioScenario, "a fixed address costs no time", ratio, everything, false, false},
	{"burst of 60", "60 unreserved pods on one node start, and pods with fixed addresses between them keep theirs", burst, everything, true, false},
	{"migrated and back", "the pod takes its addresses along, twice", migratedAndBack, everything, true, true},
	{"agent restarted", "pods that are replaced meanwhile come back with their addresses", agentRestarted, everything, true, false},
	{"agent restarted ten times", "router and health keep their addresses, and get no others", agentRestartedOften, everything, false, false},
	{"API server restarted", "pods that are replaced meanwhile come back with their addresses", apiServerRestarted, everything, true, false},

	{"node surged", "a node that joined before inherits the subnet, and the pods follow their addresses", nodeSurged, everythingForGood, true, false},
	{"node removed", "a node that joined at the start inherits the subnet", nodeRemoved, everythingForGood, true, false},
	{"node replaced", "another node inherits the subnet, and the pods follow their addresses", nodeReplaced, everythingForGood, true, false},
	{"placed by another scheduler", "the address that a pod runs with is the one it keeps", adopted, everythingForGood, true, false},
}
