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

// failingOver returns the world of twoNodes with a failover policy in an annotation of the pod template of the StatefulSet.
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

// markedMoved adds to want the moved entry that node a has after the migration of web-0 to b.
func markedMoved(s *scene, want *stored) {
	want.entry("a", "10.1.0.6", "fixedip.io/moved", "node=b;pod="+s.ns+"/web-0")
}

// movedToB changes want to the result of a migration of web-0 from its home a to b.
func movedToB(s *scene, want *stored) {
	markedMoved(s, want)
	want.entry("b", "10.1.0.6", s.ns+"/web-0", s.ns+"/StatefulSet/web")
	want.Writes += 3
}

// hasMoved is the answer of PreBind after it has moved the addresses of web-0 to b.
const hasMoved = "Unschedulable: its address* 10.1.0.6* moved to node b; the pod is tried again there when the controller has recorded that node in the FixedIP of the pod"

// moved returns the step in which PreBind moves the addresses of web-0 to b.
func moved(then func(*scene, *stored)) step {
	return step{at: preBind, then: then, answer: hasMoved}
}

// untilRecorded returns the step in which web-0 waits for its FixedIP to name b. The step then makes that change, as
// the controller does. others are the pods that are on b.
func untilRecorded(others ...string) step {
	rest := map[string]string{"web-0": "Unschedulable: *its address* 10.1.0.6* to node b, which the FixedIP of the pod does not name yet; the pod is placed there when the controller has recorded that node in the FixedIP*"}
	for _, name := range others {
		rest[name] = "on b"
	}
	return step{rest: rest, before: func(s *scene) {
		s.t.Helper()
		s.patch(&v1alpha1.FixedIP{}, "web-0", `{"spec":{"nodeName":"b"}}`)
		spec := s.want.FixedIPs["web-0"]
		spec.NodeName = "b"
		s.want.FixedIPs["web-0"] = spec
	}}
}

// livingOnB returns a world in which the address of web-0 was migrated from its home a to b. The pod template of the
// StatefulSet has the given failover policy.
func livingOnB(policy string) func(*scene) {
	return func(s *scene) {
		s.node("c", "10.3.0.0/29")
		s.node("b", "10.2.0.0/29")
		s.node("a", "10.1.0.0/29")
		livesOnB(s, policy)
	}
}

// secondFamilyOnB creates the cluster of livingOnB("Wait") without node c and with a subnet of each family on each node.
func secondFamilyOnB(s *scene) {
	s.node("b", "10.2.0.0/29", "fd00:2::/125")
	s.node("a", "10.1.0.0/29", "fd00:1::/125")
	livesOnB(s, "Wait")
}

// livesOnB creates web-0 with an address that was migrated from its home a to b.
func livesOnB(s *scene, policy string) {
	s.t.Helper()
	for node, entry := range map[string][2]string{"a": {"fixedip.io/moved", "node=b;pod=" + s.ns + "/web-0"}, "b": {s.ns + "/web-0", s.ns + "/StatefulSet/web"}} {
		s.patch(&ciliumv2.CiliumNode{}, node, fmt.Sprintf(`{"spec":{"ipam":{"pool":{"10.1.0.6":{"owner":%q,"resource":%q}}}}}`, entry[0], entry[1]))
		s.want.entry(node, "10.1.0.6", entry[0], entry[1])
	}
	s.statefulSet("web", annotated("fixedip.io/failover", policy))
}

// backAtHome changes want to the result of the return of web-0 to its home a after CiliumNode b was deleted.
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

// bothAtHome creates a cluster of two nodes with both families, in which b is cordoned and web-0 has the failover policy
// Migrate.
func bothAtHome(s *scene) {
	s.node("b", "10.2.0.0/29", "fd00:2::/125")
	s.cordon("b", true)
	s.node("a", "10.1.0.0/29", "fd00:1::/125")
	s.statefulSet("web", annotated("fixedip.io/failover", "Migrate"))
}

// bothMovedToB changes want as movedToB does, for a pod with an address of each family.
func bothMovedToB(s *scene, want *stored) {
	movedToB(s, want)
	want.entry("a", "fd00:1::7", "fixedip.io/moved", "node=b;pod="+s.ns+"/web-0")
	want.entry("b", "fd00:1::7", s.ns+"/web-0", s.ns+"/StatefulSet/web")
}

// ready sets the status of the condition Ready of a node.
func (s *scene) ready(node string, status corev1.ConditionStatus) {
	s.t.Helper()
	n := &corev1.Node{}
	n.Name = node
	s.must(s.api.Status().Patch(within(s.t), n, client.RawPatch(types.StrategicMergePatchType, fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, status))))
}

// expectReason returns a change that fails the row unless the outcome of web-0 contains text. The change then calls then.
func expectReason(text string, then func(*scene)) func(*scene) {
	return func(s *scene) {
		s.t.Helper()
		var pod corev1.Pod
		s.must(s.api.Get(within(s.t), client.ObjectKey{Namespace: s.ns, Name: "web-0"}, &pod))
		if message := outcome(&pod); !strings.Contains(message, text) {
			s.t.Errorf("outcome of web-0: got\n%s\nwant a text that contains\n%s", message, text)
		}
		then(s)
	}
}

const (
	unschedulable = "Unschedulable: 0/2 nodes are available: *"
	// unconfirmed is the reason why web-0 waits for node a until the controller allows the move. In messages, the
	// addresses follow it.
	unconfirmed = "the former pod may still run there: the controller and the agent on node a have not confirmed yet that nothing uses "
)

// allows returns the change that the controller makes when the agent of node a has confirmed that no pod uses the
// addresses of web-0; see allowsMove for ips.
func allows(ips ...string) func(*scene) {
	return func(s *scene) {
		s.t.Helper()
		pod := s.pod("web-0")
		s.must(s.api.Get(within(s.t), client.ObjectKeyFromObject(pod), pod))
		s.allowsMove(pod.UID, ips...)
	}
}

// allowsMove sets status.movableFor in the FixedIP of web-0. If there is no FixedIP, allowsMove first creates one with ips.
func (s *scene) allowsMove(pod types.UID, ips ...string) {
	s.t.Helper()
	if _, exists := s.want.FixedIPs["web-0"]; !exists {
		s.createMigratingFixedIP(ips...)
	}
	s.status("web-0", fmt.Sprintf(`{"status":{"movableFor":%q}}`, pod))
}

// createMigratingFixedIP creates the FixedIP of web-0 with the failover policy Migrate.
func (s *scene) createMigratingFixedIP(ips ...string) {
	s.t.Helper()
	s.createFixedIP("web-0", "web", "a", ips...)
	s.patch(&v1alpha1.FixedIP{}, "web-0", `{"spec":{"failover":"Migrate"}}`)
	spec := s.want.FixedIPs["web-0"]
	spec.Failover = v1alpha1.Migrate
	s.want.FixedIPs["web-0"] = spec
}

// status patches the status of a FixedIP.
func (s *scene) status(name, data string) {
	s.t.Helper()
	fip := &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name}}
	s.must(s.api.Status().Patch(within(s.t), fip, client.RawPatch(types.MergePatchType, []byte(data))))
}

func TestFailover(t *testing.T) {
	play(t, map[string]row{
		"Migrate: the address moves with the pod, and stays on the new node when its home node is uncordoned": {
			movable: true,
			world:   failingOver("Migrate"),
			steps: placed(
				step{before: swap},
				step{rest: map[string]string{"web-0": unschedulable}, before: expectReason(unconfirmed, allows("10.1.0.6"))},
				step{at: preFilter},
				step{at: preFilter},
				step{at: reserve},
				moved(movedToB),
				untilRecorded(),
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
		"Migrate: the addresses of both families move": {
			families: []string{"IPv4", "IPv6"},
			movable:  true,
			world:    bothAtHome,
			steps: []step{
				{at: preBind, then: claimed("a", "10.1.0.6", "fd00:1::7")},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}, before: swap},
				{rest: map[string]string{"web-0": unschedulable}, before: allows("10.1.0.6", "fd00:1::7")},
				moved(bothMovedToB),
				untilRecorded(),
				{at: bind, then: bound("web-0", "b")},
				{rest: map[string]string{"web-0": "on b"}},
			},
		},
		"Migrate: the pod waits, without repeated cycles, until another node can take it": {
			movable: true,
			// The scheduler has seen the FixedIP before the pod waits.
			world: func(s *scene) { failingOver("Migrate")(s); s.createMigratingFixedIP("10.1.0.6") },
			steps: placed(
				step{before: func(s *scene) { s.cordon("a", true); s.removes("web-0") }},
				step{rest: map[string]string{"web-0": unschedulable}, before: expectReason(unconfirmed, allows("10.1.0.6"))},
				step{at: preFilter},
				step{at: preFilter},
				step{rest: map[string]string{"web-0": "Unschedulable: *no other node can take the pod now*"}, before: expectReason("its address 10.1.0.6 belongs to node a, which is cordoned; uncordon that node; no other node can take the pod now", func(s *scene) {
					// The limit allows one cycle of the first placement, one of the new pod, two after the permission to
					// move, and two for late events of the FixedIP.
					if got := s.passed[key("web-0", preFilter)]; got > 6 {
						s.t.Errorf("PreFilter was called %d times for web-0, want at most 6", got)
					}
					s.cordon("b", false)
				})},
				moved(movedToB),
				untilRecorded(),
				step{at: bind, then: bound("web-0", "b")},
				step{rest: map[string]string{"web-0": "on b"}},
			),
		},
		"Migrate: the pod waits while the agent reports the address as used": {
			movable: true,
			world:   failingOver("Migrate"),
			steps: placed(
				step{before: func(s *scene) { s.uses("a", "10.1.0.6", "web-0"); swap(s) }},
				step{rest: map[string]string{"web-0": unschedulable}, before: expectReason("which is cordoned; uncordon that node; the former pod may still run there: the agent on node a still reports 10.1.0.6 as used", func(s *scene) { s.uses("a", "10.1.0.6", ""); allows("10.1.0.6")(s) })},
				moved(movedToB),
				untilRecorded(),
				step{at: bind, then: bound("web-0", "b")},
				step{rest: map[string]string{"web-0": "on b"}},
			),
		},
		"Migrate: a permission for a former pod with the same name is ignored": {
			movable: true,
			world:   failingOver("Migrate"),
			steps: placed(
				step{before: func(s *scene) { swap(s); s.allowsMove("a-former-pod", "10.1.0.6") }},
				step{rest: map[string]string{"web-0": unschedulable}, before: expectReason(unconfirmed, allows("10.1.0.6"))},
				moved(movedToB),
				untilRecorded(),
				step{at: bind, then: bound("web-0", "b")},
				step{rest: map[string]string{"web-0": "on b"}},
			),
		},
		"Migrate: the pod waits while its node is not ready, and migrates when the node is out of service": {
			movable: true,
			world:   failingOver("Migrate"),
			steps: placed(
				step{before: func(s *scene) { s.ready("a", corev1.ConditionUnknown); s.uses("a", "10.1.0.6", "web-0"); swap(s) }},
				step{rest: map[string]string{"web-0": unschedulable}, before: expectReason("which is not ready; the pod can be placed there when that node is ready; the former pod may still run there: node a is not ready; if it is shut down, delete the node or add the taint node.kubernetes.io/out-of-service",
					func(s *scene) {
						s.patch(&corev1.Node{}, "a", `{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","effect":"NoExecute"}]}}`)
					})},
				step{at: preBind, then: movedToB},
				step{at: bind, then: bound("web-0", "b")},
				step{rest: map[string]string{"web-0": "on b"}},
			),
		},
		"Migrate: the pod waits if allowAddressMigration is false": {
			world: failingOver("Migrate"),
			steps: placed(
				step{before: swap},
				step{rest: map[string]string{"web-0": unschedulable}, before: expectReason("which is cordoned; uncordon that node; the pod's failover policy is Migrate, but allowAddressMigration is false", func(s *scene) { s.cordon("a", false) })},
				step{at: bind, then: bound("web-0", "a")},
				step{rest: map[string]string{"web-0": "on a"}},
			),
		},
		"Migrate by default, from a deleted node": {
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
		"Migrate: the next cycle completes a move whose write cannot be sent": {
			movable: true,
			world:   failingOver("Migrate"),
			steps: placed(
				step{before: swap},
				step{rest: map[string]string{"web-0": unschedulable}, before: allows("10.1.0.6")},
				step{at: preBind, before: func(s *scene) { s.line.lose(0, unsent, unsent, unsent, unsent, unsent, unsent) },
					answer: "Error: claim address 10.1.0.6 on node b for pod NS/web-0: move address 10.1.0.6 to node b (home node a): write to CiliumNode a failed in 6 tries and may have been applied nevertheless: *",
					then: func(s *scene, want *stored) {
						want.entry("b", "10.1.0.6", "fixedip.io/move-target", "pod="+s.ns+"/web-0")
						want.Writes++
					}},
				moved(func(s *scene, want *stored) { movedToB(s, want); want.Writes-- }),
				untilRecorded(),
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
				step{at: preBind, before: func(s *scene) { s.line.lose(unanswered, unanswered, unanswered) }, then: movedToB, answer: hasMoved},
				untilRecorded(),
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
		"Wait: a moved address returns to its home node, and to no other node, when its node is deleted": {
			world: livingOnB("Wait"),
			steps: []step{
				{at: bind, then: bound("web-0", "b")},
				{rest: map[string]string{"web-0": "on b"}, before: func(s *scene) {
					s.cordon("a", true)
					s.deleteNode("b")
					s.removes("web-0")
				}},
				{rest: map[string]string{"web-0": unschedulable}, before: expectReason("its address 10.1.0.6 belongs to node b, which does not exist; the address was migrated to that node and returns to its home node a, which is cordoned; uncordon that node", func(s *scene) { s.cordon("a", false) })},
				{at: preBind, then: backAtHome},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
		"a pod with a moved address gets no address of a second family until the moved address is at home": {
			families: []string{"IPv4", "IPv6"},
			world:    secondFamilyOnB,
			steps: []step{
				{at: preBind},
				{at: bind, then: bound("web-0", "b")},
				{rest: map[string]string{"web-0": "on b"}, before: func(s *scene) {
					s.deleteNode("b")
					s.removes("web-0")
				}},
				{at: preBind, then: backAtHome, answer: "Unschedulable: its address 10.1.0.6 returned to home node a; the pod is tried again there, with an additional address of family IPv6"},
				{at: preBind, then: claimed("a", "fd00:1::7")},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
		"a pod with a moved address gets no address of a second family on a strict node": {
			families: []string{"IPv4", "IPv6"},
			world: func(s *scene) {
				secondFamilyOnB(s)
				s.patch(&corev1.Node{}, "b", `{"metadata":{"labels":{"fixedip.io/strict":"true"}}}`)
			},
			steps: []step{
				{rest: map[string]string{"web-0": unschedulable}, before: expectReason("1 node(s) were strict, and the pod has no fixed address of family IPv6, which the pod gets only on the home node of its address", func(s *scene) {
					s.patch(&corev1.Node{}, "b", `{"metadata":{"labels":{"fixedip.io/strict":null}}}`)
				})},
				{at: bind, then: bound("web-0", "b")},
				{rest: map[string]string{"web-0": "on b"}},
			},
		},
		"Migrate without allowAddressMigration: a moved address returns home when its cordoned node is deleted": {
			world: livingOnB("Migrate"),
			steps: []step{
				{at: bind, then: bound("web-0", "b")},
				{rest: map[string]string{"web-0": "on b"}, before: func(s *scene) {
					s.cordon("b", true)
					s.removes("web-0")
				}},
				{rest: map[string]string{"web-0": "Unschedulable: 0/3 nodes are available: *"}, before: expectReason("its address 10.1.0.6 belongs to node b, which is cordoned; uncordon that node; the pod's failover policy is Migrate, but", func(s *scene) { s.deleteNode("b") })},
				{at: preBind, then: backAtHome},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
		"Migrate: a moved address stays on a node whose CiliumNode was created again": {
			failover: "Migrate", movable: true,
			world: livingOnB("Migrate"),
			steps: []step{
				{at: bind, then: bound("web-0", "b")},
				{rest: map[string]string{"web-0": "on b"}, before: func(s *scene) {
					s.cordon("b", true)
					s.cordon("a", true)
					s.deleteCiliumNode("b")
					s.unreportedCiliumNode("b", "10.2.0.0/29")
					s.seesFreeAddress("b", false)
					s.removes("web-0")
				}},
				{rest: map[string]string{"web-0": "Unschedulable: 0/3 nodes are available: *"},
					before: expectReason("the controller and the agent on node b have not confirmed yet that nothing uses 10.1.0.6", func(*scene) {})},
			},
		},
		"Wait: the message names the failover policy Reassign": {
			world: failingOver("Wait"),
			steps: placed(
				step{before: swap},
				step{rest: map[string]string{"web-0": unschedulable}, before: expectReason("which is cordoned; uncordon that node; to place the pod on another node with another address, annotate its StatefulSet with fixedip.io/failover: Reassign", func(s *scene) { s.cordon("a", false) })},
				step{at: bind, then: bound("web-0", "a")},
				step{rest: map[string]string{"web-0": "on a"}},
			),
		},
	})
}
