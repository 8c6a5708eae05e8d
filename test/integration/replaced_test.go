// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/hack/witness"
)

// podsPerNode is the number of pods for each node in replacement.nodes.
const podsPerNode = 30

// replacement is a case in which a cluster loses nodes. All nodes of a case have the group label that its pods select.
type replacement struct {
	// nodes are the nodes that run the pods at first. Key: the node. Value: the zone.
	nodes map[string]string
	// idle are the nodes that are cordoned while the pods are placed, and that joined more than a grace period before the
	// nodes in lost are deleted. Key: the node. Value: the zone.
	idle map[string]string
	// lost are the nodes that are deleted at the same time. joins are the nodes that join after that.
	lost, joins []string
	// late is true if the nodes in joins join after the grace period, when the message of a pod has reported that no
	// node can run the pod.
	late bool
	// zone is the zone that the pods select; empty: any.
	zone string
	// mayRun are the nodes on which the pods may run in the end.
	mayRun []string
}

// TestNodesAreReplaced checks that a pod whose node was deleted runs again with its address after the grace period (finding
// R1 in docs/project/findings.md), without an action of an administrator. The new node satisfies the constraints of the pod.
// FIXEDIP_GRACE_PERIOD is the grace period.
func TestNodesAreReplaced(t *testing.T) {
	t.Parallel()
	grace := "5s"
	if g := os.Getenv("FIXEDIP_GRACE_PERIOD"); g != "" {
		grace = g
	}
	gracePeriod, err := time.ParseDuration(grace)
	if err != nil {
		t.Fatalf("parse FIXEDIP_GRACE_PERIOD: %v", err)
	}
	e := start(t, options{controllerArgs: []string{"--cluster-pool-ipv4-cidr=10.240.0.0/20", "--cluster-pool-ipv4-mask-size=25", "--orphaned-subnet-grace-period=" + grace}})
	for _, c := range []struct {
		name string
		replacement
	}{
		{"rolling upgrade, delete then add", replacement{nodes: map[string]string{"rolling-1": "a"}, lost: []string{"rolling-1"}, joins: []string{"rolling-2"}, mayRun: []string{"rolling-2"}}},
		{"surge upgrade, add long before delete", replacement{nodes: map[string]string{"surge-1": "a"}, idle: map[string]string{"surge-2": "a"}, lost: []string{"surge-1"}, mayRun: []string{"surge-2"}}},
		{"scale-down, no new node", replacement{nodes: map[string]string{"down-1": "a"}, idle: map[string]string{"down-2": "a", "down-0": "b"}, zone: "a", lost: []string{"down-1"}, mayRun: []string{"down-2"}}},
		{"no node can run the pods until one joins", replacement{nodes: map[string]string{"full-1": "a"}, idle: map[string]string{"full-0": "b"}, zone: "a", lost: []string{"full-1"}, joins: []string{"full-2"}, late: true, mayRun: []string{"full-2"}}},
		{"loss of a third of the nodes at once", replacement{nodes: map[string]string{"spot-1": "a", "spot-2": "a"}, idle: map[string]string{"spot-3": "a", "spot-4": "a", "spot-5": "a", "spot-6": "a"}, lost: []string{"spot-1", "spot-2"}, mayRun: []string{"spot-3", "spot-4", "spot-5", "spot-6"}}},
	} {
		e.part(c.name, func(e *env) {
			took := e.replace(c.replacement, gracePeriod)
			e.t.Logf("%s: %d pods run again %.1fs after the nodes were deleted; the grace period is %v", c.name, podsPerNode*len(c.nodes), took.Seconds(), gracePeriod)
		})
	}
}

// replace runs a case, and returns the time from the deletion of the nodes until all pods run.
func (e *env) replace(c replacement, gracePeriod time.Duration) time.Duration {
	e.t.Helper()
	group := slices.Sorted(maps.Keys(c.nodes))[0]
	join := func(name, zone string) {
		e.startNode(name, ofGroup(group, corev1.LabelTopologyZone+"="+zone))
		e.must(e.WaitNodeReady(within(e.t), name))
	}
	for name, zone := range c.nodes {
		join(name, zone)
	}
	for name, zone := range c.idle {
		join(name, zone)
		e.cordon(name, true)
	}
	var pods []string
	for _, node := range slices.Sorted(maps.Keys(c.nodes)) {
		e.create(statefulSet(node, podsPerNode, on(group), func(s *appsv1.StatefulSet) {
			// Without the toleration that the function on sets, the pods are not placed on cordoned nodes.
			s.Spec.Template.Spec.Tolerations = nil
			if c.zone != "" {
				s.Spec.Template.Spec.NodeSelector[corev1.LabelTopologyZone] = c.zone
			}
		}))
		pods = append(pods, names(node, podsPerNode)...)
	}
	before := e.awaitRunning(nil, pods...)
	for name := range c.idle {
		e.cordon(name, false)
	}
	if len(c.idle) > 0 {
		// After this pause, the idle nodes have been in the cluster for longer than the grace period.
		time.Sleep(gracePeriod + time.Second)
	}

	deleted := time.Now()
	for _, name := range c.lost {
		e.loseNode(name)
	}
	if c.late {
		e.podMessage(pods[0], "no node that could inherit the subnet can run the pod now")
		time.Sleep(time.Until(deleted.Add(gracePeriod + time.Second)))
	}
	for _, name := range c.joins {
		join(name, "a")
	}
	after := e.awaitRunning(before, pods...)
	took := time.Since(deleted)
	// movedTo contains the nodes on which the pods of each node run now. Key: the former node.
	movedTo := map[string]map[string]bool{}
	for name, b := range before {
		a := after[name]
		if a.Address != b.Address || !slices.Contains(c.mayRun, a.Node) {
			e.t.Errorf("pod %s had %s on %s, and has %s on %s, want the same address on one of %v", name, b.Address, b.Node, a.Address, a.Node, c.mayRun)
		}
		if movedTo[b.Node] == nil {
			movedTo[b.Node] = map[string]bool{}
		}
		movedTo[b.Node][a.Node] = true
	}
	var nodes []string
	for node, h := range movedTo {
		if len(h) != 1 {
			e.t.Errorf("the pods of node %s are on %v now, want one node", node, h)
		}
		nodes = slices.AppendSeq(nodes, maps.Keys(h))
	}
	slices.Sort(nodes)
	if len(slices.Compact(slices.Clone(nodes))) != len(c.lost) {
		e.t.Errorf("the pods of %d lost nodes run on the nodes %v, want as many different nodes", len(c.lost), nodes)
	}
	for _, node := range slices.Sorted(maps.Keys(c.nodes)) {
		e.delete(statefulSet(node, 0))
	}
	e.await("wait for the pods to end", func(rows []witness.Row) bool {
		return !slices.ContainsFunc(rows, func(r witness.Row) bool { return slices.Contains(pods, r.Pod) })
	})
	return took
}
