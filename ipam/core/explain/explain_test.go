// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/explain"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
)

func ok(text string) explain.Finding { return explain.Finding{Text: text} }

func wrong(text, help string) explain.Finding {
	return explain.Finding{Wrong: true, Text: text, Help: help}
}

func TestFindings(t *testing.T) {
	const (
		failoverHelp = "set the annotation fixedip.io/failover on the workload of the pod to Reassign (another address) or, if the routing carries single addresses, to Migrate"
		kindHelp     = "if the kind of the pod's workload is not configured, add it to workloads in the configuration of fixedip"
		lostBegin    = "see the events of the pod: the controller restores a lost entry, or evicts the pod if its mismatch policy is Restart and it is not a bare pod; if neither happens, run kubectl -n db delete pod mysql-0"
		lostEnd      = `; the next pod gets a fixed address; if StatefulSets are configured with enabled: ByAnnotation, a pod without the annotation fixedip.io/enabled: "true" has no fixed address, and nothing has to be done`
		lostHelp     = lostBegin + lostEnd
		evictedHelp  = "kubectl -n db delete pod mysql-0; the controller evicts the pod after --mismatch-grace-period, unless it is a bare pod or its mismatch policy is Report"
		blockedHelp  = "if the release takes long: kubectl -n db describe fixedip mysql-0 shows what blocks it"
		leaderHelp   = "check the pods of fixedip-controller; ignore this if --enable-leader-election is false"
		endpointHelp = "if the controller does not do that, and the previous pod no longer runs: kubectl -n db delete ciliumendpoint mysql-0"
		overlapHelp  = "remove the subnet from spec.ipam.podCIDRs of one of the two CiliumNodes and delete its NodeSubnet; if both have the same CIDR, change the CiliumNode that the NodeSubnet does not name, and keep the NodeSubnet"
		barePod      = `The pod has no fixed address: it is a bare pod that is not annotated fixedip.io/enabled: "true" and requests no addresses, and the controller has not adopted its address; if it is created with the annotation, pods with this name keep their address`
		noFixedIP    = "The pod has no FixedIP yet; the controller creates one when the bound pod has IPs, if the kind of its workload is configured; an event of the pod reports if the API server refuses the FixedIP"
	)
	for name, c := range map[string]struct {
		change func(*world)
		want   []explain.Finding
	}{
		"runs with its address": {func(*world) {}, []explain.Finding{ok("The pod runs with its fixed address 10.0.1.6")}},
		"no object has the name": {func(w *world) { w.deletePod(); w.unreserved() }, []explain.Finding{
			wrong("Pod db/mysql-0 does not exist, and no FixedIP and no owned pool entry names it", "check the name and the namespace (-n)"),
		}},

		"volume on another node": {func(w *world) { w.unplaced(); w.volumeIn("b"); w.inZone("node-2", "b") }, []explain.Finding{
			ok("Address 10.0.1.6 of the pod belongs to node node-1, which is ready and not cordoned"),
			wrong("Volume pv-1 (claim data-mysql-0) can be used on node node-2, but not on node node-1, to which address 10.0.1.6 of the pod belongs",
				failoverHelp+"; or kubectl -n db delete fixedip mysql-0, so that the pod gets another address"),
		}},
		"volume on no node": {func(w *world) { w.unplaced(); w.volumeIn("c") }, []explain.Finding{
			ok("Address 10.0.1.6 of the pod belongs to node node-1, which is ready and not cordoned"),
			wrong("Volume pv-1 (claim data-mysql-0) can be used on no node that is ready and not cordoned", "add, repair or uncordon a node that can use the volume"),
		}},
		"volume on the node of the address": {func(w *world) { w.unplaced(); w.volumeIn("a"); w.inZone("node-1", "a") }, []explain.Finding{
			ok("Address 10.0.1.6 of the pod belongs to node node-1, which is ready and not cordoned"),
		}},
		"node deleted, another node inherits the subnet": {func(w *world) {
			w.unplaced()
			w.pools, w.Pod.Status.NominatedNodeName = w.pools[1:], "node-2"
			delete(w.Nodes, "node-1")
		}, []explain.Finding{
			ok("Address 10.0.1.6 of the pod is in no node's subnet; previous node: node-1; node node-2 can run the pod, and may inherit the subnet when the grace period ends"),
		}},

		// The pod has no fixed address, or is bound.
		"another scheduler, not adopted": {func(w *world) { w.unreserved(); w.Pod.Spec.SchedulerName = "default-scheduler" }, []explain.Finding{
			wrong("The address of the pod is not fixed: its schedulerName is default-scheduler, and the controller has not adopted the address",
				`set schedulerName: fixedip-scheduler in the pod template; or let the controller adopt the address: set the annotation fixedip.io/enabled: "true" or a label that adoption.podSelector selects (if the adoption fails, an event of the pod gives the reason)`),
		}},
		"another scheduler, a slot": {func(w *world) {
			w.ofDeployment()
			w.unreserved()
			w.Pod.Spec.SchedulerName, w.Pod.OwnerReferences[0].Kind = "default-scheduler", "CloneSet"
			w.Pod.OwnerReferences[0].APIVersion = "apps.kruise.io/v1alpha1"
			w.Kinds, w.Controllers = identity.NewKinds(identity.Kind{APIGroup: "apps.kruise.io", Kind: "CloneSet", Identity: identity.Slot, Enabled: identity.ByDefault}), identity.NoControllers
		}, []explain.Finding{
			wrong("The address of the pod is not fixed: its schedulerName is default-scheduler, and the controller has not adopted the address", "set schedulerName: fixedip-scheduler in the pod template"),
		}},
		"a bare pod on a strict node": {func(w *world) {
			w.unreserved()
			w.pools[0].Entries[netip.MustParseAddr("10.0.1.6")] = pool.UnreservedEntry("db", "mysql-0")
			w.Pod.Spec.SchedulerName, w.Pod.OwnerReferences = "default-scheduler", nil
		}, []explain.Finding{
			ok(barePod),
			ok("The pool of node node-1 has an entry for 10.0.1.6, because the node is or was strict; the controller removes the entry when the pod is gone"),
		}},
		"of a Deployment": {func(w *world) {
			w.unreserved()
			w.Pod.OwnerReferences[0].Kind, w.Pod.OwnerReferences[0].Name = "ReplicaSet", "web-5"
		}, []explain.Finding{ok(`The pod has no fixed address: it belongs to ReplicaSet web-5 and is not annotated fixedip.io/enabled: "true"; without the annotation, a pod gets one only if the kind of its workload is configured with enabled: ByDefault`)}},
		"of a Deployment, invalid annotation": {func(w *world) {
			w.unreserved()
			w.Pod.OwnerReferences[0].Kind, w.Pod.OwnerReferences[0].Name = "ReplicaSet", "web-5"
			w.Pod.Annotations = map[string]string{"fixedip.io/enabled": "no!"}
		}, []explain.Finding{
			wrong(`The pod has no fixed address: its annotation fixedip.io/enabled is "no!"; write "true" or "false"`, "correct the annotation in the pod template"),
		}},
		"of a Deployment, opted in, waiting": {func(w *world) {
			w.unplaced()
			w.ofDeployment()
			w.unreserved()
			w.Pod.Annotations = map[string]string{"fixedip.io/enabled": "true"}
			w.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "no slot is free"}}
		}, []explain.Finding{
			wrong("The pod is annotated fixedip.io/enabled: true, and has neither a fixed address nor a node yet; it belongs to ReplicaSet web-5", kindHelp),
			ok("Condition PodScheduled of the pod is False: no slot is free"),
		}},
		"of a Deployment, opted in, placed without an address": {func(w *world) {
			w.ofDeployment()
			w.unreserved()
			w.Pod.Annotations = map[string]string{"fixedip.io/enabled": "true"}
			w.Pod.Spec.SchedulerName = "default-scheduler"
		}, []explain.Finding{
			wrong("The pod is annotated fixedip.io/enabled: true, but is bound to node node-1 without a fixed address; it belongs to ReplicaSet web-5", "set schedulerName: fixedip-scheduler in the pod template; "+kindHelp),
		}},
		"of a DaemonSet": {func(w *world) {
			w.unreserved()
			w.ofDaemonSet()
		}, []explain.Finding{ok("The pod has no fixed address: it belongs to DaemonSet logs, and pods of a DaemonSet cannot have fixed addresses")}},
		"of a DaemonSet, opted in, waiting": {func(w *world) {
			w.unplaced()
			w.unreserved()
			w.ofDaemonSet()
			w.Pod.Annotations = map[string]string{"fixedip.io/enabled": "true"}
		}, []explain.Finding{
			wrong(`The pod has no fixed address: it belongs to DaemonSet logs, and pods of a DaemonSet cannot have fixed addresses; its annotation fixedip.io/enabled is "true" and has no effect`, "remove the annotation from the pod template"),
		}},
		"of a DaemonSet, opted in, placed by another scheduler": {func(w *world) {
			w.unreserved()
			w.ofDaemonSet()
			w.Pod.Annotations, w.Pod.Spec.SchedulerName = map[string]string{"fixedip.io/enabled": "true"}, "default-scheduler"
		}, []explain.Finding{
			wrong(`The pod has no fixed address: it belongs to DaemonSet logs, and pods of a DaemonSet cannot have fixed addresses; its annotation fixedip.io/enabled is "true" and has no effect`, "remove the annotation from the pod template"),
		}},
		"of a Deployment, with a slot": {func(w *world) { w.ofDeployment() }, []explain.Finding{ok("The pod runs with its fixed address 10.0.1.6")}},
		"a bare pod": {func(w *world) { w.unreserved(); w.Pod.OwnerReferences = nil }, []explain.Finding{
			ok(barePod),
		}},
		"on the host network": {func(w *world) { w.unreserved(); w.Pod.Spec.HostNetwork = true }, []explain.Finding{
			ok("The pod has no fixed address: it uses the host network"),
		}},
		"on the host network, with the FixedIP of an earlier pod": {func(w *world) { w.Pod.Spec.HostNetwork = true; w.Pod.Status.PodIPs = []corev1.PodIP{{IP: "192.0.2.1"}} }, []explain.Finding{
			ok("The pod has no fixed address: it uses the host network"),
		}},
		"opted out": {func(w *world) { w.unreserved(); w.Pod.Annotations = map[string]string{"fixedip.io/enabled": "false"} }, []explain.Finding{
			ok("The pod has no fixed address: it is annotated fixedip.io/enabled: false"),
		}},
		"opted out, waiting, with the FixedIP of an earlier pod": {func(w *world) {
			w.unplaced()
			w.Pod.Annotations = map[string]string{"fixedip.io/enabled": "false"}
			w.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "no node is left"}}
		}, []explain.Finding{
			ok("The pod has no fixed address: it is annotated fixedip.io/enabled: false"), ok("Condition PodScheduled of the pod is False: no node is left"),
		}},
		"invalid annotation": {func(w *world) { w.Pod.Annotations = map[string]string{"fixedip.io/enabled": "no!"} }, []explain.Finding{
			wrong(`Whether the pod has a fixed address is unknown: annotation fixedip.io/enabled of pod db/mysql-0 is "no!"; write "true" or "false"`, "correct the annotation in the pod template or, for a bare pod, on the pod"),
		}},
		"evicted by its kubelet": {func(w *world) { w.Pod.Status.Phase, w.Pod.Status.Reason = corev1.PodFailed, "Evicted" }, []explain.Finding{
			wrong("The pod has ended (Failed, Evicted) and uses no address; 10.0.1.6 is still reserved", "kubectl -n db delete pod mysql-0, if the workload does not replace the pod"),
		}},
		"placed by another profile": {func(w *world) { w.Pod.Spec.SchedulerName = "other-profile"; w.unreserved() }, []explain.Finding{
			wrong("The pod is bound to node node-1, but neither a pool entry nor a FixedIP reserves an address for it", lostHelp),
		}},
		"placed without a claim": {func(w *world) { w.unreserved() }, []explain.Finding{
			wrong("The pod is bound to node node-1, but neither a pool entry nor a FixedIP reserves an address for it", lostHelp),
		}},
		"a bare pod that opts in, placed without a claim": {func(w *world) {
			w.unreserved()
			w.Pod.OwnerReferences, w.Pod.Annotations = nil, map[string]string{"fixedip.io/enabled": "true"}
		}, []explain.Finding{
			wrong("The pod is bound to node node-1, but neither a pool entry nor a FixedIP reserves an address for it", lostBegin+", and create the pod again"+lostEnd),
		}},
		"not running yet": {func(w *world) { w.Pod.Status.PodIPs = nil }, []explain.Finding{
			ok("The pod is bound to node node-1 and has no IP yet; the pool of the node has its address 10.0.1.6"),
		}},
		"not running yet, the pool has lost the entry": {func(w *world) {
			w.Pod.Status.PodIPs = nil
			delete(w.pools[0].Entries, netip.MustParseAddr("10.0.1.6"))
		}, []explain.Finding{
			wrong("The pod is bound to node node-1, but the pool of the node has no entry for its address 10.0.1.6, which FixedIP mysql-0 reserves; without the entry, the pod may run with another address", ""),
		}},
		"claimed, without a FixedIP": {func(w *world) { w.Record = nil }, []explain.Finding{
			ok("The pod runs with its fixed address 10.0.1.6"), ok(noFixedIP),
		}},
		"claimed, without a FixedIP, an older claim on another node": {func(w *world) {
			w.Record = nil
			w.pools[1].Entries[netip.MustParseAddr("10.0.2.6")] = w.pools[0].Entries[netip.MustParseAddr("10.0.1.6")]
			w.Pod.Spec.NodeName, w.Pod.Status.PodIPs = "node-2", []corev1.PodIP{{IP: "10.0.2.6"}}
		}, []explain.Finding{
			ok("The pod runs with its fixed address 10.0.2.6"), ok(noFixedIP),
		}},
		"Reassign: claimed on another node than the FixedIP names": {func(w *world) {
			w.pools[1].Entries[netip.MustParseAddr("10.0.2.6")] = w.pools[0].Entries[netip.MustParseAddr("10.0.1.6")]
			w.Pod.Spec.NodeName, w.Pod.Status.PodIPs = "node-2", []corev1.PodIP{{IP: "10.0.2.6"}}
		}, []explain.Finding{
			wrong("The pool of node node-2 reserves 10.0.2.6 for the pod, but FixedIP mysql-0 reserves 10.0.1.6; with the failover policy Reassign the controller replaces the FixedIP", ""),
		}},
		"started before the agent saw the entry": {func(w *world) { w.Pod.Status.PodIPs = []corev1.PodIP{{IP: "10.0.1.1"}} }, []explain.Finding{
			wrong("The pod runs with 10.0.1.1, but 10.0.1.6 is reserved for the pod on this node; the agent probably had not seen the reservation when the pod started", evictedHelp),
		}},
		"runs with one of its two addresses": {func(w *world) {
			w.Record.Spec.IPs = append(w.Record.Spec.IPs, "fd00::6")
			w.pools[0].Subnets = append(w.pools[0].Subnets, netip.MustParsePrefix("fd00::/125"))
			w.pools[0].Entries[netip.MustParseAddr("fd00::6")] = w.pools[0].Entries[netip.MustParseAddr("10.0.1.6")]
			w.Pod.Status.PodIPs = []corev1.PodIP{{IP: "10.0.1.6"}, {IP: "fd00::9"}}
		}, []explain.Finding{
			wrong("The pod runs with 10.0.1.6, fd00::9, but 10.0.1.6, fd00::6 are reserved for the pod on this node; the agent probably had not seen the reservation when the pod started", evictedHelp),
		}},
		"has no IP of one of its two families": {func(w *world) {
			w.Record.Spec.IPs = append(w.Record.Spec.IPs, "fd00::6")
			w.pools[0].Subnets = append(w.pools[0].Subnets, netip.MustParsePrefix("fd00::/125"))
			w.pools[0].Entries[netip.MustParseAddr("fd00::6")] = w.pools[0].Entries[netip.MustParseAddr("10.0.1.6")]
		}, []explain.Finding{ok("The pod runs with its fixed address 10.0.1.6")}},
		"runs on another node with another address": {func(w *world) {
			w.Pod.Spec.NodeName, w.Pod.Spec.SchedulerName, w.Pod.Status.PodIPs = "node-2", "default-scheduler", []corev1.PodIP{{IP: "10.0.2.1"}}
		}, []explain.Finding{
			wrong("The pod runs with 10.0.2.1, but its address 10.0.1.6 belongs to node node-1", "set schedulerName: fixedip-scheduler in the pod template, so that the next pod is placed on node node-1"),
		}},
		"another pod uses the address": {func(w *world) { w.pools[0].Used[netip.MustParseAddr("10.0.1.6")] = "web/web-0" }, []explain.Finding{
			ok("The pod runs with its fixed address 10.0.1.6"),
			wrong("The agent of node node-1 reports that 10.0.1.6 is used by pod web/web-0", "delete pod web/web-0 if it still runs and no FixedIP reserves the address for it; the report changes when the agent reports again"),
		}},

		"waiting for a cordoned node": {func(w *world) { w.unplaced(); w.Nodes["node-1"].Spec.Unschedulable = true }, []explain.Finding{
			wrong("Address 10.0.1.6 of the pod belongs to node node-1, which is cordoned", "kubectl uncordon node-1; or "+failoverHelp),
		}},
		"waiting for a node that is not ready": {func(w *world) { w.unplaced(); w.Nodes["node-1"].Status.Conditions = nil }, []explain.Finding{
			wrong("Address 10.0.1.6 of the pod belongs to node node-1, which is not ready", "repair that node; or "+failoverHelp),
		}},
		"waiting for a node that is being deleted": {func(w *world) { w.unplaced(); w.Nodes["node-1"].DeletionTimestamp = &metav1.Time{Time: now} }, []explain.Finding{
			ok("Address 10.0.1.6 of the pod belongs to node node-1, which is being deleted"),
		}},
		"waiting for a deleted node": {func(w *world) { w.unplaced(); delete(w.Nodes, "node-1") }, []explain.Finding{
			wrong("Address 10.0.1.6 of the pod belongs to node node-1, which does not exist", "add a node with that name; or "+failoverHelp),
		}},
		"waiting for the home node, the node after the move was deleted": {func(w *world) {
			w.unplaced()
			a := netip.MustParseAddr("10.0.1.6")
			w.pools[1].Entries[a], w.pools[0].Entries[a] = w.pools[0].Entries[a], pool.MovedEntry("node-2", "db/mysql-0")
			w.Nodes["node-1"].Spec.Unschedulable = true
			delete(w.Nodes, "node-2")
		}, []explain.Finding{
			ok("Address 10.0.1.6 of the pod belongs to node node-2, which does not exist; the address returns to home node node-1, which is cordoned"),
		}},
		"waiting for a move to another node": {func(w *world) { w.unplaced(); delete(w.Nodes, "node-1"); w.Record.Spec.Failover = v1alpha1.Migrate }, []explain.Finding{
			wrong("Address 10.0.1.6 of the pod belongs to node node-1, which does not exist", "add a node with that name"),
			ok("The failover policy is Migrate: the pod may go to another node when the previous pod has provably stopped"),
		}},
		"waiting for a subnet without a node": {func(w *world) { w.unplaced(); w.pools = w.pools[1:] }, []explain.Finding{
			wrong("Address 10.0.1.6 of the pod is in no node's subnet; previous node: node-1", "add a node whose subnets contain the reserved IPs, such as a node with the name of the previous one; or give up the IPs: kubectl -n db delete fixedip mysql-0"),
		}},
		"waiting for a slot of a cordoned node": {func(w *world) {
			w.unplaced()
			w.ofDeployment()
			w.Nodes["node-1"].Spec.Unschedulable = true
		}, []explain.Finding{
			wrong("Address 10.0.1.6 of the pod belongs to node node-1, which is cordoned", "kubectl uncordon node-1; or delete the pod: its workload creates another pod, which may get another address"),
		}},
		"waiting, with a message of the scheduler": {func(w *world) {
			w.unplaced()
			w.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/2 nodes are available: 2 Insufficient cpu."}}
		}, []explain.Finding{
			ok("Address 10.0.1.6 of the pod belongs to node node-1, which is ready and not cordoned"), ok("Condition PodScheduled of the pod is False: 0/2 nodes are available: 2 Insufficient cpu."),
		}},
		"waiting for the release": {func(w *world) { w.unplaced(); w.Record.DeletionTimestamp = &metav1.Time{Time: now} }, []explain.Finding{
			wrong("FixedIP mysql-0 of the pod is being deleted; the pod gets a new address when the previous one (10.0.1.6) is released and the FixedIP is gone", blockedHelp),
		}},
		"waiting, first placement": {func(w *world) { w.unplaced(); w.unreserved() }, []explain.Finding{
			ok("The pod has no address yet; nodes with a free IPv4 or IPv6 address: 2, without: 0"),
		}},
		"waiting for the first reports of the agents": {func(w *world) {
			w.unplaced()
			w.unreserved()
			w.pools[0].Unreported, w.pools[1].Unreported = true, true
		}, []explain.Finding{
			wrong("Nodes whose Cilium agent has not reported yet which addresses are in use: 2; no pod gets a new address there before the agent has reported", "check the cilium pods of these nodes if this does not change"),
		}},
		"waiting for a free address": {func(w *world) { w.unplaced(); w.unreserved(); w.pools = nil }, []explain.Finding{
			wrong("The pod has no address yet; nodes with a free address: 0, without: 0", "delete FixedIPs that are not needed, or add nodes; kubectl fixedip top shows the free addresses of each node"),
		}},

		// The pod does not exist, and its address is still reserved.
		"the StatefulSet exists": {func(w *world) { w.deletePod() }, []explain.Finding{ok("Address 10.0.1.6 is reserved for the pod that StatefulSet mysql is about to create")}},
		"scaled down, Retain": {func(w *world) { w.deletePod(); w.Workload.Replicas = ptr.To[int32](0) }, []explain.Finding{
			{Text: "Address 10.0.1.6 is reserved although StatefulSet mysql has no replica with the name of the pod: whenScaled is Retain", Help: "kubectl -n db delete fixedip mysql-0 releases the address"},
		}},
		"the StatefulSet opted out": {func(w *world) {
			w.deletePod()
			w.Workload.Template = map[string]string{"fixedip.io/enabled": "false"}
		}, []explain.Finding{wrong("Address 10.0.1.6 is about to be released: new pods of StatefulSet mysql have no fixed addresses", blockedHelp)}},
		"deleted, Retain": {func(w *world) { w.deletePod(); w.Workload = nil; w.Record.Spec.Reclaim.WhenDeleted = v1alpha1.Retain }, []explain.Finding{
			{Text: "Address 10.0.1.6 is reserved although StatefulSet mysql is deleted: whenDeleted is Retain", Help: "kubectl -n db delete fixedip mysql-0 releases the address"},
		}},
		"deleted, TTL": {func(w *world) {
			w.deletePod()
			w.Workload = nil
			w.Record.Status.ExpiresAt = &metav1.Time{Time: now.Add(time.Hour)}
		}, []explain.Finding{
			ok("Address 10.0.1.6 is reserved until 2026-11-21 13:00:00 UTC in case StatefulSet mysql expects the pod again"),
		}},
		"deleted, the TTL is over": {func(w *world) {
			w.deletePod()
			w.Workload = nil
			w.Record.Status.ExpiresAt = &metav1.Time{Time: now}
		}, []explain.Finding{wrong("Address 10.0.1.6 is about to be released: the TTL ended at 2026-11-21 12:00:00 UTC", blockedHelp)}},
		"a slot, TTL": {func(w *world) {
			w.ofDeployment()
			w.deletePod()
			w.Record.Status.ExpiresAt = &metav1.Time{Time: now.Add(time.Hour)}
		}, []explain.Finding{
			ok("Address 10.0.1.6 is reserved until 2026-11-21 13:00:00 UTC in case Deployment web needs the slot again"),
		}},
		"the leader does not renew its lease": {func(w *world) {
			w.deletePod()
			w.Workload = nil
			w.Lease.Spec.RenewTime.Time = now.Add(-10 * time.Minute)
		}, []explain.Finding{
			wrong("Address 10.0.1.6 is about to be released: StatefulSet mysql is deleted", blockedHelp),
			wrong("fixedip-controller controller-1 holds Lease fixedip-system/leader and has not renewed it for 10m: addresses are neither recorded nor released", leaderHelp),
		}},
		"no leader": {func(w *world) { w.Lease.Spec.HolderIdentity = nil }, []explain.Finding{
			ok("The pod runs with its fixed address 10.0.1.6"), wrong("No fixedip-controller holds Lease fixedip-system/leader: addresses are neither recorded nor released", leaderHelp),
		}},
		"created by a user, without a workload": {func(w *world) { w.deletePod(); w.Workload = nil; w.Record.Spec.Owner.UID = "" }, []explain.Finding{
			{Text: "Address 10.0.1.6 is reserved for StatefulSet mysql, which does not exist yet", Help: "kubectl -n db delete fixedip mysql-0 releases the address"},
		}},
		"an entry without a FixedIP": {func(w *world) { w.deletePod(); w.Record = nil }, []explain.Finding{
			ok("A pool has an entry for the pod, but neither the pod nor a FixedIP exists; the controller keeps the entry if the workload that it names still expects the pod, or if the kind of that workload is not configured; otherwise it releases the entry"),
		}},
		"an entry that a user wrote, without a FixedIP": {func(w *world) {
			w.deletePod()
			w.Record = nil
			w.pools[0].Entries[netip.MustParseAddr("10.0.1.6")] = pool.ForOwner("db/mysql-0")
		}, []explain.Finding{{
			Text: "A pool has an entry for the pod, but neither the pod nor a FixedIP exists; a user or another program wrote the entry, and it is kept for the pod",
			Help: "if no pod needs the address: in the CiliumNode, change the owner of the entry to fixedip.io/cooldown; the controller then removes the entry when no pod can have the address any more",
		}}},

		"a slot without a pod": {func(w *world) { w.ofDeployment(); w.deletePod() }, []explain.Finding{
			ok("Address 10.0.1.6 is a free slot of Deployment web; the next pod of that workload may take it over, when the Cilium agent has confirmed that pod mysql-0 has stopped"),
		}},
		"workload unknown": {func(w *world) { w.deletePod(); w.Workload, w.Unread = nil, "forbidden" }, []explain.Finding{
			ok("Address 10.0.1.6 is reserved for StatefulSet mysql; it is unknown whether that workload exists: forbidden"),
		}},
		"conditions with problems": {func(w *world) {
			w.Record.Status.Conditions = []metav1.Condition{
				{Type: "SubnetAvailable", Status: metav1.ConditionTrue, Reason: "SubnetAssigned", Message: "A node has the subnet of each reserved IP"},
				{Type: "Allocated", Status: metav1.ConditionFalse, Reason: "OwnedByPod", Message: "10.0.1.6 belongs to web/web-0", LastTransitionTime: metav1.Time{Time: now.Add(-time.Minute)}},
				{Type: "AsReserved", Status: metav1.ConditionTrue, Reason: "AsReserved", Message: "the pod runs with the reserved IPs"},
				{Type: "Exclusive", Status: metav1.ConditionFalse, Reason: "Shared", Message: "web/web-0 has 10.0.1.6", LastTransitionTime: metav1.Time{Time: now.Add(-time.Hour)}},
				// Ready repeats the reason of Allocated, so Explain does not report the condition Ready.
				{Type: "Ready", Status: metav1.ConditionFalse, Reason: "OwnedByPod", Message: "10.0.1.6 belongs to web/web-0", LastTransitionTime: metav1.Time{Time: now.Add(-time.Minute)}},
			}
		}, []explain.Finding{
			ok("The pod runs with its fixed address 10.0.1.6"),
			wrong("Condition Allocated of FixedIP mysql-0 is False (reason OwnedByPod, last transition 60s ago): 10.0.1.6 belongs to web/web-0", ""),
			wrong("Condition Exclusive of FixedIP mysql-0 is False (reason Shared, last transition 60m ago): web/web-0 has 10.0.1.6", ""),
		}},
		"condition Ready with a problem of its own": {func(w *world) {
			w.Record.Status.Conditions = []metav1.Condition{
				{Type: "Allocated", Status: metav1.ConditionTrue, Reason: "Allocated"},
				{Type: "Ready", Status: metav1.ConditionFalse, Reason: "EntriesDiffer", Message: "node node-1 has no entry", LastTransitionTime: metav1.Time{Time: now.Add(-time.Minute)}},
			}
		}, []explain.Finding{
			ok("The pod runs with its fixed address 10.0.1.6"),
			wrong("Condition Ready of FixedIP mysql-0 is False (reason EntriesDiffer, last transition 60s ago): node node-1 has no entry", ""),
		}},

		// A CiliumEndpoint of a previous pod exists.
		"CiliumEndpoint without a pod": {func(w *world) { w.deletePod(); w.Endpoint = endpointOf("pod-0") }, []explain.Finding{
			ok("Address 10.0.1.6 is reserved for the pod that StatefulSet mysql is about to create"),
			wrong("CiliumEndpoint db/mysql-0 still exists, although its pod does not; the controller deletes the CiliumEndpoint after --cep-grace-period, unless --enable-cep-keeper is false", endpointHelp),
		}},
		"CiliumEndpoint of a previous pod": {func(w *world) { w.Endpoint = endpointOf("pod-0") }, []explain.Finding{
			ok("The pod runs with its fixed address 10.0.1.6"),
			wrong("CiliumEndpoint db/mysql-0 belongs to a previous pod, so other nodes may not know the IPs of the pod; the controller corrects or deletes the CiliumEndpoint after --cep-grace-period at the latest, unless --enable-cep-keeper is false", endpointHelp),
		}},
		"CiliumEndpoint in deletion": {func(w *world) {
			w.Endpoint = endpointOf("pod-0")
			w.Endpoint.DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Hour)}
		}, []explain.Finding{
			ok("The pod runs with its fixed address 10.0.1.6"),
			wrong("CiliumEndpoint db/mysql-0 of a previous pod has been in deletion for 60m; the controller removes its finalizers after --cep-termination-timeout, unless --enable-cep-keeper is false", `if the previous pod no longer runs: kubectl -n db patch ciliumendpoint mysql-0 --type=merge -p '{"metadata":{"finalizers":[]}}'`),
		}},

		// The subnets of two nodes overlap.
		"subnets overlap": {func(w *world) { w.unplaced(); w.pools[1] = poolNode("node-2", "10.0.1.0/28", nil) }, []explain.Finding{
			ok("Address 10.0.1.6 of the pod belongs to node node-1, which is ready and not cordoned"),
			wrong("The subnets of node node-1 overlap those of node node-2; no address in them is claimed", overlapHelp),
		}},
		"subnets overlap, no pool has an entry": {func(w *world) {
			w.unplaced()
			w.pools[0], w.pools[1] = poolNode("node-1", "10.0.1.0/29", nil), poolNode("node-2", "10.0.1.0/28", nil)
		}, []explain.Finding{
			ok("Address 10.0.1.6 of the pod is in the subnets of node node-1, which overlap those of another node"),
			wrong("The subnets of node node-1 overlap those of node node-2; no address in them is claimed", overlapHelp),
		}},
	} {
		w := fine()
		c.change(w)
		if diff := cmp.Diff(c.want, w.report().Findings); diff != "" {
			t.Errorf("%s: findings (-want +got): %s", name, diff)
		}
	}
}

func TestFacts(t *testing.T) {
	w := fine()
	w.unplaced()
	w.Nodes["node-1"].Spec.Unschedulable = true
	want := []explain.Fact{
		{What: "Pod", Is: "db/mysql-0, not placed for 5m"},
		{What: "FixedIP", Is: "10.0.1.6, InUse, for StatefulSet mysql"},
		{What: "Pool", Is: "node node-1 has an entry for 10.0.1.6"},
		{What: "Node", Is: "node-1: cordoned; free IPv4 addresses: 4; subnets: 10.0.1.0/29"},
	}
	if diff := cmp.Diff(want, w.report().Facts); diff != "" {
		t.Errorf("facts of a waiting pod (-want +got): %s", diff)
	}
	w = fine()
	w.ofDeployment()
	w.Pod.DeletionTimestamp, w.Pod.DeletionGracePeriodSeconds = &metav1.Time{Time: now.Add(20 * time.Second)}, ptr.To[int64](30)
	want[0].Is, want[1].Is = "db/mysql-0, Terminating for 10s on node node-1 with 10.0.1.6", "10.0.1.6, InUse, for Deployment web (slot web-10-0-1-6)"
	if diff := cmp.Diff(want[:2], w.report().Facts[:2]); diff != "" {
		t.Errorf("facts of a terminating pod of a slot (-want +got): %s", diff)
	}
	w = fine()
	w.deletePod()
	w.unreserved()
	want = []explain.Fact{{What: "Pod", Is: "db/mysql-0 does not exist"}, {What: "FixedIP", Is: "none"}, {What: "Pool", Is: "no node has an owned entry for the pod"}}
	if diff := cmp.Diff(want, w.report().Facts); diff != "" {
		t.Errorf("facts without any object (-want +got): %s", diff)
	}
}
