// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// disjoint checks that no two subnets of the nodes overlap, and returns the subnets of each node. Key: the node.
func (e *env) disjoint() map[string][]netip.Prefix {
	e.t.Helper()
	var nodes ciliumv2.CiliumNodeList
	e.must(e.api.List(within(e.t), &nodes))
	of := map[string][]netip.Prefix{}
	type assignment struct {
		subnet netip.Prefix
		node   string
	}
	var all []assignment
	for _, cn := range nodes.Items {
		for _, s := range cn.Spec.IPAM.PodCIDRs {
			subnet := netip.MustParsePrefix(s)
			of[cn.Name] = append(of[cn.Name], subnet)
			all = append(all, assignment{subnet, cn.Name})
		}
	}
	// If any subnets overlap, two neighbors in this order overlap.
	slices.SortFunc(all, func(a, b assignment) int { return a.subnet.Addr().Compare(b.subnet.Addr()) })
	for i := 1; i < len(all); i++ {
		if all[i].subnet.Overlaps(all[i-1].subnet) {
			e.t.Errorf("subnet %s of node %s overlaps %s of node %s", all[i].subnet, all[i].node, all[i-1].subnet, all[i-1].node)
		}
	}
	return of
}

// TestG5SubnetManagement checks that each node gets a subnet of each family from the CIDRs of the flags, in order and
// with their mask sizes. A subnet overlaps no existing one, even if two controllers assign subnets at once. If the
// CIDRs are exhausted, an event names the node that gets none (G5).
func TestG5SubnetManagement(t *testing.T) {
	t.Parallel()
	e := start(t, options{noScheduler: true})
	// This node exists before any controller. It has the first subnet of the second IPv4 CIDR and the last subnet of the first
	// IPv6 CIDR.
	e.create(&ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "existing"}, Spec: ciliumv2.NodeSpec{
		IPAM: ipamtypes.IPAMSpec{PodCIDRs: []string{"10.250.0.0/26", "fd00:240::100/120"}},
	}})
	port := freePort(t)
	e.startController("pools", "--cluster-pool-ipv4-cidr=10.240.0.0/28,10.250.0.0/25", "--cluster-pool-ipv4-mask-size=28,26",
		"--cluster-pool-ipv6-cidr=fd00:240::/119,fd00:250::/120", "--cluster-pool-ipv6-mask-size=120",
		fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", port))
	for i, want := range [][]string{{"10.240.0.0/28", "fd00:240::/120"}, {"10.250.0.64/26", "fd00:250::/120"}} {
		name := fmt.Sprintf("node-%d", i)
		e.agentless(name)
		if got := e.subnetsOf(name, 2); !slices.Equal(got, want) {
			t.Errorf("node %s has the subnets %v, want %v", name, got, want)
		}
	}
	e.agentless("late")
	e.event("late", "SubnetsExhausted", "The cluster pools have no free subnet for node late (IPv4, IPv6); the controller retries; add a CIDR to subnets.clusterPools in the configuration")
	e.controllerMetrics(port, map[string]float64{
		`fixedip_nodes_without_subnet{family="IPv4"}`:                            1,
		`fixedip_nodes_without_subnet{family="IPv6"}`:                            1,
		`fixedip_cluster_pool_free_subnets{cidr="10.250.0.0/25", family="IPv4"}`: 0,
	})
	e.must(e.Process("pools").Kill())

	// Two controllers without leader election assign subnets to the same nodes, which exist before the controllers start.
	const joining = 80
	for i := range joining {
		e.agentless(fmt.Sprintf("joins-%d", i))
	}
	for _, name := range []string{"first", "second"} {
		e.startController(name, "--enable-leader-election=false", "--cluster-pool-ipv4-cidr=10.250.0.0/16", "--cluster-pool-ipv4-mask-size=26")
	}
	e.subnetsOf("late", 1)
	for i := range joining {
		e.subnetsOf(fmt.Sprintf("joins-%d", i), 1)
	}
	for name, subnets := range e.disjoint() {
		if slices.ContainsFunc(subnets, func(s netip.Prefix) bool {
			return s.Addr().Is4() && s.Bits() != 26 && name != "node-0"
		}) {
			t.Errorf("node %s has the subnets %v, want IPv4 subnets with mask size 26", name, subnets)
		}
	}
	first, second := len(e.logged(e.Process("first"), `"Subnets assigned"`)), len(e.logged(e.Process("second"), `"Subnets assigned"`))
	t.Logf("one controller assigned subnets to %d nodes, and the other to %d", first, second)
	if first+second != joining+1 {
		t.Errorf("subnets were assigned %d times, want %d", first+second, joining+1)
	}
}

// TestG23NodeCIDRs checks that the subnets of a node are the CIDRs that kube-controller-manager assigns to the node. If the
// CIDRs of a deleted node are assigned to another node, the pods with fixed addresses in these CIDRs run there (G23).
func TestG23NodeCIDRs(t *testing.T) {
	t.Parallel()
	o := options{
		controlPlaneArgs: []string{"--node-cidrs=10.60.0.0/22,fd00:60::/118", "--node-cidr-mask-sizes=24,120"},
		controllerArgs:   []string{"--subnet-source=Node", "--address-cooldown=2s"},
		families:         []string{"IPv4", "IPv6"},
	}
	e := startOn(t, o, map[string][]string{"node-1": {"--ipv6"}, "node-2": {"--ipv6"}})
	e.create(statefulSet("web", 6))
	before := e.awaitRunning(nil, names("web", 6)...)
	for _, name := range []string{"node-1", "node-2"} {
		if given, got := e.nodeCIDRs(name), e.subnetsOf(name, 2); !slices.Equal(got, given) {
			t.Errorf("Kubernetes assigned %v to node %s, but its CiliumNode has %v", given, name, got)
		}
	}
	subnets := e.disjoint()
	for name, r := range before {
		for _, a := range strings.Split(r.Address, ",") {
			if addr := netip.MustParseAddr(a); !slices.ContainsFunc(subnets[r.Node], func(s netip.Prefix) bool { return s.Contains(addr) }) {
				t.Errorf("pod %s has %s, which is in no subnet of its node %s: %v", name, a, r.Node, subnets[r.Node])
			}
		}
	}
	e.deletePods(names("web", 6)...)
	e.sameAddresses(before, e.awaitRunning(before, names("web", 6)...))

	lost, stays := map[string]witness.Row{}, map[string]witness.Row{}
	for name, r := range e.awaitRunning(nil, names("web", 6)...) {
		if r.Node == "node-1" {
			lost[name] = r
		} else {
			stays[name] = r
		}
	}
	had := e.subnetsOf("node-1", 2)
	e.loseNode("node-1")
	for name := range lost {
		e.awaitSubnetCondition(name, metav1.ConditionFalse, v1alpha1.ReasonNodeGone)
	}
	// Three CIDRs of each family are free, and three nodes join. Kubernetes decides which node gets the CIDRs of node-1.
	inheriting := ""
	for _, name := range []string{"third", "fourth", "fifth"} {
		e.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		e.eventually("node "+name+" to have a CIDR of each family", func() bool { return len(e.nodeCIDRs(name)) == 2 })
		if slices.Equal(e.nodeCIDRs(name), had) {
			inheriting = name
		}
	}
	if inheriting == "" {
		t.Fatalf("Kubernetes assigned the CIDRs of node-1, %v, to none of the nodes that joined", had)
	}
	e.startNode(inheriting, "--ipv6")
	var now []string
	for name := range lost {
		now = append(now, name)
	}
	for name, r := range e.awaitRunning(lost, now...) {
		if r.Address != lost[name].Address || r.Node != inheriting {
			t.Errorf("pod %s had %s on %s and has %s on %s, want the same address on %s", name, lost[name].Address, lost[name].Node, r.Address, r.Node, inheriting)
		}
		e.awaitSubnetCondition(name, metav1.ConditionTrue, v1alpha1.ReasonSubnetAssigned)
	}
	if got := e.subnetsOf(inheriting, 2); !slices.Equal(got, had) {
		t.Errorf("node %s has the subnets %v, want those of node-1: %v", inheriting, got, had)
	}
	e.untouched(stays)

	// Kubernetes has no CIDR left, and a CIDR set by hand overlaps another one.
	e.agentless("empty")
	e.event("empty", "SubnetMissing", "spec.podCIDRs of node empty is empty")
	e.agentless("overlaps", "10.60.0.128/25")
	e.event("overlaps", "SubnetOverlap", "subnet 10.60.0.128/25 is not assigned to node overlaps, because it overlaps NodeSubnet 10-60-0-0-24 of node ")
	for _, name := range []string{"empty", "overlaps"} {
		e.subnetsOf(name, 0)
	}
}

// nodeCIDRs returns the CIDRs that Kubernetes assigned to a node.
func (e *env) nodeCIDRs(name string) []string {
	e.t.Helper()
	var node corev1.Node
	e.must(e.api.Get(within(e.t), client.ObjectKey{Name: name}, &node))
	return node.Spec.PodCIDRs
}
