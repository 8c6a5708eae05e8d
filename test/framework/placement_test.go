// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// oneNode creates a cluster of one node with six addresses and a StatefulSet of one pod.
func oneNode(s *scene) {
	s.node("a", "10.1.0.0/29")
	s.statefulSet("web")
}

// dualNode creates the cluster of oneNode with addresses of both families.
func dualNode(s *scene) {
	s.node("a", "10.1.0.0/29", "fd00:1::/125")
	s.statefulSet("web")
}

// twoNodes creates the cluster of oneNode with a second node b, which is cordoned.
func twoNodes(s *scene) {
	s.node("b", "10.2.0.0/29")
	s.cordon("b", true)
	oneNode(s)
}

// claimed returns a function that adds the claim of pod web-0 on a node to want.
func claimed(node string, addrs ...string) func(*scene, *stored) {
	return func(s *scene, want *stored) {
		for _, a := range addrs {
			want.entry(node, a, s.ns+"/web-0", s.ns+"/StatefulSet/web")
		}
		want.Writes++
	}
}

// bound returns a function that adds the bind of a pod to want.
func bound(pod, node string) func(*scene, *stored) {
	return func(_ *scene, want *stored) { want.Bound[pod] = node }
}

// placed returns the steps of a first placement of web-0 with the highest address of node a, and then the given ones.
func placed(then ...step) []step {
	return append([]step{
		{at: preBind, then: claimed("a", "10.1.0.6")},
		{at: bind, then: bound("web-0", "a")},
		{at: postBind},
		{rest: map[string]string{"web-0": "on a"}},
	}, then...)
}

// supplanted is the reason why web-0 waits while the pool of node a has an entry for web-0 with another address than
// the FixedIP of web-0 names.
const supplanted = "the pool of node a has IP 10.1.0.5 for the pod's name, in addition to the addresses of its FixedIP or in place of them; the pod is placed after the controller has released IP 10.1.0.5"

// occupied is the reason why web-0 waits while another pod uses its address.
const occupied = "IP 10.1.0.6 on node a is still in use by NS/filler; the pod can be placed there when that pod is deleted or has ended"

// has sets the phase of a pod to Running, and its address in the status. If the scheduler runs, has waits until the
// scheduler's watch shows the address.
func (s *scene) has(pod, addr string) {
	s.t.Helper()
	s.must(s.api.Status().Patch(within(s.t), s.pod(pod), client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%q}]}}`, addr, addr))))
	if s.cached == nil {
		return
	}
	s.until("the scheduler's watch shows the address of pod "+pod, func() bool {
		p, err := s.cached.Pods(s.ns).Get(pod)
		return err == nil && len(p.Status.PodIPs) > 0
	})
}

func (s *scene) pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name}}
}

// calls returns a change that fails the row unless each point was called this many times for web-0.
func calls(times int, points ...point) func(*scene) {
	return func(s *scene) {
		s.t.Helper()
		for _, p := range points {
			if got := s.passed[key("web-0", p)]; got != times {
				s.t.Errorf("%s was called %d times for web-0, want %d", p, got, times)
			}
		}
	}
}

func TestPlacement(t *testing.T) {
	play(t, map[string]row{
		"a pod without a fixed address is placed without a claim": {
			world: func(s *scene) {
				s.node("a", "10.1.0.0/29")
				s.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "web-0"}, Spec: s.podSpec()})
			},
			steps: []step{
				{at: preFilter, answer: "Skip"},
				{at: reserve},
				{at: preBind},
				{at: bind, then: bound("web-0", "a")},
				{at: postBind},
				{rest: map[string]string{"web-0": "on a"}, before: calls(0, filter, unreserve)},
			},
		},
		"nothing is stored before PreBind, an entry after it, and then the bind": {
			world: oneNode,
			steps: []step{
				{at: preFilter},
				{at: filter},
				{at: reserve},
				{at: permit},
				{at: preBind, then: claimed("a", "10.1.0.6")},
				{at: laterPreBind},
				{at: bind, then: bound("web-0", "a")},
				{at: postBind},
				{rest: map[string]string{"web-0": "on a"}, before: calls(0, unreserve)},
			},
		},
		"both families are claimed in one write, on a node with free addresses of both": {
			families: []string{"IPv4", "IPv6"},
			world: func(s *scene) {
				s.node("b", "10.2.0.0/29")
				s.node("a", "10.1.0.0/29", "fd00:1::/125")
				s.statefulSet("web")
			},
			steps: []step{
				{at: reserve},
				{at: preBind, then: claimed("a", "10.1.0.6", "fd00:1::7")},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
		"an address that only a FixedIP names is claimed": {
			world: func(s *scene) {
				s.node("b", "10.2.0.0/29")
				s.createFixedIP("web-0", "web", "a", "10.1.0.3")
				oneNode(s)
			},
			steps: []step{
				{at: reserve},
				{at: preBind, then: claimed("a", "10.1.0.3")},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
		"an address that a FixedIP reserves for another pod is not claimed": {
			world: func(s *scene) {
				s.createFixedIP("other-0", "other", "", "10.1.0.6")
				oneNode(s)
			},
			steps: []step{
				{at: preBind, then: claimed("a", "10.1.0.5")},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
		"an address of the family that a FixedIP lacks is claimed in the same write": {
			families: []string{"IPv4", "IPv6"},
			world: func(s *scene) {
				s.node("b", "10.2.0.0/29", "fd00:2::/125")
				s.createFixedIP("web-0", "web", "a", "10.1.0.3")
				dualNode(s)
			},
			steps: []step{
				{at: reserve},
				{at: preBind, then: claimed("a", "10.1.0.3", "fd00:1::7")},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
		"an address of the second family is claimed on the node that has an entry of the first family for the pod": {
			families: []string{"IPv4", "IPv6"},
			world: func(s *scene) {
				s.node("b", "10.2.0.0/29", "fd00:2::/125")
				dualNode(s)
				s.takes("web-0", "a", "10.1.0.3")
			},
			steps: []step{
				{at: reserve},
				{at: preBind, then: claimed("a", "fd00:1::7")},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
		"a pod waits while the pool of its node has another address for it than its FixedIP": {
			world: func(s *scene) {
				s.createFixedIP("web-0", "web", "a", "10.1.0.3")
				oneNode(s)
				s.takes("web-0", "a", "10.1.0.5")
			},
			steps: []step{
				{at: preFilter, answer: "UnschedulableAndUnresolvable: " + supplanted},
				{rest: map[string]string{"web-0": "Unschedulable: 0/1 nodes are available: " + supplanted + "." + unhelpful},
					before: func(s *scene) { s.frees("a", "10.1.0.5") }},
				{at: preFilter},
				{at: preBind, then: claimed("a", "10.1.0.3")},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
		"a pod waits while another pod on its node uses its address": {
			world: twoNodes,
			steps: placed(
				step{before: func(s *scene) {
					s.cordon("b", false)
					s.filler("a")
					s.has("filler", "10.1.0.6")
					s.removes("web-0")
				}},
				step{at: preFilter, answer: "UnschedulableAndUnresolvable: " + occupied},
				step{rest: map[string]string{"web-0": "Unschedulable: 0/2 nodes are available: " + occupied + ". *"}, before: func(s *scene) { s.removes("filler") }},
				step{at: preFilter},
				step{at: bind, then: bound("web-0", "a")},
				step{rest: map[string]string{"web-0": "on a"}, before: calls(3, preFilter)},
			),
		},
		"a pod waits until another pod that uses its address has ended": {
			world: twoNodes,
			steps: placed(
				step{before: func(s *scene) {
					s.filler("a")
					s.has("filler", "10.1.0.6")
					s.removes("web-0")
				}},
				step{at: preFilter, answer: "UnschedulableAndUnresolvable: " + occupied},
				step{rest: map[string]string{"web-0": "Unschedulable: 0/2 nodes are available: " + occupied + ". *"}, before: func(s *scene) {
					s.must(s.api.Status().Patch(within(s.t), s.pod("filler"), client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Failed"}}`))))
				}},
				step{at: preFilter},
				step{at: bind, then: bound("web-0", "a")},
				step{rest: map[string]string{"web-0": "on a"}},
			),
		},
		"a pod waits while the agent reports its address as used by another pod": {
			world: twoNodes,
			steps: placed(
				step{before: func(s *scene) {
					s.uses("a", "10.1.0.6", "other-0")
					s.takes("other-0", "a", "10.1.0.2")
					s.seesAt("other-0", "a")
					s.removes("web-0")
				}},
				step{at: preFilter, answer: "UnschedulableAndUnresolvable: the agent of node a reports IP 10.1.0.6 as used by NS/other-0; the pod can be placed there when the agent no longer reports that"},
				step{rest: map[string]string{"web-0": "Unschedulable: 0/2 nodes are available: *"}, before: func(s *scene) { s.uses("a", "10.1.0.6", "") }},
				step{at: preFilter},
				step{at: bind, then: bound("web-0", "a")},
				step{rest: map[string]string{"web-0": "on a"}},
			),
		},
		"Reassign: a pod whose pool has another address than its FixedIP does not wait": {
			failover: "Reassign",
			world: func(s *scene) {
				s.createFixedIP("web-0", "web", "a", "10.1.0.3")
				oneNode(s)
				s.takes("web-0", "a", "10.1.0.5")
			},
			steps: []step{
				{at: preFilter},
				{at: preBind},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
		"a restart in place writes nothing": {
			world: twoNodes,
			steps: placed(
				step{before: func(s *scene) { s.cordon("b", false); s.removes("web-0") }},
				step{at: preFilter},
				step{at: reserve},
				step{at: preBind},
				step{at: bind, then: bound("web-0", "a")},
				step{at: postBind},
				step{rest: map[string]string{"web-0": "on a"}},
			),
		},
		"a restart in place skips PreBind": {
			preFlight: true,
			// The scheduler has seen the FixedIP before the pod is created again.
			world: func(s *scene) {
				s.statefulSet("web")
				s.createFixedIP("web-0", "web", "a", "10.1.0.6")
				s.node("a", "10.1.0.0/29")
			},
			steps: []step{
				{at: preFlight},
				{at: preBind, then: claimed("a", "10.1.0.6")},
				{at: bind, then: bound("web-0", "a")},
				{at: postBind},
				{rest: map[string]string{"web-0": "on a"}, before: func(s *scene) { s.removes("web-0") }},
				{at: preFlight, answer: "Skip"},
				{at: bind, then: bound("web-0", "a")},
				{at: postBind},
				{rest: map[string]string{"web-0": "on a"}, before: calls(1, preBind)},
			},
		},
		"a restart in place reads the pool and writes nothing while no FixedIP names the address": {
			preFlight: true,
			world:     oneNode,
			steps: []step{
				{at: preFlight},
				{at: preBind, then: claimed("a", "10.1.0.6")},
				{at: bind, then: bound("web-0", "a")},
				{at: postBind},
				{rest: map[string]string{"web-0": "on a"}, before: func(s *scene) { s.removes("web-0") }},
				{at: preFlight},
				{at: preBind},
				{at: bind, then: bound("web-0", "a")},
				{at: postBind},
				{rest: map[string]string{"web-0": "on a"}, before: calls(2, preBind)},
			},
		},
		"a pod that opted out is placed without a claim": {
			world: func(s *scene) {
				s.node("a", "10.1.0.0/29")
				s.statefulSet("web", annotated("fixedip.io/enabled", "false"))
			},
			steps: []step{
				{at: preFilter, answer: "Skip"},
				{at: reserve},
				{at: preBind},
				{at: bind, then: bound("web-0", "a")},
				{at: postBind},
				{rest: map[string]string{"web-0": "on a"}, before: calls(0, filter, unreserve)},
			},
		},
		"a pod that opted out goes to another node while another pod uses the address of its name": {
			world: func(s *scene) {
				s.node("a", "10.1.0.0/29")
				s.node("b", "10.2.0.0/29")
				s.createFixedIP("web-0", "web", "a", "10.1.0.6")
				s.retains("web-0")
				s.takes("web-0", "a", "10.1.0.6")
				s.filler("a")
				s.has("filler", "10.1.0.6")
				s.statefulSet("web", annotated("fixedip.io/enabled", "false"))
			},
			steps: []step{
				{at: preFilter},
				{at: preBind},
				{at: bind, then: bound("web-0", "b")},
				{at: postBind},
				{rest: map[string]string{"web-0": "on b"}},
			},
		},
		"a pod with an invalid annotation waits until the annotation is corrected": {
			world: func(s *scene) {
				s.node("a", "10.1.0.0/29")
				s.statefulSet("web", annotated("fixedip.io/enabled", "maybe"))
			},
			steps: []step{
				{at: preFilter, answer: `UnschedulableAndUnresolvable: annotation fixedip.io/enabled of pod NS/web-0 is "maybe"; write "true" or "false"`},
				{rest: map[string]string{"web-0": `Unschedulable: 0/1 nodes are available: annotation fixedip.io/enabled of pod NS/web-0 is "maybe"; write "true" or "false".` + unhelpful},
					before: func(s *scene) { s.enables("web-0") }},
				{at: preBind, then: claimed("a", "10.1.0.6")},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
		"a pod whose annotation is corrected during the cycle that refuses the pod is tried again": {
			world: func(s *scene) {
				s.node("a", "10.1.0.0/29")
				s.statefulSet("web", annotated("fixedip.io/enabled", "maybe"))
			},
			steps: []step{
				{at: preFilter, before: func(s *scene) { s.enables("web-0") },
					answer: `UnschedulableAndUnresolvable: annotation fixedip.io/enabled of pod NS/web-0 is "maybe"; write "true" or "false"`},
				{at: preBind, then: claimed("a", "10.1.0.6")},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
		"PreBindPreFlight does not skip PreBind for a pod that opted out and whose name may have an address": {
			preFlight: true,
			world: func(s *scene) {
				s.node("a", "10.1.0.0/29")
				s.statefulSet("web", annotated("fixedip.io/enabled", "false"))
			},
			steps: []step{
				{at: preFilter, answer: "Skip"},
				{at: preFlight},
				{at: preBind},
				{at: bind, then: bound("web-0", "a")},
				{at: postBind},
				{rest: map[string]string{"web-0": "on a"}, before: calls(0, filter)},
			},
		},
		"PreBindPreFlight skips PreBind for a pod without a fixed address": {
			preFlight: true,
			world: func(s *scene) {
				s.node("a", "10.1.0.0/29")
				s.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "web-0"}, Spec: s.podSpec()})
			},
			steps: []step{
				{at: preFilter, answer: "Skip"},
				{at: preFlight, answer: "Skip"},
				{at: bind, then: bound("web-0", "a")},
				{at: postBind},
				{rest: map[string]string{"web-0": "on a"}, before: calls(0, preBind, filter)},
			},
		},
	})
}
