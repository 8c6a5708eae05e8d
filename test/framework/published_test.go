// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics/legacyregistry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The controller publishes the results of agent barriers in the status of FixedIPs. The rows of this file write the status
// instead. A pod waits until the result that it needs is published. The publication requeues the pod exactly once. A result
// that is published during a cycle of the pod is not missed.

// requeues returns the number of times that the plugin has requeued a pod. Pods that the scheduler itself requeues do not
// count.
func requeues(t *testing.T) (sum int) {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "fixedip_requeues_total" {
			for _, m := range f.GetMetric() {
				sum += int(m.GetCounter().GetValue())
			}
		}
	}
	return sum
}

// storesRequeues stores the current number of requeues. The changes that requeued returns compare later numbers with it.
func storesRequeues(s *scene) { s.requeues = requeues(s.t) }

// requeued returns a change that fails the row unless the plugin has requeued pods this many times since storesRequeues.
func requeued(want int) func(*scene) {
	return func(s *scene) {
		s.t.Helper()
		if got := requeues(s.t) - s.requeues; got != want {
			s.t.Errorf("requeues by the plugin: got %d, want %d", got, want)
		}
	}
}

func TestVacated(t *testing.T) {
	world := func(s *scene) {
		s.node("b", "10.2.0.0/29")
		s.node("a", "10.1.0.0/29")
		s.flock()
		s.vacant("web-x", "10.1.0.6")
		s.joins("web-y")
	}
	takesOver := []step{
		{at: preBind, pod: "web-y", then: slotted("web-y", "a", "10.1.0.6")},
		{at: bind, pod: "web-y", then: bound("web-y", "a")},
	}
	play(t, map[string]row{
		"a slot that its last holder has vacated requeues the pod once": {
			world: func(s *scene) {
				world(s)
				s.vacates("web-w")
			},
			steps: append(append([]step{
				{rest: map[string]string{"web-y": notVacated}, before: func(s *scene) {
					storesRequeues(s)
					s.vacates("web-x")
				}},
				{at: preFilter, pod: "web-y"},
			}, takesOver...), step{rest: map[string]string{"web-y": "on a"}, before: requeued(1)}),
		},
		"a slot that becomes vacant during the cycle is not missed": {
			world: world,
			steps: append(append([]step{
				{at: preFilter, pod: "web-y", before: func(s *scene) { s.vacates("web-x") }, answer: "*"},
			}, takesOver...), step{rest: map[string]string{"web-y": "on a"}}),
		},
		"each slot that becomes vacant requeues one pod": {
			world: func(s *scene) {
				world(s)
				s.vacant("web-w", "10.1.0.5")
			},
			steps: append(append([]step{
				{rest: map[string]string{"web-y": bothOccupied}, before: func(s *scene) { s.joins("web-z") }},
				{rest: map[string]string{"web-y": bothOccupied, "web-z": bothOccupied}, before: func(s *scene) { storesRequeues(s); s.vacates("web-x") }},
			}, takesOver...), []step{
				{rest: map[string]string{"web-y": "on a", "web-z": bothOccupied}, before: func(s *scene) {
					requeued(1)(s)
					s.status(slotName("10.1.0.5"), `{"status":{"vacatedBy":"web-w"}}`)
				}},
				{at: preBind, pod: "web-z", then: slotted("web-z", "a", "10.1.0.5")},
				{at: bind, pod: "web-z", then: bound("web-z", "a")},
				{rest: map[string]string{"web-y": "on a", "web-z": "on a"}, before: requeued(2)},
			}...),
		},
		"the slot of a pod that has ended is taken over while the pod exists": {
			world: func(s *scene) {
				s.node("b", "10.2.0.0/29")
				s.cordon("b", true)
				s.node("a", "10.1.0.0/29")
				s.flock()
				s.joins("web-x")
			},
			steps: append(flocked(step{before: func(s *scene) {
				// A kubelet writes this phase for a pod that is being deleted.
				s.must(s.api.Delete(within(s.t), s.pod("web-x"), client.GracePeriodSeconds(30)))
				s.must(s.api.Status().Patch(within(s.t), s.pod("web-x"), client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`))))
				s.vacates("web-x")
				s.joins("web-y")
			}}), append(takesOver[:2:2], step{rest: map[string]string{"web-x": "on a", "web-y": "on a"}})...),
		},
	})
}

// bothOccupied is the outcome of a pod of the flock that waits for one of two slots whose last holders do not exist.
const bothOccupied = "Unschedulable: 0/2 nodes are available: its Flock has the IPs of 2 pods that have ended, were deleted or are being deleted; the pod waits until it can take over such an IP: " +
	"10.1.0.6 on node a (the controller and the agent there have not confirmed yet that pod NS/web-x has stopped), 10.1.0.5 on node a (the controller and the agent there have not confirmed yet that pod NS/web-w has stopped)*"

// fixedIPOnA creates a cluster in which web-0 has a FixedIP with an address of node a and without a failover policy.
// Node b has free addresses.
func fixedIPOnA(s *scene) {
	s.node("b", "10.2.0.0/29")
	oneNode(s)
	s.createFixedIP("web-0", "web", "a", "10.1.0.6")
}

// leavesA cordons node a and deletes web-0.
func leavesA(s *scene) {
	s.cordon("a", true)
	s.removes("web-0")
}

// belongsToA is the beginning of the reason why web-0 waits while node a is cordoned.
const belongsToA = "its address 10.1.0.6 belongs to node a, which is cordoned; uncordon that node; "

func TestMovable(t *testing.T) {
	const (
		reported = "the agent on node a still reports fd00:1::7 as used"
		notReady = "the former pod may still run there: node a is not ready"
	)
	waitsFor := func(text string) map[string]string {
		return map[string]string{"web-0": "Unschedulable: *" + text + "*"}
	}
	onB := func(then func(*scene)) []step {
		return []step{
			{at: bind, then: bound("web-0", "b")},
			{rest: map[string]string{"web-0": "on b"}, before: then},
		}
	}
	// announced changes want to the result of a move that stops before its commit at the home node. completed then changes
	// want to the result of the completed move.
	announced := func(s *scene, want *stored) {
		want.entry("b", "10.1.0.6", "fixedip.io/move-target", "pod="+s.ns+"/web-0")
		want.Writes++
	}
	completed := func(s *scene, want *stored) { movedToB(s, want); want.Writes-- }
	play(t, map[string]row{
		"the permission to move requeues the pod, and no other change of the status does": {
			failover: "Migrate", movable: true,
			world: fixedIPOnA,
			steps: placed([]step{
				{before: leavesA},
				{rest: waitsFor(belongsToA + unconfirmed), before: func(s *scene) {
					storesRequeues(s)
					s.status("web-0", `{"status":{"observedGeneration":1}}`)
					// If that change requeued web-0, web-0 would be tried before db-0.
					s.statefulSet("db")
				}},
				{at: preBind, pod: "db-0", then: func(s *scene, want *stored) {
					want.entry("b", "10.2.0.6", s.ns+"/db-0", s.ns+"/StatefulSet/db")
					want.Writes++
				}},
				{at: bind, pod: "db-0", then: bound("db-0", "b")},
				{rest: map[string]string{"db-0": "on b", "web-0": "Unschedulable: *" + unconfirmed + "*"}, before: func(s *scene) {
					requeued(0)(s)
					allows()(s)
				}},
				{at: preFilter},
				{at: preFilter},
				moved(movedToB),
				untilRecorded("db-0"),
				{at: bind, then: bound("web-0", "b")},
				// The second requeue lets web-0 try other nodes, and the third requeue lets the scheduler place web-0 on b.
				{rest: map[string]string{"db-0": "on b", "web-0": "on b"}, before: requeued(3)},
			}...),
		},
		"the permission to move that is given during the cycle is not missed": {
			failover: "Migrate", movable: true,
			world: fixedIPOnA,
			steps: placed(append([]step{
				{before: leavesA},
				{at: postFilter, before: func(s *scene) { storesRequeues(s); allows()(s) }, answer: "Unschedulable: " + belongsToA + unconfirmed + "10.1.0.6"},
				{at: preFilter},
				moved(movedToB),
				untilRecorded(),
			}, onB(requeued(3))...)...),
		},
		"a pod with the permission to move stays while the agent reports one of its addresses as used": {
			failover: "Migrate", movable: true,
			families: []string{"IPv4", "IPv6"},
			world: func(s *scene) {
				bothAtHome(s)
				s.createFixedIP("web-0", "web", "a", "10.1.0.6", "fd00:1::7")
			},
			steps: append([]step{
				{at: preBind, then: claimed("a", "10.1.0.6", "fd00:1::7")},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}, before: func(s *scene) { s.uses("a", "fd00:1::7", "web-0"); swap(s) }},
				{rest: waitsFor(reported), before: allows()},
				{at: postFilter, answer: "Unschedulable: *" + reported},
				{rest: waitsFor(reported), before: func(s *scene) { s.uses("a", "fd00:1::7", "") }},
				moved(bothMovedToB),
				untilRecorded(),
			}, onB(nil)...),
		},
		"a pod with the permission to move stays while its node is not ready": {
			failover: "Migrate", movable: true,
			world: fixedIPOnA,
			steps: placed(append([]step{
				{before: func(s *scene) { s.ready("a", corev1.ConditionUnknown); leavesA(s) }},
				{rest: waitsFor(notReady), before: allows()},
				{at: postFilter, answer: "Unschedulable: *" + notReady + "*"},
				{rest: waitsFor(notReady), before: func(s *scene) { s.ready("a", corev1.ConditionTrue) }},
				moved(movedToB),
				untilRecorded(),
			}, onB(nil)...)...),
		},
		"an address stays on a node that becomes not ready before the move": {
			failover: "Migrate", movable: true,
			world: fixedIPOnA,
			steps: placed(append([]step{
				{before: leavesA},
				{rest: waitsFor(unconfirmed), before: allows()},
				{at: preBind, before: func(s *scene) { s.ready("a", corev1.ConditionUnknown) },
					answer: "Unschedulable: the pod did not get the address that was chosen for it: node a is not ready; if it is shut down, delete the node or add the taint node.kubernetes.io/out-of-service: the former pod may still use the address; the pod is tried again"},
				{rest: waitsFor(notReady), before: func(s *scene) { s.ready("a", corev1.ConditionTrue) }},
				moved(movedToB),
				untilRecorded(),
			}, onB(nil)...)...),
		},
		"an address that the agent reports as used stays, although the watch does not show the report": {
			failover: "Migrate", movable: true,
			world: fixedIPOnA,
			steps: placed(append([]step{
				{before: leavesA},
				{rest: waitsFor(unconfirmed), before: allows()},
				{at: preBind, before: func(s *scene) { s.line.hold(); s.uses("a", "10.1.0.6", "web-0") }, then: announced,
					answer: "Unschedulable: the pod did not get the address that was chosen for it: move address 10.1.0.6 to node b (home node a): the Cilium agent of node a still reports IP 10.1.0.6 as used: the former pod may still use the address; the pod is tried again"},
				{at: unreserve, before: func(s *scene) { s.line.release() }},
				{rest: waitsFor("the agent on node a still reports 10.1.0.6 as used"), before: func(s *scene) { s.uses("a", "10.1.0.6", "") }},
				moved(completed),
				untilRecorded(),
			}, onB(nil)...)...),
		},
	})
}
