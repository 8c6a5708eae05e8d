// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"net/netip"
	"time"

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

// world contains the objects that concern pod db/mysql-0.
type world struct {
	explain.Inputs
	pools []pool.NodePool
}

// fine returns a world in which the pod runs on node-1 with its address.
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
				Status: v1alpha1.FixedIPStatus{PodUID: "pod-1"},
			},
			Workload: &identity.Workload{Namespace: "db", Name: "mysql", UID: "sts-1", Replicas: ptr.To[int32](3)},
			Nodes:    map[string]*corev1.Node{"node-1": node(), "node-2": node()},
			Endpoint: endpointOf("pod-1"),
			Lease:    &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "fixedip-system", Name: "leader"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("controller-1"), RenewTime: &metav1.MicroTime{Time: now.Add(-time.Second)}}},
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

// unplaced makes the pod Pending and not bound, and removes its CiliumEndpoint.
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
	w.Record.Name, w.Record.Spec.AssignedTo = "web-10-0-1-6", v1alpha1.Slot
	w.Record.Spec.Owner = v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "deploy-1"}
	w.Workload = &identity.Workload{Namespace: "db", Name: "web", UID: "deploy-1", Replicas: ptr.To[int32](3)}
	w.pools[0].Entries[netip.MustParseAddr("10.0.1.6")] = pool.OwnedEntry("db", "mysql-0", "Deployment", "web")
}

// ofDaemonSet makes the pod a pod of DaemonSet logs.
func (w *world) ofDaemonSet() {
	w.Pod.OwnerReferences[0].Kind, w.Pod.OwnerReferences[0].Name = "DaemonSet", "logs"
}

// deletePod removes the pod and its CiliumEndpoint, and clears status.podUID of the FixedIP.
func (w *world) deletePod() {
	w.Pod, w.Endpoint, w.Record.Status.PodUID = nil, nil, ""
}
