// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/test/gen"
)

// orphaned returns a world in which the node of web-0 does not exist, and the FixedIP of web-0 has the condition
// SubnetAvailable with the status False. Node a is cordoned, and node b is not.
func orphaned(change ...func(*corev1.PodTemplateSpec)) func(*scene) {
	return func(s *scene) {
		s.node("a", "10.1.0.0/29")
		s.cordon("a", true)
		s.node("b", "10.2.0.0/29")
		s.createFixedIP("web-0", "web", "gone", "10.9.0.6")
		s.subnetOf("web-0", "False", v1alpha1.ReasonInheritancePending)
		s.statefulSet("web", change...)
	}
}

// subnetOf writes the condition SubnetAvailable of a FixedIP, as the controller does.
func (s *scene) subnetOf(pod, status, reason string) {
	s.t.Helper()
	fip := &v1alpha1.FixedIP{}
	fip.Namespace, fip.Name = s.ns, pod
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q,"reason":%q,"message":"","lastTransitionTime":"2026-11-24T12:00:00Z"}]}}`, v1alpha1.ConditionSubnetAvailable, status, reason)
	s.must(s.api.Status().Patch(within(s.t), fip, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// nominated returns a change that fails the row unless web-0 is nominated to the node, or, if node is empty, to no node. The
// change then calls then.
func nominated(node string, then func(*scene)) func(*scene) {
	return func(s *scene) {
		s.t.Helper()
		var pod corev1.Pod
		s.must(s.api.Get(within(s.t), client.ObjectKey{Namespace: s.ns, Name: "web-0"}, &pod))
		if pod.Status.NominatedNodeName != node {
			s.t.Errorf("pod web-0: got nominated node %q, want %q", pod.Status.NominatedNodeName, node)
		}
		then(s)
	}
}

func onSSD(t *corev1.PodTemplateSpec) { t.Spec.NodeSelector = map[string]string{"disk": "ssd"} }

// countsHints fails the row unless each event that the plugin registers requeues web-0, which is orphaned, and is counted as a
// requeue.
func countsHints(s *scene) {
	s.t.Helper()
	var pod corev1.Pod
	s.must(s.api.Get(within(s.t), client.ObjectKey{Namespace: s.ns, Name: "web-0"}, &pod))
	hints, err := s.plugin.EventsToRegister(within(s.t))
	s.must(err)
	storesRequeues(s)
	node := gen.Node("b")
	for _, h := range hints {
		if hint, err := h.QueueingHintFn(klog.Background(), &pod, node, node); err != nil || hint != fwk.Queue {
			s.t.Errorf("hint for %s: got %v and error %v, want %v", h.Event.Label(), hint, err, fwk.Queue)
		}
	}
	requeued(len(hints))(s)
}

// TestNominated checks that an orphaned pod is nominated to a node that can run it, and runs on the node that inherits
// the subnet (finding R1 in docs/project/findings.md).
func TestNominated(t *testing.T) {
	const canRun = "no node's subnets contain the address 10.9.0.6 of the pod (last on node gone); node %s can run the pod and may inherit the subnet after the grace period"
	waits := func(node string) map[string]string {
		return map[string]string{"web-0": "Unschedulable: 0/2 nodes are available: *" + fmt.Sprintf(canRun, node)}
	}
	inherits := func(node, own string) func(*scene) {
		return func(s *scene) { s.resubnet(node, own, "10.9.0.0/29") }
	}
	onB := []step{
		{at: preBind, then: claimed("b", "10.9.0.6")},
		{at: bind, then: bound("web-0", "b")},
		{rest: map[string]string{"web-0": "on b"}},
	}
	play(t, map[string]row{
		"the pod is nominated to a node that can run it, and runs there when that node has the subnet": {
			world: orphaned(),
			steps: append([]step{{rest: waits("b"), before: nominated("b", inherits("b", "10.2.0.0/29"))}}, onB...),
		},
		"each event that may help an orphaned pod counts as a requeue": {
			world: orphaned(),
			steps: []step{{rest: waits("b"), before: nominated("b", countsHints)}},
		},
		"the pod runs on another node if that node inherits the subnet": {
			world: orphaned(),
			steps: []step{
				{rest: waits("b"), before: nominated("b", func(s *scene) {
					s.cordon("a", false)
					s.resubnet("a", "10.1.0.0/29", "10.9.0.0/29")
				})},
				{at: preBind, then: claimed("a", "10.9.0.6")},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
		"the pod is nominated to another node when the first one cannot run it any more": {
			world: orphaned(),
			steps: append([]step{
				{rest: waits("b"), before: nominated("b", func(s *scene) {
					s.cordon("b", true)
					s.cordon("a", false)
				})},
				{rest: waits("a"), before: nominated("a", func(s *scene) {
					s.cordon("b", false)
					s.resubnet("b", "10.2.0.0/29", "10.9.0.0/29")
				})},
			}, onB...),
		},
		"no node can run the pod, until one is labelled": {
			world: orphaned(onSSD),
			steps: append([]step{
				{rest: map[string]string{"web-0": "Unschedulable: 0/2 nodes are available: *no node's subnets contain the address 10.9.0.6 of the pod (last on node gone), and no node that could inherit the subnet can run the pod now: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) were unschedulable"},
					before: nominated("", func(s *scene) { s.patch(&corev1.Node{}, "b", `{"metadata":{"labels":{"disk":"ssd"}}}`) })},
				{rest: waits("b"), before: nominated("b", inherits("b", "10.2.0.0/29"))},
			}, onB...),
		},
		"a node without a subnet cannot inherit one": {
			world: func(s *scene) {
				orphaned()(s)
				s.resubnet("b")
			},
			steps: append([]step{
				{rest: map[string]string{"web-0": "Unschedulable: *no node that could inherit the subnet can run the pod now: 1 node(s) can't be nominated while they are cordoned, not ready, being deleted or without a subnet, 1 node(s) were unschedulable"},
					before: nominated("", func(s *scene) { s.resubnet("b", "10.2.0.0/29", "10.9.0.0/29") })},
			}, onB...),
		},
		"a node cannot inherit a subnet until it has one of its own": {
			// This happened in the end-to-end scenario "node replaced" on Cilium 1.20: the node that joined was ready
			// before it had a subnet, and no event requeued the pod when the node got one.
			world: func(s *scene) {
				orphaned()(s)
				s.resubnet("b")
			},
			steps: append([]step{
				{rest: map[string]string{"web-0": "Unschedulable: *no node that could inherit the subnet can run the pod now: 1 node(s) can't be nominated while they are cordoned, not ready, being deleted or without a subnet, 1 node(s) were unschedulable"},
					before: nominated("", func(s *scene) { s.resubnet("b", "10.2.0.0/29") })},
				{rest: waits("b"), before: nominated("b", inherits("b", "10.2.0.0/29"))},
			}, onB...),
		},
		"no node is nominated while the subnet is reserved for its own node": {
			world: func(s *scene) {
				orphaned()(s)
				s.subnetOf("web-0", "False", v1alpha1.ReasonNodeGone)
			},
			steps: []step{
				{rest: map[string]string{"web-0": "Unschedulable: *address 10.9.0.6 of FixedIP web-0 is in no node's subnet, and was on node gone; the pod waits until a node has a subnet that contains the address*"},
					before: nominated("", func(s *scene) { s.subnetOf("web-0", "False", v1alpha1.ReasonInheritancePending) })},
				{rest: waits("b"), before: nominated("b", func(*scene) {})},
			},
		},
	})
}
