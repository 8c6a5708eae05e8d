// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/scheme"
)

// zones are the zones of the nodes if pods have volumes.
var zones = []string{"east", "west"}

// minNodesOfZone is the minimum number of nodes at rest in each zone with volumes, so that all pods of the zone get addresses.
const minNodesOfZone = 2

// volumeWorld is the state of a run that concerns volumes. If the setup has volumes, each pod of a StatefulSet has one. The
// volume is in the zone of the node on which the pod was first placed, as with the binding mode WaitForFirstConsumer, and
// remains when the pod and its StatefulSet are deleted.
type volumeWorld struct {
	// apart are the pods whose volume was provisioned while their reserved addresses were in another zone. Key: the pod, as
	// namespace/name.
	apart map[string]bool
}

func newVolumeWorld() volumeWorld {
	return volumeWorld{apart: map[string]bool{}}
}

// nextZone returns the zone of the next node; empty if the setup has no volumes. The zone changes at every second node
// only, because every second node may be strict: otherwise all strict nodes would be in one zone.
func (w *world) nextZone() string {
	if !w.setup.volumes {
		return ""
	}
	return zones[(w.machinesMade+1)/2%2]
}

// hasVolume reports whether a pod has a volume or gets one with its first placement.
func (w *world) hasVolume(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	return w.setup.volumes && owner != nil && owner.Kind == statefulSets.gvk.Kind
}

// outsideZone reports whether a pod has a volume, and the volume is in another zone than the given one.
func (w *world) outsideZone(pod, zone string) bool {
	at := w.volumeZone(pod)
	return at != "" && at != zone
}

// volumeZone returns the zone of the volume of a pod; empty if the pod has none. The claim of a pod has the name of the pod.
func (w *world) volumeZone(pod string) string {
	claim, ok := one[*corev1.PersistentVolumeClaim](w.server, claims, pod)
	if !ok {
		return ""
	}
	volume, _ := one[*corev1.PersistentVolume](w.server, volumes, claim.Spec.VolumeName)
	return volume.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0]
}

// addVolume creates the volume of a pod in a zone, and the claim that is bound to it.
func (w *world) addVolume(pod *corev1.Pod, zone string) {
	in := corev1.NodeSelectorRequirement{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}
	affinity := &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{in}}}}}
	w.server.mustCreate(volumes, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "of-" + pod.Name}, Spec: corev1.PersistentVolumeSpec{NodeAffinity: affinity}}, "provisioner")
	w.server.mustCreate(claims, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "of-" + pod.Name}}, "provisioner")
}

// deleteVolume deletes a claim and its volume.
func (w *world) deleteVolume(claim *corev1.PersistentVolumeClaim) {
	must(w.server.remove(claims, keyOf(claim), nil, true, "user"))
	must(w.server.remove(volumes, claim.Spec.VolumeName, nil, true, "user"))
}

// zoneOf returns the zone of the node whose subnet contains an address; empty if there is none.
func (w *world) zoneOf(ip string) string {
	for _, m := range w.machines {
		if cn, ok := one[*ciliumv2.CiliumNode](w.server, ciliumNodes, m.name); ok && serves(cn, ip) {
			return m.zone
		}
	}
	return ""
}

// provision creates the volume of a pod in the zone of the node that a scheduler has chosen, unless the volume exists.
// It fails if the volume exists in another zone.
func (w *world) provision(pod *corev1.Pod, node string) *fwk.Status {
	if !w.hasVolume(pod) {
		return nil
	}
	key, zone := keyOf(pod), w.machine(node).zone
	if w.outsideZone(key, zone) {
		return fwk.AsStatus(fmt.Errorf("the volume of pod %s is in zone %s, but node %s is in zone %s", key, w.volumeZone(key), node, zone))
	}
	if w.volumeZone(key) == "" {
		w.logf("the volume of pod %s is provisioned in zone %s", key, zone)
		w.addVolume(pod, zone)
		delete(w.apart, key)
		if r, ok := one[*v1alpha1.FixedIP](w.server, fixedIPs, key); ok && w.machine(r.Spec.NodeName) != nil && w.machine(r.Spec.NodeName).zone != zone {
			w.apart[key] = true
		}
	}
	return nil
}

// volumeUserActions returns the possible actions of users on volumes.
func (w *world) volumeUserActions() []action {
	var d []action
	for _, claim := range all[*corev1.PersistentVolumeClaim](w.server, claims) {
		if _, exists := one[*corev1.Pod](w.server, pods, keyOf(claim)); !exists {
			d = append(d, action{"delete volume: of pod " + keyOf(claim), func() { w.deleteVolume(claim) }})
		}
	}
	return d
}

// provideNodes creates nodes in each zone with volumes until the zone has minNodesOfZone nodes.
func (w *world) provideNodes() {
	for _, zone := range zones {
		if !slices.ContainsFunc(all[*corev1.PersistentVolumeClaim](w.server, claims), func(c *corev1.PersistentVolumeClaim) bool { return w.volumeZone(keyOf(c)) == zone }) {
			continue
		}
		has := 0
		for _, m := range w.machines {
			if m.zone == zone && w.hasNode(m) {
				has++
			}
		}
		for ; has < minNodesOfZone; has++ {
			w.newMachineIn(zone)
		}
	}
}

// waitsForVolume reports whether the pod of a FixedIP may wait because its address and its volume are in different zones,
// and its failover policy does not let the address move. A migration had failed after the volume was provisioned, and a user
// has changed the policy since. Only a user can decide whether the pod gives up the address or the volume.
func (w *world) waitsForVolume(r *v1alpha1.FixedIP) bool {
	return w.apart[keyOf(r)] && r.Spec.Failover != v1alpha1.Migrate && r.Spec.Failover != v1alpha1.Reassign
}

// joinElsewhere deletes a node for good, and lets a node of another zone join after the grace period.
func (w *world) joinElsewhere(lost *machine) {
	lost.powerOff()
	w.deleteNode(lost)
	w.waitIdle()
	w.calm(orphanGrace + time.Minute)
	for _, zone := range zones {
		if zone != lost.zone {
			w.newMachineIn(zone)
		}
	}
}

// TestNoInheritanceAcrossZones checks that a node of another zone, which joins first, does not inherit the subnet of a deleted
// node: otherwise the pods with volumes could not run with their addresses after a node of their zone joins.
func TestNoInheritanceAcrossZones(t *testing.T) {
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer func() {
			cancel()
			synctest.Wait()
		}()
		w := newWorld(ctx, kinds, setup{volumes: true}, map[string]int{})
		w.newSet("a", 2, nil)
		w.waitIdle()
		w.calm(time.Minute)
		pod, exists := one[*corev1.Pod](w.server, pods, namespace+"/a-0")
		if !exists || pod.Spec.NodeName == "" {
			t.Fatal("pod a-0 was not placed")
		}
		lost := w.machine(pod.Spec.NodeName)
		of, exists := one[*ciliumv2.CiliumNode](w.server, ciliumNodes, lost.name)
		if !exists {
			t.Fatalf("node %s has no CiliumNode", lost.name)
		}
		w.joinElsewhere(lost)
		w.calm(time.Minute)
		for _, m := range w.machines {
			cn, ok := one[*ciliumv2.CiliumNode](w.server, ciliumNodes, m.name)
			if ok && m.zone != lost.zone && slices.ContainsFunc(cn.Spec.IPAM.PodCIDRs, func(s string) bool { return slices.Contains(of.Spec.IPAM.PodCIDRs, s) }) {
				t.Errorf("node %s in zone %s has the podCIDRs %v, want none of those of %s in zone %s: %v", m.name, m.zone, cn.Spec.IPAM.PodCIDRs, lost.name, lost.zone, of.Spec.IPAM.PodCIDRs)
			}
		}
		w.newMachineIn(lost.zone)
		if err := w.rest(); err != nil {
			t.Error(err)
		}
	})
}
