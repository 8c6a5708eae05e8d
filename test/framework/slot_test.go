// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// flock creates the workload web of the kind Flock, whose pods have slots.
func (s *scene) flock() {
	s.t.Helper()
	f := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Flock", "metadata": map[string]any{"namespace": s.ns, "name": "web"}}}
	s.create(f)
	s.flockUID = f.GetUID()
	s.t.Cleanup(func() { s.must(s.api.Delete(context.Background(), f)) })
}

// joins creates a pod of the flock.
func (s *scene) joins(name string) {
	s.t.Helper()
	s.create(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.ns, Name: name, Annotations: map[string]string{"fixedip.io/enabled": "true"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Flock", Name: "web", UID: s.flockUID, Controller: ptr.To(true)}},
		},
		Spec: s.podSpec(),
	})
}

// slotName returns the name of the FixedIP of a slot of the flock.
func slotName(addr string) string { return "web-" + strings.ReplaceAll(addr, ".", "-") }

// createSlotFixedIP creates the FixedIP of a slot of the flock on node a. pod is the holder of the slot, or the last one.
func (s *scene) createSlotFixedIP(pod, addr string) {
	s.t.Helper()
	spec := v1alpha1.FixedIPSpec{
		IPs: []string{addr}, NodeName: "a", PodName: pod, AssignedTo: v1alpha1.Slot, Owner: v1alpha1.OwnerReference{APIVersion: "example.com/v1", Kind: "Flock", Name: "web", UID: s.flockUID},
		Reclaim: v1alpha1.ReclaimPolicy{WhenDeleted: v1alpha1.Delete, WhenScaled: v1alpha1.Retain},
	}
	s.create(&v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: slotName(addr)}, Spec: spec})
	s.want.FixedIPs[slotName(addr)] = spec
}

// vacates sets status.vacatedBy in the FixedIP of the slot with address 10.1.0.6. If there is no FixedIP, vacates first
// creates one whose last holder is web-x.
func (s *scene) vacates(pod string) {
	s.t.Helper()
	name := slotName("10.1.0.6")
	if _, exists := s.want.FixedIPs[name]; !exists {
		s.createSlotFixedIP("web-x", "10.1.0.6")
	}
	s.status(name, fmt.Sprintf(`{"status":{"vacatedBy":%q}}`, pod))
}

// vacant creates the entry and the FixedIP of a slot of the flock on node a whose last holder does not exist. Call it
// before the scheduler starts.
func (s *scene) vacant(pod, addr string) {
	s.t.Helper()
	owner, resource := s.ns+"/"+pod, s.ns+"/Flock.example.com/web"
	s.patch(&ciliumv2.CiliumNode{}, "a", fmt.Sprintf(`{"spec":{"ipam":{"pool":{%q:{"owner":%q,"resource":%q}}}}}`, addr, owner, resource))
	s.want.entry("a", addr, owner, resource)
	s.createSlotFixedIP(pod, addr)
}

// notVacated is the outcome of a pod of the flock before the controller has published that the slot of web-x is vacated.
const notVacated = "Unschedulable: 0/2 nodes are available: its Flock has the IPs of one pod that has ended, was deleted or is being deleted; the pod waits until it can take over such an IP: 10.1.0.6 on node a (the controller and the agent there have not confirmed yet that pod NS/web-x has stopped)*"

// slotted returns a function that adds the claim of a slot to want. The slot is new, or the pod takes it over.
func slotted(pod, node, addr string) func(*scene, *stored) {
	return func(s *scene, want *stored) {
		want.entry(node, addr, s.ns+"/"+pod, s.ns+"/Flock.example.com/web")
		want.Writes++
	}
}

// flocked returns the steps of the first placement of web-x with the highest address of node a, and then the given ones.
func flocked(then ...step) []step {
	return append([]step{
		{at: preBind, pod: "web-x", then: slotted("web-x", "a", "10.1.0.6")},
		{at: bind, pod: "web-x", then: bound("web-x", "a")},
		{at: postBind, pod: "web-x"},
		{rest: map[string]string{"web-x": "on a"}},
	}, then...)
}

// slotCordoned is the outcome of a pod whose slot is on the cordoned one of two nodes.
const slotCordoned = "Unschedulable: 0/2 nodes are available: 1 node(s) didn't satisfy plugin(s) [FixedIP], 1 node(s) were unschedulable*"

func TestSlots(t *testing.T) {
	world := func(s *scene) {
		s.node("b", "10.2.0.0/29")
		s.cordon("b", true)
		s.node("a", "10.1.0.0/29")
		s.flock()
		s.joins("web-x")
	}
	play(t, map[string]row{
		"a pod takes over the slot of a deleted pod": {
			world: world,
			steps: flocked(
				step{before: func(s *scene) { s.cordon("b", false); s.removes("web-x"); s.joins("web-y") }},
				step{rest: map[string]string{"web-y": notVacated}, before: func(s *scene) { s.vacates("web-x") }},
				step{at: preBind, pod: "web-y", then: slotted("web-y", "a", "10.1.0.6")},
				step{at: bind, pod: "web-y", then: bound("web-y", "a")},
				step{rest: map[string]string{"web-y": "on a"}},
			),
		},
		"a second pod gets another slot": {
			world: world,
			steps: flocked(
				step{before: func(s *scene) { s.joins("web-y") }},
				step{at: preBind, pod: "web-y", then: slotted("web-y", "a", "10.1.0.5")},
				step{at: bind, pod: "web-y", then: bound("web-y", "a")},
				step{rest: map[string]string{"web-x": "on a", "web-y": "on a"}},
			),
		},
		"a pod waits for a slot that is still in use": {
			world: world,
			steps: flocked(
				step{before: func(s *scene) {
					s.uses("a", "10.1.0.6", "web-x")
					s.removes("web-x")
					s.cordon("b", false)
					s.joins("web-y")
				}},
				step{rest: map[string]string{"web-y": "Unschedulable: 0/2 nodes are available: its Flock has the IPs of one pod that has ended, was deleted or is being deleted; the pod waits until it can take over such an IP: 10.1.0.6 on node a (the agent there still reports the address as used by NS/web-x)*"},
					before: func(s *scene) { s.uses("a", "10.1.0.6", ""); s.vacates("web-x") }},
				step{at: preBind, pod: "web-y", then: slotted("web-y", "a", "10.1.0.6")},
				step{at: bind, pod: "web-y", then: bound("web-y", "a")},
				step{rest: map[string]string{"web-y": "on a"}},
			),
		},
		"a slot that comes into use before the claim is not taken over": {
			world: world,
			steps: flocked(
				step{before: func(s *scene) { s.removes("web-x"); s.vacates("web-x"); s.joins("web-y") }},
				step{at: preBind, pod: "web-y", before: func(s *scene) { s.uses("a", "10.1.0.6", "web-x") },
					answer: "Unschedulable: the pod did not get the address that was chosen for it: IP 10.1.0.6 on node a is still in use by pod NS/web-x; the pod is tried again"},
				step{rest: map[string]string{"web-y": "Unschedulable: 0/2 nodes are available: its Flock has the IPs of one pod*"}, before: func(s *scene) { s.uses("a", "10.1.0.6", "") }},
				step{at: preBind, pod: "web-y", then: slotted("web-y", "a", "10.1.0.6")},
				step{at: bind, pod: "web-y", then: bound("web-y", "a")},
				step{rest: map[string]string{"web-y": "on a"}},
			),
		},
		"a pod waits for a slot that an earlier holder has vacated, but not the last one": {
			world: world,
			steps: flocked(
				step{before: func(s *scene) {
					s.cordon("b", false)
					s.removes("web-x")
					s.vacates("web-w")
					s.joins("web-y")
				}},
				step{rest: map[string]string{"web-y": notVacated}, before: func(s *scene) { s.vacates("web-x") }},
				step{at: preBind, pod: "web-y", then: slotted("web-y", "a", "10.1.0.6")},
				step{at: bind, pod: "web-y", then: bound("web-y", "a")},
				step{rest: map[string]string{"web-y": "on a"}},
			),
		},
		"a slot that is vacated before the next pod exists is taken over at once": {
			world: world,
			steps: flocked(
				step{before: func(s *scene) { s.cordon("b", false); s.removes("web-x"); s.vacates("web-x"); s.joins("web-y") }},
				step{at: preBind, pod: "web-y", then: slotted("web-y", "a", "10.1.0.6")},
				step{at: bind, pod: "web-y", then: bound("web-y", "a")},
				step{rest: map[string]string{"web-y": "on a"}},
			),
		},
		"one pod waits for a slot on a cordoned node, and another pod does not": {
			// The scheduler has seen that the slot is vacated before it tries the pod.
			world: func(s *scene) {
				s.node("b", "10.2.0.0/29")
				s.node("a", "10.1.0.0/29")
				s.cordon("a", true)
				s.flock()
				s.vacant("web-x", "10.1.0.6")
				s.vacates("web-x")
				s.joins("web-y")
			},
			steps: []step{
				{rest: map[string]string{"web-y": slotCordoned}, before: func(s *scene) { s.joins("web-z") }},
				{at: preBind, pod: "web-z", then: slotted("web-z", "b", "10.2.0.6")},
				{at: bind, pod: "web-z", then: bound("web-z", "b")},
				{rest: map[string]string{"web-y": slotCordoned, "web-z": "on b"}, before: func(s *scene) { s.cordon("a", false) }},
				{at: preBind, pod: "web-y", then: slotted("web-y", "a", "10.1.0.6")},
				{at: bind, pod: "web-y", then: bound("web-y", "a")},
				{rest: map[string]string{"web-y": "on a", "web-z": "on b"}},
			},
		},
		"a slot that another fixedip-scheduler claims during the cycle is not claimed again": {
			world: world,
			steps: flocked(
				step{before: func(s *scene) { s.removes("web-x"); s.vacates("web-x"); s.joins("web-y") }},
				// Another fixedip-scheduler claims the slot for its pod web-w. The row's scheduler does not place web-w.
				step{at: preBind, pod: "web-y", before: func(s *scene) {
					s.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "web-w"}, Spec: func() corev1.PodSpec { p := s.podSpec(); p.SchedulerName = "another"; return p }()})
					s.patch(&ciliumv2.CiliumNode{}, "a", fmt.Sprintf(`{"spec":{"ipam":{"pool":{"10.1.0.6":{"owner":%q,"resource":%q}}}}}`, s.ns+"/web-w", s.ns+"/Flock.example.com/web"))
					s.want.entry("a", "10.1.0.6", s.ns+"/web-w", s.ns+"/Flock.example.com/web")
				}, answer: "Unschedulable: the pod did not get the address that was chosen for it: IP 10.1.0.6 on node a belongs to pod NS/web-w; the pod is tried again"},
				step{at: preBind, pod: "web-y", then: slotted("web-y", "a", "10.1.0.5")},
				step{at: bind, pod: "web-y", then: bound("web-y", "a")},
				step{rest: map[string]string{"web-y": "on a"}},
			),
		},
	})
}
