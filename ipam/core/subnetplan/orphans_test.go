// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnetplan_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reservation"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

var (
	cidr = netip.MustParsePrefix
	addr = netip.MustParseAddr
	// clock is the time of all decisions in these tests.
	clock = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	// byValue compares addresses, which have unexported fields.
	byValue = cmp.Options{
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	}
)

func cidrsOf(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		out = append(out, cidr(s))
	}
	return out
}

// of returns a subnet of a node. gone is the time since the node was observed to be gone; 0: it was not observed to be gone.
func of(text, node string, gone time.Duration) subnetplan.Subnet {
	s := subnetplan.Subnet{CIDR: cidr(text), Node: node}
	if gone > 0 {
		s.OrphanedSince = clock.Add(-gone)
	}
	return s
}

// reservedAddress returns an address that a FixedIP reserves for pod mysql-0 on a node. change changes the result.
func reservedAddress(a, node string, change ...func(*reservation.Address)) reservation.Address {
	k := reservation.Address{
		Addr: addr(a), Node: node, Entry: pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"),
		Record: types.NamespacedName{Namespace: "db", Name: "mysql-0"},
	}
	for _, c := range change {
		c(&k)
	}
	return k
}

func mayMove(k *reservation.Address) { k.Failover = v1alpha1.Migrate }
func forPod(name string) func(*reservation.Address) {
	return func(k *reservation.Address) {
		k.Entry, k.Record.Name = pool.OwnedEntry("db", name, "StatefulSet", "mysql"), name
	}
}

func TestOrphans(t *testing.T) {
	v4, v6 := of("10.0.0.16/28", "node-1", time.Minute), of("fd00::/64", "node-1", 2*time.Minute)
	onNode, six := reservedAddress("10.0.0.17", "node-1"), reservedAddress("fd00::17", "node-1")
	moved := reservedAddress("10.0.0.18", "node-2", forPod("mysql-1"))
	constraints := &v1alpha1.NodeConstraints{Zone: "a"}
	zoned, chosen, part, pending := v4, v4, v4, v6
	zoned.Constraints = constraints
	chosen.Successor = "node-7"
	part.Node, part.Previous = "node-2", "node-1"
	done := part
	done.OrphanedSince = time.Time{}
	pending.OrphanedSince = clock.Add(-time.Minute)
	for name, c := range map[string]struct {
		subnets  []subnetplan.Subnet
		reserved []reservation.Address
		want     []subnetplan.OrphanedSubnets
	}{
		"the node exists": {[]subnetplan.Subnet{of("10.0.0.0/28", "node-2", 0)}, []reservation.Address{reservedAddress("10.0.0.3", "node-1")}, nil},
		"both families of a node, the earliest observation counts": {[]subnetplan.Subnet{v6, v4}, []reservation.Address{six, moved, onNode},
			[]subnetplan.OrphanedSubnets{{Node: "node-1", Subnets: []subnetplan.Subnet{v4, v6}, Reserved: []reservation.Address{onNode, moved, six}, Since: v6.OrphanedSince}}},
		"no reserved address":     {[]subnetplan.Subnet{v4}, nil, []subnetplan.OrphanedSubnets{{Node: "node-1", Subnets: []subnetplan.Subnet{v4}, Since: v4.OrphanedSince}}},
		"constraints of the node": {[]subnetplan.Subnet{zoned}, nil, []subnetplan.OrphanedSubnets{{Node: "node-1", Subnets: []subnetplan.Subnet{zoned}, Since: v4.OrphanedSince, Constraints: constraints}}},
		"a successor":             {[]subnetplan.Subnet{chosen}, nil, []subnetplan.OrphanedSubnets{{Node: "node-1", Subnets: []subnetplan.Subnet{chosen}, Since: v4.OrphanedSince, Successor: "node-7"}}},
		"another node has inherited the IPv4 subnet": {[]subnetplan.Subnet{part, pending}, nil,
			[]subnetplan.OrphanedSubnets{{Node: "node-1", Subnets: []subnetplan.Subnet{pending}, Since: pending.OrphanedSince, Candidate: "node-2"}}},
		"another node inherited the IPv4 subnet long ago": {[]subnetplan.Subnet{done, pending}, nil,
			[]subnetplan.OrphanedSubnets{{Node: "node-1", Subnets: []subnetplan.Subnet{pending}, Since: pending.OrphanedSince}}},
		"two nodes": {[]subnetplan.Subnet{of("10.0.0.64/28", "node-3", 0), v4}, nil,
			[]subnetplan.OrphanedSubnets{{Node: "node-1", Subnets: []subnetplan.Subnet{v4}, Since: v4.OrphanedSince}, {Node: "node-3", Subnets: []subnetplan.Subnet{of("10.0.0.64/28", "node-3", 0)}}}},
		"no node: the subnets of both families of a pod form one group": {
			[]subnetplan.Subnet{of("10.0.0.32/28", "", 0), of("10.0.0.64/28", "", 0), of("fd00:0:0:1::/64", "", 0)},
			[]reservation.Address{reservedAddress("10.0.0.33", "", forPod("a-0")), reservedAddress("fd00:0:0:1::1", "", forPod("a-0")), reservedAddress("10.0.0.65", "", forPod("a-1"))},
			[]subnetplan.OrphanedSubnets{
				{Subnets: []subnetplan.Subnet{of("10.0.0.32/28", "", 0), of("fd00:0:0:1::/64", "", 0)}, Reserved: []reservation.Address{reservedAddress("10.0.0.33", "", forPod("a-0")), reservedAddress("fd00:0:0:1::1", "", forPod("a-0"))}},
				{Subnets: []subnetplan.Subnet{of("10.0.0.64/28", "", 0)}, Reserved: []reservation.Address{reservedAddress("10.0.0.65", "", forPod("a-1"))}}}},
		"an address in no subnet": {[]subnetplan.Subnet{v4}, []reservation.Address{reservedAddress("192.168.0.1", "node-1"), onNode},
			[]subnetplan.OrphanedSubnets{{Node: "node-1", Subnets: []subnetplan.Subnet{v4}, Reserved: []reservation.Address{onNode}, Since: v4.OrphanedSince}, {Node: "node-1", Reserved: []reservation.Address{reservedAddress("192.168.0.1", "node-1")}}}},
		"subnets of different sizes": {[]subnetplan.Subnet{of("10.0.0.0/24", "node-1", 0), of("10.0.1.0/30", "node-1", 0), of("10.0.1.4/30", "node-1", 0)}, []reservation.Address{reservedAddress("10.0.0.200", "node-1"), reservedAddress("10.0.1.5", "node-1"), reservedAddress("10.0.1.9", "node-1")},
			[]subnetplan.OrphanedSubnets{
				{Node: "node-1", Subnets: []subnetplan.Subnet{of("10.0.0.0/24", "node-1", 0), of("10.0.1.0/30", "node-1", 0), of("10.0.1.4/30", "node-1", 0)}, Reserved: []reservation.Address{reservedAddress("10.0.0.200", "node-1"), reservedAddress("10.0.1.5", "node-1")}},
				{Node: "node-1", Reserved: []reservation.Address{reservedAddress("10.0.1.9", "node-1")}}}},
	} {
		got := subnetplan.Orphans(c.subnets, c.reserved, func(n string) bool { return n != "node-2" })
		if diff := cmp.Diff(c.want, got, byValue); diff != "" {
			t.Errorf("%s: orphans (-want +got): %s", name, diff)
		}
	}
}

func TestMissing(t *testing.T) {
	pools := []address.ClusterPool{{CIDR: cidr("10.0.0.0/24"), MaskSize: 28}, {CIDR: cidr("fd00::/48"), MaskSize: 64}}
	taken := address.Union(cidrsOf("10.0.0.0/28", "10.0.0.40/29"))
	for name, c := range map[string]struct {
		reserved []reservation.Address
		want     []subnetplan.Subnet
	}{
		"in subnets that are claimed":                     {[]reservation.Address{reservedAddress("10.0.0.3", "node-2"), reservedAddress("10.0.0.44", "node-1")}, nil},
		"the FixedIPs name a node":                        {[]reservation.Address{reservedAddress("10.0.0.17", "node-1"), reservedAddress("fd00::17", "node-1")}, []subnetplan.Subnet{of("10.0.0.16/28", "node-1", 0), of("fd00::/64", "node-1", 0)}},
		"the FixedIP names a node that has other subnets": {[]reservation.Address{reservedAddress("10.0.0.17", "node-2")}, []subnetplan.Subnet{of("10.0.0.16/28", "", 0)}},
		"the FixedIPs name different nodes":               {[]reservation.Address{reservedAddress("10.0.0.17", "node-1"), reservedAddress("10.0.0.18", "node-1"), reservedAddress("10.0.0.19", "node-0")}, []subnetplan.Subnet{of("10.0.0.16/28", "node-1", 0)}},
		"part of the subnet is claimed":                   {[]reservation.Address{reservedAddress("10.0.0.33", "")}, []subnetplan.Subnet{of("10.0.0.32/29", "", 0)}},
		"in no cluster pool":                              {[]reservation.Address{reservedAddress("192.168.0.1", "node-1")}, nil},
	} {
		got := subnetplan.Missing(pools, taken, c.reserved, func(n string) bool { return n == "node-2" })
		if diff := cmp.Diff(c.want, got, byValue); diff != "" {
			t.Errorf("%s: missing subnets (-want +got): %s", name, diff)
		}
	}
}

func TestOutside(t *testing.T) {
	pools := []address.ClusterPool{{CIDR: cidr("10.0.0.0/24"), MaskSize: 28}, {CIDR: cidr("fd00::/48"), MaskSize: 64}}
	for subnet, want := range map[string]bool{
		"10.0.0.16/28": false, "10.0.0.0/24": false, "10.0.1.0/28": true, "10.0.0.0/16": true, "fd00:0:0:7::/64": false, "fd01::/64": true,
	} {
		if got := subnetplan.Outside(pools, cidr(subnet)); got != want {
			t.Errorf("Outside(%s) returns %t, want %t", subnet, got, want)
		}
	}
}

func TestClash(t *testing.T) {
	mine := of("10.0.0.16/28", "node-1", 0)
	for name, c := range map[string]struct {
		other     subnetplan.Subnet
		perFamily bool
		want      bool
	}{
		"the claim itself":                                {mine, true, false},
		"another subnet of another node":                  {of("10.0.0.32/28", "node-2", 0), true, false},
		"a smaller overlapping subnet of another node":    {of("10.0.0.20/30", "node-2", 0), false, true},
		"a larger overlapping subnet of another node":     {of("10.0.0.0/24", "node-2", 0), false, true},
		"the same subnet of another node":                 {of("10.0.0.16/28", "node-2", 0), false, true},
		"a second subnet of the node, one per family":     {of("10.0.0.64/28", "node-1", 0), true, true},
		"a second subnet of the node, several per family": {of("10.0.0.64/28", "node-1", 0), false, false},
		"a subnet of the node in the other family":        {of("fd00::/64", "node-1", 0), true, false},
	} {
		if _, got := subnetplan.Clash(mine, []subnetplan.Subnet{mine, c.other}, c.perFamily); got != c.want {
			t.Errorf("%s: Clash found %t, want %t", name, got, c.want)
		}
	}
}

func TestConstraintsOf(t *testing.T) {
	node := &corev1.Node{}
	node.Labels = map[string]string{corev1.LabelTopologyZone: "a", corev1.LabelTopologyRegion: "r", "karpenter.sh/nodepool": "db", "else": "x"}
	node.Spec.Taints = []corev1.Taint{
		{Key: "dedicated", Value: "db", Effect: corev1.TaintEffectNoSchedule},
		{Key: "a", Effect: corev1.TaintEffectNoExecute},
		{Key: "soft", Effect: corev1.TaintEffectPreferNoSchedule},
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute},
		{Key: "node.cilium.io/agent-not-ready", Effect: corev1.TaintEffectNoSchedule},
	}
	want := v1alpha1.NodeConstraints{Zone: "a", Region: "r", NodePool: map[string]string{"karpenter.sh/nodepool": "db"}, Taints: []corev1.Taint{
		{Key: "a", Effect: corev1.TaintEffectNoExecute}, {Key: "dedicated", Value: "db", Effect: corev1.TaintEffectNoSchedule},
	}}
	if diff := cmp.Diff(want, subnetplan.ConstraintsOf(node)); diff != "" {
		t.Errorf("ConstraintsOf (-want +got): %s", diff)
	}
}
