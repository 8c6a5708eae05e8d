// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnetplan_test

import (
	"fmt"
	"net/netip"
	"testing"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/reservation"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

// benchSubnets is the number of subnets with 256 addresses in a cluster pool 10.0.0.0/8.
const benchSubnets = 1 << 16

func benchSubnet(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
}

// benchWorld returns the subnets of benchSubnets nodes, sorted by CIDR, and one reserved address in each of them.
func benchWorld() ([]subnetplan.Subnet, []reservation.Address) {
	subnets := make([]subnetplan.Subnet, benchSubnets)
	reserved := make([]reservation.Address, benchSubnets)
	for i := range subnets {
		cidr, node := benchSubnet(i), fmt.Sprintf("node-%d", i)
		subnets[i] = subnetplan.Subnet{CIDR: cidr, Node: node}
		reserved[i] = reservedAddress(cidr.Addr().Next().String(), node)
	}
	return subnets, reserved
}

// BenchmarkAssign measures the assignment of the last free subnet of a cluster pool to a new node: the choice of the subnet, and
// the comparison of the claim with all others.
func BenchmarkAssign(b *testing.B) {
	subnets, _ := benchWorld()
	subnets = subnets[:benchSubnets-1]
	pools := []address.ClusterPool{{CIDR: cidr("10.0.0.0/8"), MaskSize: 24}}
	b.ReportAllocs()
	for b.Loop() {
		chosen, ok := address.Carve(pools, address.IPv4, address.Union(subnetplan.CIDRs(subnets)))
		if !ok {
			b.Fatal("Carve found no free subnet")
		}
		if clash, found := subnetplan.Clash(subnetplan.Subnet{CIDR: chosen, Node: "new"}, subnets, true); found {
			b.Fatalf("the free subnet %s clashes with %s", chosen, clash.CIDR)
		}
	}
}

// BenchmarkOrphans measures the search for the orphaned subnets of ten nodes that are gone.
func BenchmarkOrphans(b *testing.B) {
	subnets, reserved := benchWorld()
	gone := map[string]bool{}
	for i := range 10 {
		gone[fmt.Sprintf("node-%d", i*1000)] = true
	}
	b.ReportAllocs()
	for b.Loop() {
		if found := subnetplan.Orphans(subnets, reserved, func(node string) bool { return gone[node] }); len(found) != len(gone) {
			b.Fatalf("got %d orphans, want %d", len(found), len(gone))
		}
	}
}

// BenchmarkMissing measures the search for subnets that reserved addresses need and that no node has. Half of all subnets are
// missing.
func BenchmarkMissing(b *testing.B) {
	subnets, reserved := benchWorld()
	pools := []address.ClusterPool{{CIDR: cidr("10.0.0.0/8"), MaskSize: 24}}
	taken := address.Union(subnetplan.CIDRs(subnets[:benchSubnets/2]))
	b.ReportAllocs()
	for b.Loop() {
		if found := subnetplan.Missing(pools, taken, reserved, func(string) bool { return false }); len(found) != benchSubnets/2 {
			b.Fatalf("got %d missing subnets, want %d", len(found), benchSubnets/2)
		}
	}
}
