// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// unhelpful is the text that other plugins add to the scheduler's message if preemption does not help on the only node.
const unhelpful = " no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."

// noRoomOnA is the outcome of a pod if the only node has no free address.
const noRoomOnA = "Unschedulable: 0/1 nodes are available: 1 node(s) had no IPv4 address available for a pod with a fixed address." + unhelpful

// noReportOnA is the outcome of a pod if the agent of the only node has not reported.
const noReportOnA = "Unschedulable: 0/1 nodes are available: 1 node(s) had a Cilium agent that has not reported yet which addresses its pods use." + unhelpful

// cordoned returns the outcome of a pod whose address is on the cordoned one of two nodes.
func cordoned(addr, node string) string {
	return "Unschedulable: 0/2 nodes are available: 1 node(s) didn't satisfy plugin(s) [FixedIP], 1 node(s) were unschedulable." +
		" no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling., its address " + addr + " belongs to node " + node + ", which is cordoned; uncordon that node; to place the pod on another node with another address, annotate its StatefulSet with fixedip.io/failover: Reassign"
}

// needing returns a function that sets the CPU request of a pod template.
func needing(cpu string) func(*corev1.PodTemplateSpec) {
	return func(t *corev1.PodTemplateSpec) {
		t.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse(cpu)}
	}
}

// gone returns a change that fails the row if a pod still exists.
func gone(pod string) func(*scene) {
	return func(s *scene) {
		s.t.Helper()
		err := s.api.Get(within(s.t), client.ObjectKey{Namespace: s.ns, Name: pod}, &corev1.Pod{})
		if !apierrors.IsNotFound(err) {
			s.t.Errorf("get pod %s: got error %v, want NotFound", pod, err)
		}
	}
}

// priority creates a PriorityClass with a higher priority than a filler has, and returns a function that sets it in a pod
// template.
func (s *scene) priority() func(*corev1.PodTemplateSpec) {
	s.t.Helper()
	high := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: s.ns}, Value: 1000}
	s.create(high)
	s.t.Cleanup(func() { s.must(s.api.Delete(context.Background(), high)) })
	return func(t *corev1.PodTemplateSpec) { t.Spec.PriorityClassName = high.Name }
}

// filler creates a pod that uses most of the CPU of a node and can be preempted. Finalizers delay its deletion until the row
// removes them.
func (s *scene) filler(node string, finalizers ...string) {
	s.t.Helper()
	filler := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "filler", Finalizers: finalizers}, Spec: s.podSpec()}
	filler.Spec.SchedulerName, filler.Spec.NodeName = "another", node
	filler.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("600m")}
	s.create(filler)
}

// nominated fails the row unless the pod is nominated to the node.
func (s *scene) nominated(pod, node string) {
	s.t.Helper()
	var p corev1.Pod
	s.must(s.api.Get(within(s.t), client.ObjectKey{Namespace: s.ns, Name: pod}, &p))
	if p.Status.NominatedNodeName != node {
		s.t.Errorf("pod %s: got nominated node %q, want %q", pod, p.Status.NominatedNodeName, node)
	}
}

func TestWaiting(t *testing.T) {
	play(t, map[string]row{
		"a pod waits for its cordoned node": {
			world: twoNodes,
			steps: placed(
				step{before: func(s *scene) { s.cordon("b", false); s.cordon("a", true); s.removes("web-0") }},
				step{rest: map[string]string{"web-0": cordoned("10.1.0.6", "a")}, before: func(s *scene) { s.cordon("a", false) }},
				step{at: bind, then: bound("web-0", "a")},
				step{rest: map[string]string{"web-0": "on a"}},
			),
		},
		"a pod preempts on its full node": {
			world: func(s *scene) {
				high := s.priority()
				s.node("b", "10.2.0.0/29")
				s.cordon("b", true)
				s.node("a", "10.1.0.0/29")
				s.statefulSet("web", needing("600m"), high)
			},
			steps: placed(
				step{before: func(s *scene) {
					s.cordon("b", false)
					s.filler("a")
					s.removes("web-0")
				}},
				step{at: preFilter},
				step{at: filter},
				// The preempted pod is deleted, and web-0 is nominated to node a.
				step{at: preFilter},
				step{at: filter},
				step{at: bind, then: bound("web-0", "a")},
				step{rest: map[string]string{"web-0": "on a"}, before: gone("filler")},
			),
		},
		"the second of two pods waits until the last address is free": {
			world: func(s *scene) {
				s.node("a", "10.1.0.0/30")
				s.takes("other-0", "a", "10.1.0.2")
				s.statefulSet("web")
			},
			steps: []step{
				{at: reserve, before: func(s *scene) { s.statefulSet("db") }},
				{at: preBind, then: claimed("a", "10.1.0.1")},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{
					"web-0": "on a",
					"db-0":  noRoomOnA,
				}, before: func(s *scene) { s.frees("a", "10.1.0.2") }},
				{at: preBind, pod: "db-0", then: func(s *scene, want *stored) {
					want.entry("a", "10.1.0.2", s.ns+"/db-0", s.ns+"/StatefulSet/db")
					want.Writes++
				}},
				{at: bind, pod: "db-0", then: bound("db-0", "a")},
				{rest: map[string]string{"web-0": "on a", "db-0": "on a"}},
			},
		},
		"a pod is not placed on its nominated node if its entry is on another node": {
			world: func(s *scene) {
				high := s.priority()
				s.node("a", "10.1.0.0/30")
				s.takes("other-0", "a", "10.1.0.1")
				s.takes("other-1", "a", "10.1.0.2")
				s.node("b", "10.2.0.0/29")
				// The preempted pod stays terminating until the row removes its finalizer.
				s.filler("b", "row.test/stays")
				s.statefulSet("web", needing("600m"), high)
			},
			steps: []step{
				{rest: map[string]string{"web-0": "Unschedulable: 0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had no IPv4 address available for a pod with a fixed address."},
					before: func(s *scene) {
						s.nominated("web-0", "b")
						s.patch(&corev1.Pod{}, "filler", `{"metadata":{"finalizers":null}}`)
					}},
				// A user writes an entry for web-0 on node a.
				{at: preFilter, before: func(s *scene) {
					s.takes("web-0", "a", "10.1.0.2")
					s.seesAt("web-0", "a")
					s.nominated("web-0", "b")
				}},
				// The scheduler tries the nominated node b first, which the other plugins accept.
				{at: filter},
				{at: reserve},
				{at: preBind},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}, before: gone("filler")},
			},
		},
		"a pod waits for an address that a FixedIP reserves until the FixedIP is deleted": {
			world: func(s *scene) {
				s.node("a", "10.1.0.0/30")
				s.takes("other-1", "a", "10.1.0.1")
				s.createFixedIP("other-0", "other", "", "10.1.0.2")
				s.statefulSet("web")
			},
			steps: []step{
				{rest: map[string]string{"web-0": noRoomOnA}, before: func(s *scene) { s.deleteFixedIP("other-0") }},
				{at: preBind, then: claimed("a", "10.1.0.2")},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
		"a pod waits while its FixedIP is being deleted": {
			world: func(s *scene) {
				s.createFixedIP("web-0", "web", "a", "10.1.0.3")
				oneNode(s)
			},
			steps: []step{
				{at: preFilter, before: func(s *scene) {
					s.seesAt("web-0", "a")
					s.must(s.api.Delete(within(s.t), &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "web-0"}}))
					s.seesDeletion("web-0", "a")
				}, answer: "UnschedulableAndUnresolvable: FixedIP web-0 of the pod (10.1.0.3) is being deleted; the pod gets a new address when that FixedIP is gone"},
				{rest: map[string]string{"web-0": "Unschedulable: 0/1 nodes are available: FixedIP web-0 of the pod (10.1.0.3) is being deleted; the pod gets a new address when that FixedIP is gone." + unhelpful},
					before: func(s *scene) {
						s.patch(&v1alpha1.FixedIP{}, "web-0", `{"metadata":{"finalizers":null}}`)
						delete(s.want.FixedIPs, "web-0")
					}},
				{at: preBind, then: claimed("a", "10.1.0.6")},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
	})
}
