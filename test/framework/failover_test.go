// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
	"strings"
	"testing"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// failingOver returns the world of twoNodes, in which the StatefulSet has a failover policy.
func failingOver(policy string) func(*scene) {
	return func(s *scene) {
		s.node("b", "10.2.0.0/29")
		s.cordon("b", true)
		s.node("a", "10.1.0.0/29")
		s.statefulSet("web", annotated("fixedip.io/failover", policy))
	}
}

// swap cordons a, uncordons b, and deletes web-0.
func swap(s *scene) {
	s.cordon("b", false)
	s.cordon("a", true)
	s.removes("web-0")
}

// away changes want to the entry of node a after web-0 has migrated to b.
func away(s *scene, want *stored) {
	want.entry("a", "10.1.0.6", "fixedip.io/moved", "node=b;pod="+s.ns+"/web-0")
}

// movedToB changes want to what a migration of web-0 from its home a to b stores.
func movedToB(s *scene, want *stored) {
	away(s, want)
	want.entry("b", "10.1.0.6", s.ns+"/web-0", s.ns+"/StatefulSet/web")
	want.Writes += 3
}

// livingOnB returns a world in which the address of web-0 was migrated from its home a to b, and the StatefulSet has the
// given failover policy now.
func livingOnB(policy string) func(*scene) {
	return func(s *scene) {
		s.node("c", "10.3.0.0/29")
		s.node("b", "10.2.0.0/29")
		s.node("a", "10.1.0.0/29")
		for node, entry := range map[string][2]string{"a": {"fixedip.io/moved", "node=b;pod=" + s.ns + "/web-0"}, "b": {s.ns + "/web-0", s.ns + "/StatefulSet/web"}} {
			s.patch(&ciliumv2.CiliumNode{}, node, fmt.Sprintf(`{"spec":{"ipam":{"pool":{"10.1.0.6":{"owner":%q,"resource":%q}}}}}`, entry[0], entry[1]))
			s.want.entry(node, "10.1.0.6", entry[0], entry[1])
		}
		s.statefulSet("web", annotated("fixedip.io/failover", policy))
	}
}

// backAtHome changes want to what the return of web-0 to its home a stores after CiliumNode b was deleted.
func backAtHome(s *scene, want *stored) {
	want.entry("a", "10.1.0.6", s.ns+"/web-0", s.ns+"/StatefulSet/web")
	want.Writes += 2
}

// deleteNode deletes a Node and its CiliumNode.
func (s *scene) deleteNode(name string) {
	s.t.Helper()
	s.must(s.api.Delete(within(s.t), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	s.deleteCiliumNode(name)
}

// bothAtHome is a cluster of two nodes with both families, in which b is cordoned and web-0 may migrate.
func bothAtHome(s *scene) {
	s.node("b", "10.2.0.0/29", "fd00:2::/125")
	s.cordon("b", true)
	s.node("a", "10.1.0.0/29", "fd00:1::/125")
	s.statefulSet("web", annotated("fixedip.io/failover", "Migrate"))
}

// bothMovedToB is movedToB for a pod with an address of each family.
func bothMovedToB(s *scene, want *stored) {
	movedToB(s, want)
	want.entry("a", "fd00:1::7", "fixedip.io/moved", "node=b;pod="+s.ns+"/web-0")
	want.entry("b", "fd00:1::7", s.ns+"/web-0", s.ns+"/StatefulSet/web")
}

// ready sets whether a node is ready.
func (s *scene) ready(node string, status corev1.ConditionStatus) {
	s.t.Helper()
	n := &corev1.Node{}
	n.Name = node
	s.must(s.api.Status().Patch(within(s.t), n, client.RawPatch(types.StrategicMergePatchType, fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, status))))
}

// told returns a change that fails the row unless the standing of web-0 contains text, and then calls then.
func told(text string, then func(*scene)) func(*scene) {
	return func(s *scene) {
		s.t.Helper()
		var pod corev1.Pod
		s.must(s.api.Get(within(s.t), client.ObjectKey{Namespace: s.ns, Name: "web-0"}, &pod))
		if message := standing(&pod); !strings.Contains(message, text) {
			s.t.Errorf("web-0 says\n%s\nwant\n%s", message, text)
		}
		then(s)
	}
}

const (
	unschedulable = "Unschedulable: 0/2 nodes are available: *"
	// unconfirmed is the reason why web-0 does not leave node a before the controller allows it.
	unconfirmed = "the former pod may still run there: the controller waits for the agent on node a to confirm that nothing uses "
)

// allows returns a change that the controller makes when the agent of node a has confirmed that nothing uses the addresses
// of web-0.
func allows(ips ...string) func(*scene) {
	return func(s *scene) {
		s.t.Helper()
		pod := s.pod("web-0")
		s.must(s.api.Get(within(s.t), client.ObjectKeyFromObject(pod), pod))
		s.allowsMove(pod.UID, ips...)
	}
}

// allowsMove sets status.movableFor in the FixedIP of web-0, and creates the FixedIP if there is none.
func (s *scene) allowsMove(pod types.UID, ips ...string) {
	s.t.Helper()
	if _, exists := s.want.Records["web-0"]; !exists {
		s.recordMigrating(ips...)
	}
	s.status("web-0", fmt.Sprintf(`{"status":{"movableFor":%q}}`, pod))
}

// recordMigrating creates the FixedIP of web-0 with the failover policy Migrate.
func (s *scene) recordMigrating(ips ...string) {
	s.t.Helper()
	s.record("web-0", "web", "a", ips...)
	s.patch(&v1alpha1.FixedIP{}, "web-0", `{"spec":{"failover":"Migrate"}}`)
	spec := s.want.Records["web-0"]
	spec.Failover = v1alpha1.Migrate
	s.want.Records["web-0"] = spec
}

// status patches the status of a FixedIP.
func (s *scene) status(name, data string) {
	s.t.Helper()
	fip := &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name}}
	s.must(s.api.Status().Patch(within(s.t), fip, client.RawPatch(types.MergePatchType, []byte(data))))
}

func TestFailover(t *testing.T) {
	play(t, map[string]row{
		"Migrate: the address goes with the pod, and stays when its home is back": {
			movable: true,
			world:   failingOver("Migrate"),
			steps: placed(
				step{before: swap},
				step{rest: map[string]string{"web-0": unschedulable}, before: told(unconfirmed, allows("10.1.0.6"))},
				step{at: preFilter},
				step{at: preFilter},
				step{at: reserve},
				step{at: preBind, then: movedToB},
				step{at: bind, then: bound("web-0", "b")},
				step{at: postBind},
				step{rest: map[string]string{"web-0": "on b"}, before: func(s *scene) {
					s.cordon("a", false)
					s.removes("web-0")
				}},
				step{at: preFilter},
				step{at: reserve},
				step{at: preBind},
				step{at: bind, then: bound("web-0", "b")},
				step{rest: map[string]string{"web-0": "on b"}},
			),
		},
		"Migrate: both addresses go": {
			families: []string{"IPv4", "IPv6"},
			movable:  true,
			world:    bothAtHome,
			steps: []step{
				{at: preBind, then: claimed("a", "10.1.0.6", "fd00:1::7")},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}, before: swap},
				{rest: map[string]string{"web-0": unschedulable}, before: allows("10.1.0.6", "fd00:1::7")},
				{at: preBind, then: bothMovedToB},
				{at: bind, then: bound("web-0", "b")},
				{rest: map[string]string{"web-0": "on b"}},
			},
		},
		"Migrate: nowhere to go, the pod waits without spinning, until there is": {
			movable: true,
			// The scheduler has seen the FixedIP before the pod waits.
			world: func(s *scene) { failingOver("Migrate")(s); s.recordMigrating("10.1.0.6") },
			steps: placed(
				step{before: func(s *scene) { s.cordon("a", true); s.removes("web-0") }},
				step{rest: map[string]string{"web-0": unschedulable}, before: told(unconfirmed, allows("10.1.0.6"))},
				step{at: preFilter},
				step{at: preFilter},
				step{rest: map[string]string{"web-0": "Unschedulable: *no other node can take the pod now*"}, before: told("its address 10.1.0.6 belongs to node a, which is cordoned; uncordon that node; no other node can take the pod now", func(s *scene) {
					// One cycle for the pod, two when its addresses may move, and one for each late event of its FixedIP.
					if got := s.passed[key("web-0", preFilter)]; got > 6 {
						s.t.Errorf("PreFilter was called %d times for web-0, want at most 6", got)
					}
					s.cordon("b", false)
				})},
				step{at: preBind, then: movedToB},
				step{at: bind, then: bound("web-0", "b")},
				step{rest: map[string]string{"web-0": "on b"}},
			),
		},
		"Migrate: not while the agent lists the address as used": {
			movable: true,
			world:   failingOver("Migrate"),
			steps: placed(
				step{before: func(s *scene) { s.uses("a", "10.1.0.6", "web-0"); swap(s) }},
				step{rest: map[string]string{"web-0": unschedulable}, before: told("which is cordoned; uncordon that node; the former pod may still run there: the agent on node a still reports 10.1.0.6 as used", func(s *scene) { s.uses("a", "10.1.0.6", ""); allows("10.1.0.6")(s) })},
				step{at: preBind, then: movedToB},
				step{at: bind, then: bound("web-0", "b")},
				step{rest: map[string]string{"web-0": "on b"}},
			),
		},
		"Migrate: not because another pod of the name may have moved": {
			movable: true,
			world:   failingOver("Migrate"),
			steps: placed(
				step{before: func(s *scene) { swap(s); s.allowsMove("a-former-pod", "10.1.0.6") }},
				step{rest: map[string]string{"web-0": unschedulable}, before: told(unconfirmed, allows("10.1.0.6"))},
				step{at: preBind, then: movedToB},
				step{at: bind, then: bound("web-0", "b")},
				step{rest: map[string]string{"web-0": "on b"}},
			),
		},
		"Migrate: not from a node that is not ready, until it is out of service": {
			movable: true,
			world:   failingOver("Migrate"),
			steps: placed(
				step{before: func(s *scene) { s.ready("a", corev1.ConditionUnknown); s.uses("a", "10.1.0.6", "web-0"); swap(s) }},
				step{rest: map[string]string{"web-0": unschedulable}, before: told("which is not ready; the pod waits for that node to come back; the former pod may still run there: node a is not ready; delete the node, or add the taint node.kubernetes.io/out-of-service",
					func(s *scene) {
						s.patch(&corev1.Node{}, "a", `{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","effect":"NoExecute"}]}}`)
					})},
				step{at: preBind, then: movedToB},
				step{at: bind, then: bound("web-0", "b")},
				step{rest: map[string]string{"web-0": "on b"}},
			),
		},
		"Migrate: not where addresses can't live on other nodes": {
			world: failingOver("Migrate"),
			steps: placed(
				step{before: swap},
				step{rest: map[string]string{"web-0": unschedulable}, before: told("which is cordoned; uncordon that node; its failover is Migrate, but allowAddressMigration of the scheduler is false", func(s *scene) { s.cordon("a", false) })},
				step{at: bind, then: bound("web-0", "a")},
				step{rest: map[string]string{"web-0": "on a"}},
			),
		},
		"Migrate by default, from a node that is gone": {
			failover: "Migrate",
			movable:  true,
			world:    twoNodes,
			steps: placed(
				step{before: func(s *scene) {
					s.cordon("b", false)
					s.must(s.api.Delete(within(s.t), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}))
					s.removes("web-0")
				}},
				step{at: preBind, then: movedToB},
				step{at: bind, then: bound("web-0", "b")},
				step{rest: map[string]string{"web-0": "on b"}},
			),
		},
		"Migrate: a write that can't be sent leaves the rest to the next try": {
			movable: true,
			world:   failingOver("Migrate"),
			steps: placed(
				step{before: swap},
				step{rest: map[string]string{"web-0": unschedulable}, before: allows("10.1.0.6")},
				step{at: preBind, before: func(s *scene) { s.line.lose(0, unsent, unsent, unsent, unsent, unsent, unsent) },
					answer: "Error: claim address 10.1.0.6 of node b for pod NS/web-0: move address 10.1.0.6 from node a to node b, in the pool of its home node a: not written after 6 tries: *",
					then: func(s *scene, want *stored) {
						want.entry("b", "10.1.0.6", "fixedip.io/move-target", "pod="+s.ns+"/web-0")
						want.Writes++
					}},
				step{at: preBind, then: func(s *scene, want *stored) { movedToB(s, want); want.Writes-- }},
				step{at: bind, then: bound("web-0", "b")},
				step{rest: map[string]string{"web-0": "on b"}},
			),
		},
		"Migrate: a write whose answer was lost is not made again": {
			movable: true,
			world:   failingOver("Migrate"),
			steps: placed(
				step{before: swap},
				step{rest: map[string]string{"web-0": unschedulable}, before: allows("10.1.0.6")},
				step{at: preBind, before: func(s *scene) { s.line.lose(unanswered, unanswered, unanswered) }, then: movedToB},
				step{at: bind, then: bound("web-0", "b")},
				step{rest: map[string]string{"web-0": "on b"}},
			),
		},
		"Reassign: another address on another node": {
			world: failingOver("Reassign"),
			steps: placed(
				step{before: swap},
				step{at: preBind, then: claimed("b", "10.2.0.6")},
				step{at: bind, then: bound("web-0", "b")},
				step{rest: map[string]string{"web-0": "on b"}},
			),
		},
		"Wait: what was moved goes home when its node is gone, and nowhere else": {
			world: livingOnB("Wait"),
			steps: []step{
				{at: bind, then: bound("web-0", "b")},
				{rest: map[string]string{"web-0": "on b"}, before: func(s *scene) {
					s.cordon("a", true)
					s.deleteNode("b")
					s.removes("web-0")
				}},
				{rest: map[string]string{"web-0": unschedulable}, before: told("its address 10.1.0.6 belongs to node b, which does not exist; the address returns to its home node a, but that node is cordoned; uncordon that node", func(s *scene) { s.cordon("a", false) })},
				{at: preBind, then: backAtHome},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
		"Wait: what was moved goes home when its node is gone that it waited for": {
			world: livingOnB("Migrate"),
			steps: []step{
				{at: bind, then: bound("web-0", "b")},
				{rest: map[string]string{"web-0": "on b"}, before: func(s *scene) {
					s.cordon("b", true)
					s.removes("web-0")
				}},
				{rest: map[string]string{"web-0": "Unschedulable: 0/3 nodes are available: *"}, before: told("its address 10.1.0.6 belongs to node b, which is cordoned; uncordon that node; its failover is Migrate, but", func(s *scene) { s.deleteNode("b") })},
				{at: preBind, then: backAtHome},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
		"Migrate: what was moved stays on a node whose CiliumNode was created again": {
			failover: "Migrate", movable: true,
			world: livingOnB("Migrate"),
			steps: []step{
				{at: bind, then: bound("web-0", "b")},
				{rest: map[string]string{"web-0": "on b"}, before: func(s *scene) {
					s.cordon("b", true)
					s.cordon("a", true)
					s.deleteCiliumNode("b")
					s.unreportedCiliumNode("b", "10.2.0.0/29")
					s.seesRoom("b", false)
					s.removes("web-0")
				}},
				{rest: map[string]string{"web-0": "Unschedulable: 0/3 nodes are available: *"},
					before: told("the controller waits for the agent on node b to confirm that nothing uses 10.1.0.6", func(*scene) {})},
			},
		},
		"Wait: says what else could be done": {
			world: failingOver("Wait"),
			steps: placed(
				step{before: swap},
				step{rest: map[string]string{"web-0": unschedulable}, before: told("which is cordoned; uncordon that node, or set failover to Reassign, which gives the pod another address", func(s *scene) { s.cordon("a", false) })},
				step{at: bind, then: bound("web-0", "a")},
				step{rest: map[string]string{"web-0": "on a"}},
			),
		},
	})
}
