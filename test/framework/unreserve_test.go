// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestUnreserve checks what is stored after failures and delays that follow Reserve: before, during and after PreBind, and in
// a bind that fails or only reports a failure.
func TestUnreserve(t *testing.T) {
	play(t, map[string]row{
		"before PreBind: nothing is stored and the address is free": {
			world: func(s *scene) {
				oneNode(s)
				s.failing[key("web-0", permit)] = "not yet"
			},
			steps: []step{
				{at: reserve},
				{at: unreserve, before: func(s *scene) { s.statefulSet("db") }},
				{at: preBind, pod: "db-0", then: func(s *scene, want *stored) {
					want.entry("a", "10.1.0.6", s.ns+"/db-0", s.ns+"/StatefulSet/db")
					want.Writes++
				}},
				{at: bind, pod: "db-0", then: bound("db-0", "a")},
				{rest: map[string]string{"db-0": "on a", "web-0": "Unschedulable: 0/1 nodes are available: 1 not yet."}, before: func(s *scene) {
					calls(0, preBind)(s)
					delete(s.failing, key("web-0", permit))
					// This event makes the scheduler try the pod again.
					s.patch(&corev1.Node{}, "a", `{"metadata":{"labels":{"changed":"yes"}}}`)
				}},
				{at: preBind, then: claimed("a", "10.1.0.5")},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"db-0": "on a", "web-0": "on a"}},
			},
		},
		"during PreBind: a claim whose answer was lost stays": {
			world: oneNode,
			steps: []step{
				{at: preBind, before: func(s *scene) { s.line.lose(unanswered) }, then: claimed("a", "10.1.0.6")},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}, before: calls(0, unreserve)},
			},
		},
		"during PreBind: a claim that the API server has not received is sent again": {
			world: oneNode,
			steps: []step{
				{at: preBind, before: func(s *scene) { s.line.lose(unsent) }, then: claimed("a", "10.1.0.6")},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}, before: calls(0, unreserve)},
			},
		},
		"during PreBind: a claim that cannot be sent is made by the next cycle": {
			world: oneNode,
			steps: append([]step{
				{at: preBind, before: func(s *scene) { s.line.lose(unsent, unsent, unsent, unsent, unsent, unsent) },
					answer: "Error: claim address 10.1.0.6 on node a for pod NS/web-0: write to CiliumNode a failed in 6 tries and may have been applied nevertheless: patch CiliumNode a: *"},
			}, afterLoss("a", "10.1.0.6")...),
		},
		"during PreBind: a claim succeeds before the watch shows it": {
			world: oneNode,
			steps: []step{
				{at: preBind, before: func(s *scene) { s.line.hold() }, then: claimed("a", "10.1.0.6")},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}, before: calls(0, unreserve)},
			},
		},
		// See finding S2 in docs/project/findings.md.
		"after PreBind: with a stalled watch and another node, the pod returns to the node of its claim without a write": {
			world: twoNodes,
			steps: []step{
				{at: preBind, before: func(s *scene) { s.line.hold() }, then: claimed("a", "10.1.0.6")},
				{at: laterPreBind, before: func(s *scene) { s.cordon("b", false) }, sabotage: sabotage{fails: "the volume is not ready"}},
				{at: unreserve},
				{at: reserve},
				{at: preBind},
				{at: laterPreBind, sabotage: sabotage{fails: "the volume is still not ready"}},
				{at: unreserve},
				{at: reserve},
				{at: preBind},
				{at: laterPreBind},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
		"after PreBind: the entry stays, and the next cycle writes no second entry": {
			world: twoNodes,
			steps: []step{
				{at: preBind, then: claimed("a", "10.1.0.6")},
				{at: laterPreBind, before: func(s *scene) { s.cordon("b", false) }, sabotage: sabotage{fails: "the volume is not ready"}},
				{at: unreserve},
				{at: reserve},
				{at: preBind},
				{at: laterPreBind},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
		"after a bind that failed: the pod is bound with the same address": {
			world: twoNodes,
			steps: []step{
				{at: preBind, then: claimed("a", "10.1.0.6")},
				{at: bind, before: func(s *scene) { s.cordon("b", false) }, sabotage: sabotage{fails: "no connection"}},
				{at: unreserve},
				{at: reserve},
				{at: preBind},
				{at: bind, then: bound("web-0", "a")},
				{at: postBind},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
		"after a bind that succeeded and reported a failure: the entry stays": {
			world: twoNodes,
			steps: []step{
				{at: preBind, then: claimed("a", "10.1.0.6")},
				{at: bind, before: func(s *scene) { s.cordon("b", false) },
					sabotage: sabotage{fails: "the answer is lost", done: true}, then: bound("web-0", "a")},
				{at: unreserve},
				{rest: map[string]string{"web-0": "on a"}, before: func(s *scene) {
					calls(1, preFilter, reserve, preBind, bind, unreserve)(s)
					calls(0, postBind)(s)
					s.removes("web-0")
				}},
				{at: preBind},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
		"after a bind of a deleted pod: the next pod with the name gets the address": {
			world: twoNodes,
			steps: []step{
				{at: preBind, then: claimed("a", "10.1.0.6")},
				{at: bind, before: func(s *scene) { s.cordon("b", false); s.removes("web-0") },
					answer: "Error: bind pod NS/web-0 to node a: *"},
				{at: unreserve},
				{at: preBind},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
	})
}
