// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// strictNode returns a world with a strict node and a pod without a fixed address.
func strictNode(change ...func(*corev1.Pod)) func(*scene) {
	return func(s *scene) {
		s.node("a", "10.1.0.0/29")
		s.patch(&corev1.Node{}, "a", `{"metadata":{"labels":{"fixedip.io/strict":"true"}}}`)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "web-0"}, Spec: s.podSpec()}
		for _, c := range change {
			c(pod)
		}
		s.create(pod)
	}
}

// claimedForNow returns a function that adds the claim of the unreserved pod web-0 on a strict node to want.
func claimedForNow(addr string) func(*scene, *stored) {
	return func(s *scene, want *stored) {
		want.entry("a", addr, s.ns+"/web-0", s.ns+"/Pod/web-0")
		want.Writes++
	}
}

// TestStrict checks that, on a strict node, pods without a fixed address get a claim too, except pods on the host network.
func TestStrict(t *testing.T) {
	rest := []step{
		{at: bind, then: bound("web-0", "a")},
		{at: postBind},
		{rest: map[string]string{"web-0": "on a"}},
	}
	play(t, map[string]row{
		"the lowest address is claimed before the bind": {
			world: strictNode(),
			steps: append([]step{
				{at: preFilter},
				{at: filter},
				{at: reserve},
				{at: preBind, then: claimedForNow("10.1.0.1")},
			}, rest...),
		},
		"if another pod has taken the address, the next one is claimed": {
			world: strictNode(),
			steps: append([]step{
				{at: preBind, before: func(s *scene) { s.takes("other-0", "a", "10.1.0.1") }, then: claimedForNow("10.1.0.2")},
			}, rest...),
		},
		"a pod waits for room on a full node": {
			world: func(s *scene) {
				strictNode()(s)
				for i := 1; i <= 6; i++ {
					s.takes(fmt.Sprintf("other-%d", i), "a", fmt.Sprintf("10.1.0.%d", i))
				}
			},
			steps: append([]step{
				{at: filter},
				{rest: map[string]string{"web-0": "Unschedulable: 0/1 nodes are available: 1 strict node(s) had no IPv4 address available for the pod*"},
					before: func(s *scene) { s.frees("a", "10.1.0.3") }},
				{at: preBind, then: claimedForNow("10.1.0.3")},
			}, rest...),
		},
		"a pod on the host network needs no claim": {
			world: strictNode(func(pod *corev1.Pod) { pod.Spec.HostNetwork = true }),
			steps: append([]step{{at: preFilter, answer: "Skip"}, {at: preBind}}, rest...),
		},
		"a pod with a fixed address gets its normal claim": {
			world: func(s *scene) {
				s.node("a", "10.1.0.0/29")
				s.patch(&corev1.Node{}, "a", `{"metadata":{"labels":{"fixedip.io/strict":"true"}}}`)
				s.statefulSet("web")
			},
			steps: append([]step{{at: preBind, then: claimed("a", "10.1.0.6")}}, rest...),
		},
	})
}
