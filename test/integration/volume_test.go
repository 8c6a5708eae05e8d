// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// volumeOn creates a volume that only nodes with a label can use.
func (e *env) volumeOn(name, label, value string) {
	e.t.Helper()
	e.create(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		StorageClassName: "local", PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/data"}},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: label, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}},
		}}}},
	}})
}

// localVolumes creates the StorageClass of the volumes of volumeOn. A PersistentVolumeClaim is bound when its pod is placed.
func (e *env) localVolumes() {
	e.t.Helper()
	e.create(&storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: "kubernetes.io/no-provisioner",
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	})
}

// withVolume gives each pod of a StatefulSet a PersistentVolumeClaim, which is bound when the pod is placed.
func withVolume(s *appsv1.StatefulSet) {
	s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To("local"),
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
	}}}
}

// TestVolumeAndAddress checks that a first placement takes an address on the node of the volume, even if the volume is bound
// only when the pod is placed (finding R2 in docs/project/findings.md). If the address and the volume of a pod are on
// different nodes, the message of the pod reports that, and what helps.
func TestVolumeAndAddress(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1", "node-2"}, controllerArgs: defaultPool})
	for _, node := range []string{"node-1", "node-2"} {
		e.label(node, "disk", node)
	}
	e.localVolumes()
	e.volumeOn("first-1", "disk", "node-1")
	e.create(statefulSet("first", 1, withVolume))
	if r := e.awaitRunning(nil, "first-0")["first-0"]; r.Node != "node-1" {
		t.Errorf("first-0 is on %s, want node-1, which has its volume", r.Node)
	}
	e.volumeOn("second-2", "disk", "node-2")
	e.create(statefulSet("second", 1, withVolume))
	if r := e.awaitRunning(nil, "second-0")["second-0"]; r.Node != "node-2" {
		t.Errorf("second-0 is on %s, want node-2, which has its volume", r.Node)
	}

	e.volumeOn("apart-2", "disk", "node-2")
	e.create(beforehand("apart", "apart-0", e.in("node-1", "77")))
	e.create(statefulSet("apart", 1, withVolume))
	e.podMessage("apart-0", "its address "+e.in("node-1", "77")+" belongs to node node-1, which can't take the pod: node(s) didn't find available persistent volumes to bind; delete the FixedIP to release the address, or provide the volume on that node")
	e.delete(&v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "apart-0"}})
	if r := e.awaitRunning(nil, "apart-0")["apart-0"]; r.Node != "node-2" {
		t.Errorf("apart-0 is on %s after its FixedIP was deleted, want node-2, which has its volume", r.Node)
	}
}

// TestVolumeInAZone checks which node inherits the subnet of a deleted node: a node in the zone of a waiting pod's volume,
// and not a node of another zone to which another waiting pod is nominated (findings R1 and R2 in
// docs/project/findings.md). As long as the node in the zone is cordoned, the FixedIPs explain why no node inherits.
func TestVolumeInAZone(t *testing.T) {
	t.Parallel()
	nodes := []string{"home", "far", "near"}
	e := start(t, options{nodes: nodes, controllerArgs: []string{"--cluster-pool-ipv4-cidr=10.240.0.0/20", "--cluster-pool-ipv4-mask-size=25", "--orphaned-subnet-grace-period=3s"}})
	for node, zone := range map[string]string{"home": "a", "far": "b", "near": "a"} {
		e.label(node, corev1.LabelTopologyZone, zone)
	}
	e.localVolumes()
	e.volumeOn("disk", corev1.LabelTopologyZone, "a")
	e.cordonOthers(nodes, "home")
	e.create(statefulSet("db", 1, withVolume), statefulSet("web", 1))
	before := e.awaitRunning(nil, "db-0", "web-0")
	e.cordonOthers(nodes, "far")
	e.loseNode("home")
	for _, name := range []string{"db-0", "web-0"} {
		e.eventually("FixedIP "+name+" to report that far does not inherit", func() bool {
			available := meta.FindStatusCondition(e.witness.Record(namespace, name).Status.Conditions, v1alpha1.ConditionSubnetAvailable)
			return available != nil && strings.Contains(available.Message, "node far does not inherit the subnet, because it cannot use volume disk (claim data-db-0) of pod "+namespace+"/db-0")
		})
	}
	e.cordon("near", false)
	after := e.awaitRunning(before, "db-0", "web-0")
	for name, r := range after {
		if r.Node != "near" || r.Address != before[name].Address {
			t.Errorf("%s had %s and runs with %s on %s, want the same address on near, which is in the zone of the volume of db-0", name, before[name].Address, r.Address, r.Node)
		}
	}
}
