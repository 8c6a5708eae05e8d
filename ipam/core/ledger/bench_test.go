// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// benchNodes is the number of nodes of the benchmarks. Each node has 32 addresses in use, 10 of which are fixed.
const benchNodes = 5000

func benchName(i int) string { return fmt.Sprintf("node-%d", i) }

// benchPool returns the pool of node i.
func benchPool(i int) pool.NodePool {
	at := func(last int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(last)}) }
	n := pool.NodePool{
		Name: benchName(i), UID: benchName(i), Generation: 1, HasPool: true, HasUsed: true,
		Subnets: []netip.Prefix{netip.PrefixFrom(at(0), 24)}, Entries: map[netip.Addr]pool.Entry{}, Used: map[netip.Addr]string{},
	}
	for j := range 48 {
		switch a := at(1 + j); {
		case j < 32:
			n.Entries[a] = pool.Entry{}
			if j < 22 {
				n.Used[a] = "team/service"
			}
		case j < 42:
			fixed := at(254 - (j - 32))
			n.Entries[fixed] = pool.OwnedEntry("team", fmt.Sprintf("db-%d-%d", i, j), "StatefulSet", fmt.Sprintf("db-%d", i))
			n.Used[fixed] = "team/db"
		}
	}
	return n
}

func benchLedger() *ledger.Ledger {
	l := ledger.New()
	for i := range benchNodes {
		l.SetNode(benchPool(i))
	}
	return l
}

// BenchmarkStart measures how long a new ledger takes to index the CiliumNodes that exist when a program starts.
func BenchmarkStart(b *testing.B) {
	pools := make([]pool.NodePool, benchNodes)
	for i := range pools {
		pools[i] = benchPool(i)
	}
	b.ReportAllocs()
	for b.Loop() {
		l := ledger.New()
		for _, p := range pools {
			l.SetNode(p)
		}
	}
}

// BenchmarkSetNode measures the handling of one watch event of a CiliumNode.
func BenchmarkSetNode(b *testing.B) {
	l := benchLedger()
	first := benchPool(7)
	reported := first
	reported.Used = maps.Clone(first.Used)
	reported.Used[netip.MustParseAddr("10.0.7.30")] = "team/short-lived"
	claimed := first
	claimed.Generation, claimed.Entries = 2, maps.Clone(first.Entries)
	claimed.Entries[netip.MustParseAddr("10.0.7.100")] = pool.OwnedEntry("team", "web-0", "StatefulSet", "web")
	for name, versions := range map[string][]pool.NodePool{"same": {first}, "reported": {reported, first}, "claimed": {claimed, first}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				l.SetNode(versions[i%len(versions)])
			}
		})
	}
}

// BenchmarkNodes measures the two calls that the scheduler makes for each node in a first placement: whether the node has a
// free address, and which share of its addresses is free.
func BenchmarkNodes(b *testing.B) {
	l := benchLedger()
	names := make([]string, benchNodes)
	for i := range names {
		names[i] = benchName(i)
	}
	b.Run("HasAvailable", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if !l.HasAvailable(names[i%benchNodes], address.IPv4) {
				b.Fatalf("HasAvailable(%s) returns false, want true", names[i%benchNodes])
			}
		}
	})
	b.Run("FreeShare", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if l.FreeShare(names[i%benchNodes], address.IPv4) <= 0 {
				b.Fatalf("FreeShare(%s) returns 0, want more", names[i%benchNodes])
			}
		}
	})
}

// BenchmarkAssume measures a claim in memory and its end, with and without other claims in flight.
func BenchmarkAssume(b *testing.B) {
	for _, inFlight := range []int{0, 1000} {
		l := benchLedger()
		for i := range inFlight {
			if _, err := l.Assume(types.UID(fmt.Sprint(i)), ledger.ClaimRequest{Claim: ledger.Claim{Owner: fmt.Sprintf("team/new-%d", i), Node: benchName(i)}, Families: v4}); err != nil {
				b.Fatal(err)
			}
		}
		request := ledger.ClaimRequest{Claim: ledger.Claim{Owner: "team/web-0", Node: benchName(7)}, Families: v4}
		b.Run(fmt.Sprintf("inFlight=%d", inFlight), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := l.Assume("uid", request); err != nil {
					b.Fatal(err)
				}
				l.Forget("uid")
			}
		})
	}
}
