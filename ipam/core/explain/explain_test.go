// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/explain"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/test/gen"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// endpointOf returns the metadata of a CiliumEndpoint that belongs to a pod.
func endpointOf(pod types.UID) *metav1.ObjectMeta {
	return &metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", UID: pod}}}
}

// world contains the objects that concern pod db/mysql-0. fine returns a world in which the pod runs on node-1 with its
// address.
type world struct {
	explain.Inputs
	pools []pool.NodePool
}

func fine() *world {
	owned := pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")
	return &world{
		Inputs: explain.Inputs{
			Namespace: "db", Name: "mysql-0", Now: now, Schedulers: []string{"fixedip-scheduler", "other-profile"},
			Pod: &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "db", Name: "mysql-0", UID: "pod-1", CreationTimestamp: metav1.Time{Time: now.Add(-5 * time.Minute)},
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql", UID: "sts-1", Controller: ptr.To(true)}},
				},
				Spec:   corev1.PodSpec{NodeName: "node-1", SchedulerName: "fixedip-scheduler"},
				Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.1.6"}}},
			},
			Record: &v1alpha1.FixedIP{
				ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0"},
				Spec: v1alpha1.FixedIPSpec{
					IPs: []string{"10.0.1.6"}, NodeName: "node-1", PodName: "mysql-0",
					Owner:   v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql", UID: "sts-1"},
					Reclaim: v1alpha1.ReclaimPolicy{WhenDeleted: v1alpha1.Delete, WhenScaled: v1alpha1.Retain},
				},
				Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseInUse},
			},
			Workload: &identity.Workload{Namespace: "db", Name: "mysql", UID: "sts-1", Replicas: ptr.To[int32](3)},
			Nodes:    map[string]*corev1.Node{"node-1": node(), "node-2": node()},
			Endpoint: endpointOf("pod-1"),
			Lease:    &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("controller-1"), RenewTime: &metav1.MicroTime{Time: now.Add(-time.Second)}}},
		},
		pools: []pool.NodePool{
			poolNode("node-1", "10.0.1.0/29", map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.6": owned}),
			poolNode("node-2", "10.0.2.0/29", map[string]pool.Entry{"10.0.2.1": {}}),
		},
	}
}

func node() *corev1.Node { return gen.Node("") }

func poolNode(name, cidr string, entries map[string]pool.Entry) pool.NodePool {
	return gen.NodePool(name, cidr, entries)
}

func (w *world) report() explain.Report {
	w.Pools = ledger.New()
	for _, n := range w.pools {
		w.Pools.SetNode(n)
	}
	return explain.Explain(w.Inputs)
}

// unplaced makes the pod Pending and not bound.
func (w *world) unplaced() {
	w.Pod.Spec.NodeName, w.Pod.Status.Phase, w.Pod.Status.PodIPs = "", corev1.PodPending, nil
	w.Endpoint = nil
}

// inZone labels a node with its zone.
func (w *world) inZone(name, zone string) {
	w.Nodes[name].Labels = map[string]string{corev1.LabelTopologyZone: zone}
}

// volumeIn gives the pod a volume that only nodes of a zone can use.
func (w *world) volumeIn(zone string) {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}}
	inZone := corev1.NodeSelectorRequirement{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}
	pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{inZone}}}}}
	w.Volumes = []explain.Volume{{Claim: "data-mysql-0", Volume: pv}}
}

// unreserved removes the FixedIP and the pool entry of the pod.
func (w *world) unreserved() {
	w.Record = nil
	delete(w.pools[0].Entries, netip.MustParseAddr("10.0.1.6"))
}

// ofDeployment makes the pod a pod of a Deployment with a slot.
func (w *world) ofDeployment() {
	w.Pod.OwnerReferences[0].Kind, w.Pod.OwnerReferences[0].Name = "ReplicaSet", "web-5"
	w.Record.Name = "web-10-0-1-6"
	w.Record.Spec.Owner = v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "deploy-1"}
	w.Workload = &identity.Workload{Namespace: "db", Name: "web", UID: "deploy-1", Replicas: ptr.To[int32](3)}
	w.pools[0].Entries[netip.MustParseAddr("10.0.1.6")] = pool.OwnedEntry("db", "mysql-0", "Deployment", "web")
}

// deletePod removes the pod and its CiliumEndpoint.
func (w *world) deletePod() {
	w.Pod, w.Endpoint, w.Record.Status.Phase = nil, nil, v1alpha1.PhaseReserved
}

func ok(text string) explain.Finding { return explain.Finding{Text: text} }

func wrong(text, help string) explain.Finding {
	return explain.Finding{Wrong: true, Text: text, Help: help}
}

func TestFindings(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		want   []explain.Finding
	}{
		"runs with its address": {func(*world) {}, []explain.Finding{ok("The pod runs with its fixed address 10.0.1.6")}},
		"no object has the name": {func(w *world) { w.deletePod(); w.unreserved() }, []explain.Finding{
			wrong("Pod db/mysql-0 does not exist, and neither a FixedIP nor a pool entry has its name", ""),
		}},

		"volume on another node": {func(w *world) { w.unplaced(); w.volumeIn("b"); w.inZone("node-2", "b") }, []explain.Finding{
			ok("Address 10.0.1.6 of the pod belongs to node node-1, which is ready for pods"),
			wrong("Volume pv-1 (claim data-mysql-0) can be used only on node node-2, and address 10.0.1.6 of the pod belongs to node node-1",
				"set the annotation fixedip.io/failover: Migrate on the workload of the pod, so that the address follows the pod, or release the address: kubectl -n db delete fixedip mysql-0"),
		}},
		"volume on no node": {func(w *world) { w.unplaced(); w.volumeIn("c") }, []explain.Finding{
			ok("Address 10.0.1.6 of the pod belongs to node node-1, which is ready for pods"),
			wrong("Volume pv-1 (claim data-mysql-0) can be used on no node that is ready for pods", "add or repair a node that can use the volume"),
		}},
		"volume on the node of the address": {func(w *world) { w.unplaced(); w.volumeIn("a"); w.inZone("node-1", "a") }, []explain.Finding{
			ok("Address 10.0.1.6 of the pod belongs to node node-1, which is ready for pods"),
		}},
		"node deleted, another node inherits the subnet": {func(w *world) {
			w.unplaced()
			w.pools, w.Pod.Status.NominatedNodeName = w.pools[1:], "node-2"
			delete(w.Nodes, "node-1")
		}, []explain.Finding{
			ok("Address 10.0.1.6 of the pod is in no node's subnet; it was on node node-1; node node-2 can run the pod and inherits the subnet when the grace period ends"),
		}},

		// First case: the pod has no fixed address.
		"another scheduler, not adopted": {func(w *world) { w.unreserved(); w.Pod.Spec.SchedulerName = "default-scheduler" }, []explain.Finding{
			wrong("The address of the pod is not fixed: default-scheduler placed it, and the controller has not adopted it",
				`set schedulerName: fixedip-scheduler in the pod template, or labels that the controller's --label-selector matches, or the annotation fixedip.io/enabled: "true"`),
		}},
		"of a Deployment": {func(w *world) {
			w.unreserved()
			w.Pod.OwnerReferences[0].Kind, w.Pod.OwnerReferences[0].Name = "ReplicaSet", "web-5"
		}, []explain.Finding{ok("The pod has no fixed address: it belongs to ReplicaSet web-5, and only pods of StatefulSets have one by default")}},
		"of a Deployment, opted in, waiting": {func(w *world) {
			w.unplaced()
			w.ofDeployment()
			w.unreserved()
			w.Pod.Annotations = map[string]string{"fixedip.io/enabled": "true"}
			w.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "no slot is free"}}
		}, []explain.Finding{
			wrong("The pod is annotated fixedip.io/enabled: true and waits for an address of ReplicaSet web-5", "add its kind of workload to workloads in the scheduler's FixedIPArgs, and to --workload-kind of the controller"),
			ok("fixedip-scheduler reported: no slot is free"),
		}},
		"of a Deployment, opted in, placed without an address": {func(w *world) {
			w.ofDeployment()
			w.unreserved()
			w.Pod.Annotations = map[string]string{"fixedip.io/enabled": "true"}
			w.Pod.Spec.SchedulerName = "default-scheduler"
		}, []explain.Finding{
			wrong("The pod is annotated fixedip.io/enabled: true, and default-scheduler placed it without a fixed address", "set schedulerName: fixedip-scheduler in the pod template; add its kind of workload to workloads in the scheduler's FixedIPArgs, and to --workload-kind of the controller"),
		}},
		"of a Deployment, with a slot": {func(w *world) { w.ofDeployment() }, []explain.Finding{ok("The pod runs with its fixed address 10.0.1.6")}},
		"a bare pod": {func(w *world) { w.unreserved(); w.Pod.OwnerReferences = nil }, []explain.Finding{
			ok("The pod has no fixed address: it is a bare pod without the annotation fixedip.io/enabled: \"true\"; with it, a pod with this name keeps its address"),
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
		"invalid annotation": {func(w *world) { w.Pod.Annotations = map[string]string{"fixedip.io/enabled": "no!"} }, []explain.Finding{
			wrong(`Whether the pod has a fixed address is unknown: annotation fixedip.io/enabled of pod db/mysql-0 is "no!"; write "true" or "false"`, "correct the annotation in the pod template"),
		}},
		"evicted by its kubelet": {func(w *world) { w.Pod.Status.Phase, w.Pod.Status.Reason = corev1.PodFailed, "Evicted" }, []explain.Finding{
			wrong("The pod has ended (Failed, Evicted) and uses no address; 10.0.1.6 stays reserved for the next pod", "kubectl -n db delete pod mysql-0, if the workload does not replace the pod"),
		}},
		"placed by another profile": {func(w *world) { w.Pod.Spec.SchedulerName = "other-profile"; w.unreserved() }, []explain.Finding{
			wrong("The pod is bound to node node-1 without a claim; the agent gives the pod any free address", ""),
		}},
		"placed without a claim": {func(w *world) { w.unreserved() }, []explain.Finding{
			wrong("The pod is bound to node node-1 without a claim; the agent gives the pod any free address", ""),
		}},
		"not running yet": {func(w *world) { w.Pod.Status.PodIPs = nil }, []explain.Finding{
			ok("The pod is about to start on node node-1 and gets 10.0.1.6"),
		}},
		"claimed, without a FixedIP": {func(w *world) { w.Record = nil }, []explain.Finding{
			ok("The pod runs with its fixed address 10.0.1.6"), ok("The claim has no FixedIP yet; the controller creates one when the bound pod has IPs"),
		}},
		"started before the agent saw the entry": {func(w *world) { w.Pod.Status.PodIPs = []corev1.PodIP{{IP: "10.0.1.1"}} }, []explain.Finding{
			wrong("The pod runs with 10.0.1.1, but 10.0.1.6 is reserved for the pod on this node: the agent had not seen the entry when the pod started", "kubectl -n db delete pod mysql-0"),
		}},
		"runs with one of its two addresses": {func(w *world) {
			w.Record.Spec.IPs = append(w.Record.Spec.IPs, "fd00::6")
			w.pools[0].Subnets = append(w.pools[0].Subnets, netip.MustParsePrefix("fd00::/125"))
			w.pools[0].Entries[netip.MustParseAddr("fd00::6")] = w.pools[0].Entries[netip.MustParseAddr("10.0.1.6")]
			w.Pod.Status.PodIPs = []corev1.PodIP{{IP: "10.0.1.6"}, {IP: "fd00::9"}}
		}, []explain.Finding{
			wrong("The pod runs with 10.0.1.6, fd00::9, but 10.0.1.6, fd00::6 is reserved for the pod on this node: the agent had not seen the entry when the pod started", "kubectl -n db delete pod mysql-0"),
		}},
		"runs on another node with another address": {func(w *world) {
			w.Pod.Spec.NodeName, w.Pod.Spec.SchedulerName, w.Pod.Status.PodIPs = "node-2", "default-scheduler", []corev1.PodIP{{IP: "10.0.2.1"}}
		}, []explain.Finding{
			wrong("The pod runs with 10.0.2.1, and its address 10.0.1.6 belongs to node node-1", "set schedulerName: fixedip-scheduler in the pod template, so that the pod returns to the node of its address"),
		}},
		"another pod uses the address": {func(w *world) { w.pools[0].Used[netip.MustParseAddr("10.0.1.6")] = "web/web-0" }, []explain.Finding{
			ok("The pod runs with its fixed address 10.0.1.6"),
			wrong("The agent of node node-1 reports that 10.0.1.6 is used by web/web-0", "delete the one of the two pods that can run with another address"),
		}},

		"waiting for a cordoned node": {func(w *world) { w.unplaced(); w.Nodes["node-1"].Spec.Unschedulable = true }, []explain.Finding{
			wrong("Address 10.0.1.6 of the pod belongs to node node-1, which is cordoned", "kubectl uncordon node-1; the annotation fixedip.io/failover on the workload of the pod allows another node"),
		}},
		"waiting for a node that is not ready": {func(w *world) { w.unplaced(); w.Nodes["node-1"].Status.Conditions = nil }, []explain.Finding{
			wrong("Address 10.0.1.6 of the pod belongs to node node-1, which is not ready", "repair that node; the annotation fixedip.io/failover on the workload of the pod allows another node"),
		}},
		"waiting for a deleted node": {func(w *world) { w.unplaced(); delete(w.Nodes, "node-1") }, []explain.Finding{
			wrong("Address 10.0.1.6 of the pod belongs to node node-1, which does not exist", "add a node with that name; the annotation fixedip.io/failover on the workload of the pod allows another node"),
		}},
		"waiting for the home node, the node after the move was deleted": {func(w *world) {
			w.unplaced()
			a := netip.MustParseAddr("10.0.1.6")
			w.pools[1].Entries[a], w.pools[0].Entries[a] = w.pools[0].Entries[a], pool.MovedEntry("node-2", "db/mysql-0")
			w.Nodes["node-1"].Spec.Unschedulable = true
			delete(w.Nodes, "node-2")
		}, []explain.Finding{
			ok("Address 10.0.1.6 of the pod belongs to node node-2, which does not exist; the address returns to its home node node-1, which is cordoned"),
		}},
		"waiting for a move to another node": {func(w *world) { w.unplaced(); delete(w.Nodes, "node-1"); w.Record.Spec.Failover = v1alpha1.Migrate }, []explain.Finding{
			wrong("Address 10.0.1.6 of the pod belongs to node node-1, which does not exist", "add a node with that name"),
			ok("The failover policy is Migrate: the pod goes to another node when the previous pod has provably stopped"),
		}},
		"waiting for a subnet without a node": {func(w *world) { w.unplaced(); w.pools = w.pools[1:] }, []explain.Finding{
			wrong("Address 10.0.1.6 of the pod is in no node's subnet; it was on node node-1", "add a node with the previous name, which gets the subnet again; kubectl -n db delete fixedip mysql-0 releases the address"),
		}},
		"waiting, with a message of the scheduler": {func(w *world) {
			w.unplaced()
			w.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/2 nodes are available: 2 Insufficient cpu."}}
		}, []explain.Finding{
			ok("Address 10.0.1.6 of the pod belongs to node node-1, which is ready for pods"), ok("fixedip-scheduler reported: 0/2 nodes are available: 2 Insufficient cpu."),
		}},
		"waiting for the release": {func(w *world) { w.unplaced(); w.Record.DeletionTimestamp = &metav1.Time{Time: now} }, []explain.Finding{
			wrong("The previous address 10.0.1.6 of the pod is being released; the pod gets a new one when FixedIP mysql-0 is gone", ""),
		}},
		"waiting, first placement": {func(w *world) { w.unplaced(); w.unreserved() }, []explain.Finding{
			ok("The pod has no address yet; 2 nodes have a free address, 0 have none"),
		}},
		"waiting for the first reports of the agents": {func(w *world) {
			w.unplaced()
			w.unreserved()
			w.pools[0].Unreported, w.pools[1].Unreported = true, true
		}, []explain.Finding{
			wrong("The Cilium agents of 2 nodes have not reported yet which addresses are in use; until they do, no new pod gets an address there", "check the cilium pods of these nodes if this does not change"),
		}},
		"waiting for a free address": {func(w *world) { w.unplaced(); w.unreserved(); w.pools = nil }, []explain.Finding{
			wrong("The pod has no address yet, and none of 0 nodes has a free address", "delete FixedIPs that are not needed, or add nodes; kubectl fixedip nodes shows the free addresses of each node"),
		}},

		// Second case: an address is not released.
		"the StatefulSet exists": {func(w *world) { w.deletePod() }, []explain.Finding{ok("The address is reserved for the pod that StatefulSet mysql is about to create")}},
		"scaled down, Retain": {func(w *world) { w.deletePod(); w.Workload.Replicas = ptr.To[int32](0) }, []explain.Finding{
			{Text: "The address is reserved until StatefulSet mysql is scaled up again: whenScaled is Retain", Help: "kubectl -n db delete fixedip mysql-0 releases the address"},
		}},
		"deleted, Retain": {func(w *world) { w.deletePod(); w.Workload = nil; w.Record.Spec.Reclaim.WhenDeleted = v1alpha1.Retain }, []explain.Finding{
			{Text: "The address is reserved although StatefulSet mysql is deleted: whenDeleted is Retain", Help: "kubectl -n db delete fixedip mysql-0 releases the address"},
		}},
		"deleted, TTL": {func(w *world) {
			w.deletePod()
			w.Workload = nil
			w.Record.Status.ExpiresAt = &metav1.Time{Time: now.Add(time.Hour)}
		}, []explain.Finding{
			ok("The address is reserved until 2026-11-21 13:00:00 UTC in case a pod with this name returns"),
		}},
		"the leader does not renew its lease": {func(w *world) {
			w.deletePod()
			w.Workload = nil
			w.Lease.Spec.RenewTime.Time = now.Add(-10 * time.Minute)
		}, []explain.Finding{
			wrong("StatefulSet mysql is deleted, and the address is about to be released", ""),
			wrong("The leading fixedip-controller (controller-1) has not renewed its lease for 10m: addresses are neither recorded nor released", "check the pods of fixedip-controller"),
		}},
		"no leader": {func(w *world) { w.Lease.Spec.HolderIdentity = nil }, []explain.Finding{
			ok("The pod runs with its fixed address 10.0.1.6"), wrong("No fixedip-controller is the leader: addresses are neither recorded nor released", "check the pods of fixedip-controller"),
		}},
		"created by a user, without a workload": {func(w *world) { w.deletePod(); w.Workload = nil; w.Record.Spec.Owner.UID = "" }, []explain.Finding{
			ok("The address is reserved for StatefulSet mysql, which does not exist yet"),
		}},
		"an entry without a FixedIP": {func(w *world) { w.deletePod(); w.Record = nil }, []explain.Finding{
			wrong("A pool has an entry for this name, but neither a pod nor a FixedIP exists", "if no pod needs the address, remove the owner from the entry in the CiliumNode"),
		}},

		"a slot without a pod": {func(w *world) { w.ofDeployment(); w.deletePod() }, []explain.Finding{
			ok("The address is reserved for the next pod of Deployment web"),
		}},
		"workload unknown": {func(w *world) { w.deletePod(); w.Workload, w.Unread = nil, "forbidden" }, []explain.Finding{
			ok("The address is reserved for StatefulSet mysql; it is unknown whether that workload exists: forbidden"),
		}},
		"conditions with problems": {func(w *world) {
			w.Record.Status.Conditions = []metav1.Condition{
				{Type: "SubnetAvailable", Status: metav1.ConditionTrue, Reason: "SubnetAssigned", Message: "its subnet has node node-1"},
				{Type: "Allocated", Status: metav1.ConditionFalse, Reason: "OwnedByPod", Message: "10.0.1.6 belongs to web/web-0", LastTransitionTime: metav1.Time{Time: now.Add(-time.Minute)}},
				{Type: "Mismatch", Status: metav1.ConditionFalse, Reason: "AsReserved", Message: "the pod runs with the reserved IPs"},
				{Type: "Conflict", Status: metav1.ConditionTrue, Reason: "UsedByOther", Message: "web/web-0 has 10.0.1.6", LastTransitionTime: metav1.Time{Time: now.Add(-time.Hour)}},
			}
		}, []explain.Finding{
			ok("The pod runs with its fixed address 10.0.1.6"),
			wrong("fixedip-controller reported 60s ago: 10.0.1.6 belongs to web/web-0 (OwnedByPod)", ""),
			wrong("fixedip-controller reported 60m ago: web/web-0 has 10.0.1.6 (UsedByOther)", ""),
		}},

		// Third case: a stale CiliumEndpoint.
		"CiliumEndpoint without a pod": {func(w *world) { w.deletePod(); w.Endpoint = endpointOf("pod-0") }, []explain.Finding{
			ok("The address is reserved for the pod that StatefulSet mysql is about to create"),
			wrong("A CiliumEndpoint of this name still exists", "if the pod no longer exists: kubectl -n db delete ciliumendpoint mysql-0"),
		}},
		"CiliumEndpoint of a previous pod": {func(w *world) { w.Endpoint = endpointOf("pod-0") }, []explain.Finding{
			ok("The pod runs with its fixed address 10.0.1.6"),
			wrong("The CiliumEndpoint of this name belongs to a previous pod; an agent does not take over the CiliumEndpoint of another agent", "if the pod no longer exists: kubectl -n db delete ciliumendpoint mysql-0"),
		}},
		"CiliumEndpoint in deletion": {func(w *world) {
			w.Endpoint = endpointOf("pod-0")
			w.Endpoint.DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Hour)}
		}, []explain.Finding{
			ok("The pod runs with its fixed address 10.0.1.6"),
			wrong("The CiliumEndpoint of a previous pod has been in deletion for 60m", `kubectl -n db patch ciliumendpoint mysql-0 --type=merge -p '{"metadata":{"finalizers":[]}}'`),
		}},

		// Fourth case: two nodes have one subnet.
		"subnets overlap": {func(w *world) { w.unplaced(); w.pools[1] = poolNode("node-2", "10.0.1.0/28", nil) }, []explain.Finding{
			ok("Address 10.0.1.6 of the pod belongs to node node-1, which is ready for pods"),
			wrong("The subnets of node node-1 overlap those of node node-2; no IP in them is assigned", "change spec.ipam.podCIDRs of one of the two CiliumNodes"),
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
		{What: "Node", Is: "node-1: cordoned; 4 free IPv4 addresses; subnets 10.0.1.0/29"},
	}
	if diff := cmp.Diff(want, w.report().Facts); diff != "" {
		t.Errorf("facts of a waiting pod (-want +got): %s", diff)
	}
	w = fine()
	w.deletePod()
	w.unreserved()
	want = []explain.Fact{{What: "Pod", Is: "db/mysql-0 does not exist"}, {What: "FixedIP", Is: "none"}, {What: "Pool", Is: "no node has an entry"}}
	if diff := cmp.Diff(want, w.report().Facts); diff != "" {
		t.Errorf("facts without any object (-want +got): %s", diff)
	}
}
