// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import "testing"

// afterLoss returns the steps of web-0 after its claim was lost or failed: the next claim, of addrs on node, succeeds.
func afterLoss(node string, addrs ...string) []step {
	return []step{
		{at: unreserve},
		{at: reserve},
		{at: preBind, then: claimed(node, addrs...)},
		{at: bind, then: bound("web-0", node)},
		{at: postBind},
		{rest: map[string]string{"web-0": "on " + node}},
	}
}

// afterReport contains the steps of web-0 when the agent of its node reports for the first time.
var afterReport = append([]step{
	{rest: map[string]string{"web-0": noReportOnA}, before: func(s *scene) { s.reports("a", "router") }},
}, afterLoss("a", "10.1.0.6")[1:]...)

// TestClaim checks claims if the cluster changes between the choice of an address and its claim, and that no address is
// claimed before the first report of the agent.
func TestClaim(t *testing.T) {
	play(t, map[string]row{
		"another address is claimed if another pod has taken the first": {
			world: oneNode,
			steps: append([]step{
				{at: preBind, before: func(s *scene) {
					s.takes("other-0", "a", "10.1.0.6")
					s.seesAt("other-0", "a")
				}, answer: "Unschedulable: the pod did not get the address that was chosen for it: IP 10.1.0.6 on node a belongs to pod NS/other-0; the pod is tried again"},
			}, afterLoss("a", "10.1.0.5")...),
		},
		"another address is claimed if another pod has taken the first and the watch does not show it": {
			world: oneNode,
			steps: append([]step{
				{at: preBind, before: func(s *scene) {
					s.line.hold()
					s.takes("other-0", "a", "10.1.0.6")
				}, answer: "Unschedulable: the pod did not get the address that was chosen for it: IP 10.1.0.6 on node a belongs to pod NS/other-0; the pod is tried again"},
				{at: unreserve, before: func(s *scene) {
					s.line.release()
					s.seesAt("other-0", "a")
				}},
			}, afterLoss("a", "10.1.0.5")[1:]...),
		},
		"neither family is claimed if another pod has taken the address of one family": {
			families: []string{"IPv4", "IPv6"},
			world:    dualNode,
			steps: append([]step{
				{at: preBind, before: func(s *scene) {
					s.takes("other-0", "a", "fd00:1::7")
					s.seesAt("other-0", "a")
				}, answer: "Unschedulable: the pod did not get the address that was chosen for it: IP fd00:1::7 on node a belongs to pod NS/other-0; the pod is tried again"},
			}, afterLoss("a", "10.1.0.6", "fd00:1::6")...),
		},
		"neither family is claimed if another pod has taken the address of the family that the FixedIP lacks": {
			families: []string{"IPv4", "IPv6"},
			world: func(s *scene) {
				s.createFixedIP("web-0", "web", "a", "10.1.0.3")
				dualNode(s)
			},
			steps: append([]step{
				{at: preBind, before: func(s *scene) {
					s.takes("other-0", "a", "fd00:1::7")
					s.seesAt("other-0", "a")
				}, answer: "Unschedulable: the pod did not get the address that was chosen for it: IP fd00:1::7 on node a belongs to pod NS/other-0; the pod is tried again"},
			}, afterLoss("a", "10.1.0.3", "fd00:1::6")...),
		},
		"a pod waits while another pod has the entry of the address that its FixedIP reserves": {
			world: func(s *scene) {
				s.createFixedIP("web-0", "web", "a", "10.1.0.3")
				oneNode(s)
			},
			steps: append([]step{
				{at: preBind, before: func(s *scene) {
					s.takes("other-0", "a", "10.1.0.3")
					s.seesAt("other-0", "a")
				}, answer: "Unschedulable: the pod did not get the address that was chosen for it: IP 10.1.0.3 on node a belongs to pod NS/other-0; the pod is tried again"},
				{at: unreserve},
				{at: reserve, answer: "UnschedulableAndUnresolvable: node(s) couldn't give the pod an address: IP 10.1.0.3 on node a belongs to pod NS/other-0"},
				{at: unreserve},
				{rest: map[string]string{"web-0": "Unschedulable: 0/1 nodes are available: 1 node(s) couldn't give the pod an address: IP 10.1.0.3 on node a belongs to pod NS/other-0."},
					before: func(s *scene) { s.frees("a", "10.1.0.3") }},
			}, afterLoss("a", "10.1.0.3")[1:]...),
		},
		"a claim fails if the CiliumNode is deleted": {
			world: oneNode,
			steps: append([]step{
				{at: preBind, before: func(s *scene) {
					s.deleteCiliumNode("a")
					s.seesFreeAddress("a", false)
				}, answer: "Error: claim address 10.1.0.6 on node a for pod NS/web-0: CiliumNode a: the CiliumNode does not exist"},
				{at: unreserve},
				{rest: map[string]string{"web-0": noRoomOnA},
					before: func(s *scene) { s.ciliumNode("a", "10.1.0.0/29") }},
			}, afterLoss("a", "10.1.0.6")[1:]...),
		},
		"a claim fails if the CiliumNode is deleted and the watch does not show that": {
			world: oneNode,
			steps: append([]step{
				{at: preBind, before: func(s *scene) {
					s.line.hold()
					s.deleteCiliumNode("a")
				}, answer: "Error: claim address 10.1.0.6 on node a for pod NS/web-0: CiliumNode a: the CiliumNode does not exist"},
				{at: unreserve, before: func(s *scene) {
					s.line.release()
					s.seesFreeAddress("a", false)
				}},
				{rest: map[string]string{"web-0": noRoomOnA},
					before: func(s *scene) { s.ciliumNode("a", "10.1.0.0/29") }},
			}, afterLoss("a", "10.1.0.6")[1:]...),
		},
		"a CiliumNode that was created again gets the claim": {
			world: oneNode,
			steps: []step{
				{at: preBind, before: func(s *scene) {
					s.deleteCiliumNode("a")
					s.seesFreeAddress("a", false)
					s.ciliumNode("a", "10.1.0.0/29")
					s.seesFreeAddress("a", true)
				}, then: claimed("a", "10.1.0.6")},
				{at: bind, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
		"a CiliumNode that was created again gets the claim even if the watch does not show it": {
			world: oneNode,
			steps: []step{
				{at: preBind, before: func(s *scene) {
					s.line.hold()
					s.deleteCiliumNode("a")
					s.ciliumNode("a", "10.1.0.0/29")
				}, then: claimed("a", "10.1.0.6")},
				{at: bind, before: func(s *scene) { s.line.release() }, then: bound("web-0", "a")},
				{rest: map[string]string{"web-0": "on a"}},
			},
		},
		"no address is claimed before the agent has reported which addresses its pods use": {
			world: func(s *scene) {
				oneNode(s)
				s.deleteCiliumNode("a")
				s.unreportedCiliumNode("a", "10.1.0.0/29")
			},
			steps: append([]step{
				{rest: map[string]string{"web-0": noReportOnA}, before: func(s *scene) { s.reports("a", "db/x") }},
			}, afterReport...),
		},
		"no address is claimed in a CiliumNode that was created again until the agent has reported": {
			world: oneNode,
			steps: append([]step{
				{at: preBind, before: func(s *scene) {
					s.deleteCiliumNode("a")
					s.unreportedCiliumNode("a", "10.1.0.0/29")
					s.seesFreeAddress("a", false)
				}, answer: "Unschedulable: the pod did not get the address that was chosen for it: IP 10.1.0.6 on node a may be in use: the Cilium agent has not reported yet which addresses its pods use; the pod is tried again"},
				{at: unreserve},
			}, afterReport...),
		},
		"a claim fails if the node loses its subnet": {
			world: oneNode,
			steps: append([]step{
				{at: preBind, before: func(s *scene) {
					s.resubnet("a")
					s.seesFreeAddress("a", false)
				}, answer: "Unschedulable: the pod did not get the address that was chosen for it: IP 10.1.0.6 is not in the subnets of node a (none); the pod is tried again"},
				{at: unreserve},
				{rest: map[string]string{"web-0": noRoomOnA},
					before: func(s *scene) { s.resubnet("a", "10.9.0.0/29") }},
			}, afterLoss("a", "10.9.0.6")[1:]...),
		},
		"the pod follows an entry that appears on another node before the claim": {
			world: twoNodes,
			steps: []step{
				{at: preBind, before: func(s *scene) {
					s.takes("web-0", "b", "10.2.0.3")
					s.seesAt("web-0", "b")
				}, then: claimed("a", "10.1.0.6"), answer: "Unschedulable: the pod did not get the address that was chosen for it: pod NS/web-0 already has IP 10.2.0.3 on node b; the pod is tried again"},
				{at: unreserve},
				{rest: map[string]string{"web-0": cordoned("10.2.0.3", "b")}, before: func(s *scene) { s.cordon("b", false) }},
				{at: bind, then: bound("web-0", "b")},
				{rest: map[string]string{"web-0": "on b"}},
			},
		},
		"the pod follows an entry that appears on another node before Reserve": {
			world: twoNodes,
			steps: []step{
				{at: preFilter},
				{at: reserve, before: func(s *scene) {
					s.takes("web-0", "b", "10.2.0.3")
					s.seesAt("web-0", "b")
				}, answer: "UnschedulableAndUnresolvable: node(s) had no entry for the pod in their pools, but the pool of node b has got one for IP 10.2.0.3 in the meantime; the pod is tried again"},
				{at: unreserve},
				{rest: map[string]string{"web-0": cordoned("10.2.0.3", "b")}, before: func(s *scene) { s.cordon("b", false) }},
				{at: bind, then: bound("web-0", "b")},
				{rest: map[string]string{"web-0": "on b"}},
			},
		},
	})
}
