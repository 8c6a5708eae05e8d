// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
	"testing"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// barePod creates the pod web-0, which has no fixed address. It is a bare pod unless a change adds a controller.
func (s *scene) barePod(change ...func(*corev1.Pod)) {
	s.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "web-0"}, Spec: s.podSpec()}
	for _, c := range change {
		c(pod)
	}
	s.create(pod)
}

// reserves writes the entry that a claim for a pod of StatefulSet web would write.
func (s *scene) reserves(pod, node, addr string) {
	s.t.Helper()
	owner, resource := s.ns+"/"+pod, s.ns+"/StatefulSet/web"
	s.patch(&ciliumv2.CiliumNode{}, node, fmt.Sprintf(`{"spec":{"ipam":{"pool":{%q:{"owner":%q,"resource":%q}}}}}`, addr, owner, resource))
	s.want.entry(node, addr, owner, resource)
}

// labels sets one label of a node.
func (s *scene) labels(node, key, value string) {
	s.t.Helper()
	s.patch(&corev1.Node{}, node, fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, key, value))
}

// fullNode creates a node without a free address, and a StatefulSet.
func fullNode(s *scene) {
	s.node("a", "10.1.0.0/30")
	s.takes("other-0", "a", "10.1.0.1")
	s.takes("other-1", "a", "10.1.0.2")
	s.statefulSet("web")
}

// onlyNodeFull is the outcome of a pod for which the only node has no address.
const onlyNodeFull = "Unschedulable: 0/1 nodes are available: 1 node(s) had no IPv4 address available for a pod with a fixed address*"

// onBoth is the outcome of a pod that both nodes refuse.
const onBoth = "Unschedulable: 0/2 nodes are available: *"

// TestWake checks that each event requeues the pods that wait for it (finding S7 in docs/project/findings.md), and that a
// freed address does not requeue a pod that cannot use the node.
func TestWake(t *testing.T) {
	onA := []step{
		{at: bind, then: bound("web-0", "a")},
		{rest: map[string]string{"web-0": "on a"}},
	}
	play(t, map[string]row{
		"a pod without a fixed address waits until the only node has no entry for its name": {
			world: func(s *scene) {
				s.node("a", "10.1.0.0/29")
				s.reserves("web-0", "a", "10.1.0.6")
				s.barePod()
			},
			steps: append([]step{
				{rest: map[string]string{"web-0": "Unschedulable: 0/1 nodes are available: 1 node(s) had an IP reserved under the pod's name for another workload*"},
					before: func(s *scene) { s.frees("a", "10.1.0.6") }},
			}, onA...),
		},
		"a pod without a fixed address that all nodes block is requeued by a new node": {
			world: func(s *scene) {
				s.node("a", "10.1.0.0/29")
				s.reserves("web-0", "a", "10.1.0.6")
				s.barePod()
			},
			steps: []step{
				{rest: map[string]string{"web-0": "Unschedulable: 0/1 nodes are available: 1 node(s) had an IP reserved under the pod's name for another workload*"},
					before: func(s *scene) { s.node("b", "10.2.0.0/29") }},
				{at: bind, then: bound("web-0", "b")},
				{rest: map[string]string{"web-0": "on b"}},
			},
		},
		"a pod that two nodes block is requeued when the first of them no longer blocks it": {
			world: func(s *scene) {
				s.node("a", "10.1.0.0/29")
				s.node("b", "10.2.0.0/29")
				s.takes("web-0", "a", "10.1.0.6")
				s.takes("web-0", "b", "10.2.0.6")
				s.uses("a", "10.1.0.6", "other-0")
				s.uses("b", "10.2.0.6", "other-1")
				s.barePod()
			},
			steps: append([]step{
				{rest: map[string]string{"web-0": onBoth}, before: func(s *scene) { s.uses("a", "10.1.0.6", "") }},
			}, onA...),
		},
		"a pod that waits for room on a strict node is requeued when the node is no longer strict": {
			world: func(s *scene) {
				strictNode()(s)
				for i := 1; i <= 6; i++ {
					s.takes(fmt.Sprintf("other-%d", i), "a", fmt.Sprintf("10.1.0.%d", i))
				}
			},
			steps: append([]step{
				{rest: map[string]string{"web-0": "Unschedulable: 0/1 nodes are available: 1 strict node(s) had no IPv4 address available for the pod*"},
					before: func(s *scene) { s.labels("a", "fixedip.io/strict", "false") }},
			}, onA...),
		},
		"a pod without a FixedIP is requeued by a change of the failover policy of its workload": {
			world: twoNodes,
			steps: placed(
				step{before: swap},
				step{rest: map[string]string{"web-0": unschedulable}, before: func(s *scene) {
					s.patch(&appsv1.StatefulSet{}, "web", `{"metadata":{"annotations":{"fixedip.io/failover":"Reassign"}}}`)
				}},
				step{at: preBind, then: claimed("b", "10.2.0.6")},
				step{at: bind, then: bound("web-0", "b")},
				step{rest: map[string]string{"web-0": "on b"}},
			),
		},
		"an address that became free on a cordoned node requeues the pod when the node is uncordoned": {
			world: fullNode,
			steps: append([]step{
				{rest: map[string]string{"web-0": onlyNodeFull}, before: func(s *scene) {
					s.cordon("a", true)
					s.frees("a", "10.1.0.2")
					s.seesFreeAddress("a", true)
				}},
				{rest: map[string]string{"web-0": onlyNodeFull}, before: func(s *scene) { s.cordon("a", false) }},
				{at: preBind, then: claimed("a", "10.1.0.2")},
			}, onA...),
		},
		"an address that became free on a cordoned node requeues a pod that tolerates the cordon": {
			world: func(s *scene) {
				s.node("a", "10.1.0.0/30")
				s.takes("other-0", "a", "10.1.0.1")
				s.takes("other-1", "a", "10.1.0.2")
				s.statefulSet("web", func(t *corev1.PodTemplateSpec) {
					t.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists}}
				})
			},
			steps: append([]step{
				{rest: map[string]string{"web-0": onlyNodeFull}, before: func(s *scene) {
					s.cordon("a", true)
					s.frees("a", "10.1.0.2")
				}},
				{at: preBind, then: claimed("a", "10.1.0.2")},
			}, onA...),
		},
		"a Node that is created after its CiliumNode requeues the pod": {
			world: func(s *scene) {
				fullNode(s)
				s.ciliumNode("b", "10.2.0.0/30")
			},
			steps: []step{
				{rest: map[string]string{"web-0": onlyNodeFull}, before: func(s *scene) { s.nodeOnly("b") }},
				{at: preBind, then: claimed("b", "10.2.0.2")},
				{at: bind, then: bound("web-0", "b")},
				{rest: map[string]string{"web-0": "on b"}},
			},
		},
		// See finding S3 in docs/project/findings.md.
		"a freed address on a node that the pod cannot use does not requeue the pod": {
			world: func(s *scene) {
				s.node("a", "10.1.0.0/30")
				s.node("b", "10.2.0.0/30")
				s.labels("a", "group", "a")
				s.labels("b", "group", "b")
				for node, ips := range map[string][]string{"a": {"10.1.0.1", "10.1.0.2"}, "b": {"10.2.0.1", "10.2.0.2"}} {
					for i, ip := range ips {
						s.takes(fmt.Sprintf("other-%s-%d", node, i), node, ip)
					}
				}
				s.statefulSet("web", func(t *corev1.PodTemplateSpec) { t.Spec.NodeSelector = map[string]string{"group": "a"} })
			},
			steps: append([]step{
				{rest: map[string]string{"web-0": onBoth}, before: func(s *scene) {
					s.frees("b", "10.2.0.2")
					s.seesFreeAddress("b", true)
				}},
				{rest: map[string]string{"web-0": onBoth}, before: func(s *scene) {
					calls(1, preFilter)(s)
					s.frees("a", "10.1.0.2")
				}},
				{at: preBind, then: claimed("a", "10.1.0.2")},
			}, onA...),
		},
	})
}

// TestForeignNomination checks that a pod is placed on its home node, even if another program has nominated the pod to another
// node (finding S9 in docs/project/findings.md).
func TestForeignNomination(t *testing.T) {
	play(t, map[string]row{
		"Reassign: the pod keeps its address": {
			failover: "Reassign",
			world: func(s *scene) {
				s.createFixedIP("web-0", "web", "a", "10.1.0.3")
				s.node("b", "10.2.0.0/29")
				s.node("a", "10.1.0.0/29")
				s.statefulSet("web", func(t *corev1.PodTemplateSpec) {
					t.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "row.test/gate"}}
				})
			},
			steps: []step{
				{rest: map[string]string{"web-0": "SchedulingGated: *"}, before: func(s *scene) {
					s.must(s.api.Status().Patch(within(s.t), s.pod("web-0"), client.RawPatch(types.MergePatchType, []byte(`{"status":{"nominatedNodeName":"b"}}`))))
					s.patch(&corev1.Pod{}, "web-0", `{"spec":{"schedulingGates":null}}`)
				}},
				{at: preBind, then: claimed("a", "10.1.0.3")},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
	})
}

// TestOptedOutPodsAreBound checks that PreBind reads the pool once for a bare pod that opted out, and not at all for a pod of
// a kind without fixed addresses, and that the pod is bound even if the read fails (finding S6 in docs/project/findings.md).
func TestOptedOutPodsAreBound(t *testing.T) {
	optsOut := func(pod *corev1.Pod) { pod.Annotations = map[string]string{"fixedip.io/enabled": "false"} }
	// The kind does not exist, so the garbage collector does not delete the pod for its missing owner.
	ofBatch := func(pod *corev1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch.example.com/v1", Kind: "Batch", Name: "web", UID: "batch", Controller: ptr.To(true)}}
	}
	steps := []step{
		{at: preBind, before: func(s *scene) { s.reads = s.line.read("a") }},
		{at: bind, then: bound("web-0", "a")},
	}
	rest := func(reads int) step {
		return step{rest: map[string]string{"web-0": "on a"}, before: func(s *scene) {
			if got := s.line.read("a") - s.reads; got != reads {
				s.t.Errorf("CiliumNode a was read %d times, want %d", got, reads)
			}
		}}
	}
	play(t, map[string]row{
		"a pod that could have had an address: one read": {
			world: func(s *scene) { s.node("a", "10.1.0.0/29"); s.barePod(optsOut) },
			steps: append(steps[:2:2], rest(1)),
		},
		"a pod of a kind without fixed addresses: no read": {
			world: func(s *scene) { s.node("a", "10.1.0.0/29"); s.barePod(optsOut, ofBatch) },
			steps: append(steps[:2:2], rest(0)),
		},
		"the read of the pool fails": {
			world: func(s *scene) { s.node("a", "10.1.0.0/29"); s.barePod(optsOut) },
			steps: []step{
				{at: preBind, before: func(s *scene) { s.line.breakReads() }},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
	})
}
