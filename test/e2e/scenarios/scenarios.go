package main

// scenarios are all of them, in the order in which they run. Those that need nothing but pods come first; the node
// that is replaced is gone afterwards, and the witness is told last that pods are adopted.
var scenarios = []scenario{
	{"first placement", "pods get an address of each family, claimed before they are bound", firstPlacement, true},
	{"pod deleted", "it comes back with its addresses", podDeleted, true},
	{"pod deleted by force", "its addresses wait until nobody can have them any more", podForceDeleted, true},
	{"rolling update", "all pods are replaced, all keep their addresses", rollingUpdate, true},
	{"scaled down and up", "the addresses of pods that are left out wait for them", scaledDownAndUp, true},
	{"deleted and recreated within the TTL", "the new StatefulSet has the addresses of the old one", recreatedWithinTTL, true},
	{"deleted and recreated after the TTL", "the addresses went back, and nothing remembers them", recreatedAfterTTL, true},
	{"asked-for address", "a pod gets the addresses that its template asks for", askedFor, true},
	{"two want the last address", "one has it, the other waits and is told why, and has its turn", lastAddress, true},
	{"sticky MAC", "the interface has the MAC address that it had before", stickyMAC, false},
	{"sandbox killed", "the pod runs on in a new sandbox with the addresses of the old one", sandboxKilled, true},
	{"Deployment slots", "a rollout of a Deployment stays within its set of addresses", deploymentSlots, true},
	{"burst of 60", "60 ordinary pods on one node start, and pods with fixed addresses between them keep theirs", burst, false},
	{ratioScenario, "a fixed address costs no time", ratio, false},

	{"agent restarted", "pods that are replaced meanwhile come back with their addresses", agentRestarted, true},
	{"agent cut off", "who had an address has it again; who gets a first one keeps what it got", agentCutOff, false},
	{"agent cut off, strict", "no pod ever has another address than its own", agentCutOffStrict, false},
	{"API server restarted", "pods that are replaced meanwhile come back with their addresses", apiServerRestarted, true},

	{"node drained", "the pod waits for its node and has its addresses there again", nodeDrained, true},
	{"migrated and back", "the pod takes its addresses along, twice", migratedAndBack, true},
	{"kubelet stopped", "a node that is silent keeps its pods' addresses", kubeletStopped, false},
	{"node rebooted", "its pods have their addresses again", nodeRebooted, false},
	{"node rebooted, its disk lost", "so they have on a machine that knows nothing", nodeReinstalled, false},

	{"pool written by hand", "an entry that an administrator wrote is respected, and recorded", handWritten, true},
	{"node replaced", "another node inherits the subnet, and the pods follow their addresses", nodeReplaced, false},
	{"placed by another scheduler", "the address that a pod runs with is the one it keeps", adopted, false},
}
