// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/request"
)

func parseRequest(t *testing.T, text string) request.Addresses {
	t.Helper()
	requested, err := request.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return requested
}

func TestAssumeRequested(t *testing.T) {
	released := func(sec int64) pool.Entry { return pool.CooldownEntry("", time.Unix(sec, 0)) }
	dual := node("n", "10.0.1.0/29", nil)
	dual.Subnets = append(dual.Subnets, netip.MustParsePrefix("fd00::/64"))
	both := []address.Family{address.IPv4, address.IPv6}
	for name, c := range map[string]struct {
		node      pool.NodePool
		requested string
		families  []address.Family
		want      string
		wantErr   string
	}{
		"one address":                                            {node: node("n", "10.0.1.0/29", nil), requested: "10.0.1.2", want: "10.0.1.2"},
		"the highest of several addresses":                       {node: node("n", "10.0.1.0/29", nil), requested: "10.0.1.2,10.0.1.4,10.0.1.3", want: "10.0.1.4"},
		"the next address below a fixed one":                     {node: node("n", "10.0.1.0/29", map[string]pool.Entry{"10.0.1.4": pool.ForOwner("db/x-0")}), requested: "10.0.1.2-10.0.1.4", want: "10.0.1.3"},
		"the part of a range that is in the subnet":              {node: node("n", "10.0.1.0/29", nil), requested: "10.0.0.0/16", want: "10.0.1.6"},
		"a dynamic entry is skipped":                             {node: node("n", "10.0.1.0/29", map[string]pool.Entry{"10.0.1.4": {}}), requested: "10.0.1.3,10.0.1.4", want: "10.0.1.3"},
		"addresses that cool down are skipped":                   {node: node("n", "10.0.1.0/29", map[string]pool.Entry{"10.0.1.2": released(2), "10.0.1.3": released(1)}), requested: "10.0.1.2-10.0.1.4", want: "10.0.1.4"},
		"the address of the pod's entry, which is not requested": {node: node("n", "10.0.1.0/29", map[string]pool.Entry{"10.0.1.5": pool.ForOwner("db/mysql-0")}), requested: "10.0.1.2", want: "10.0.1.5"},
		"any address of a family without a request":              {node: dual, requested: "10.0.1.2", families: both, want: "10.0.1.2, fd00::ffff:ffff:ffff:ffff"},
		"one address of each family":                             {node: dual, requested: "fd00::/120,10.0.1.2", families: both, want: "10.0.1.2, fd00::ff"},
		"no requested address is free": {node: node("n", "10.0.1.0/29", map[string]pool.Entry{"10.0.1.2": pool.ForOwner("db/x-0")}), requested: "10.0.1.2",
			wantErr: "none of the requested IPv4 addresses is free in the subnets of node n (10.0.1.0/29); the pod requests 10.0.1.2"},
		"no requested address is in the subnet": {node: node("n", "10.0.1.0/29", nil), requested: "10.0.2.0/24",
			wantErr: "none of the requested IPv4 addresses is free in the subnets of node n (10.0.1.0/29); the pod requests 10.0.2.1-10.0.2.254"},
		"only the first and last address of the subnet are requested": {node: node("n", "10.0.1.0/29", nil), requested: "10.0.1.0,10.0.1.7",
			wantErr: "none of the requested IPv4 addresses is free in the subnets of node n (10.0.1.0/29); the pod requests 10.0.1.0, 10.0.1.7"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.families == nil {
				c.families = v4
			}
			l := ledger.New()
			l.SetNode(c.node)
			claim, err := l.Assume("uid", ledger.ClaimRequest{Claim: ledger.Claim{Owner: "db/mysql-0", Node: "n"}, Families: c.families, Requested: parseRequest(t, c.requested)})
			if c.wantErr != "" {
				if err == nil || err.Error() != c.wantErr {
					t.Fatalf("got error %v, want %s", err, c.wantErr)
				}
				return
			}
			if err != nil || address.Join(claim.Addrs) != c.want {
				t.Fatalf("got claim %+v and error %v, want %s", claim, err, c.want)
			}
		})
	}
}

func (m *model) heldOn(owner, name string) []netip.Addr {
	for _, h := range m.held(owner) {
		if h.Node == name {
			return h.Addrs
		}
	}
	return nil
}

// requestedFree returns the free addresses of a node in a family that are among the requested ones; all free ones if none
// are requested in the family.
func (m *model) requestedFree(name string, f address.Family, requested request.Addresses) []netip.Addr {
	return slices.DeleteFunc(m.free(name, f), func(a netip.Addr) bool { return len(requested.Ranges(f)) > 0 && !requested.Contains(a) })
}

// compareRequest compares CanAllocate, NodesServing and Blocker for the requested addresses with the results of the model.
func (m *model) compareRequest(t *rapid.T, l *ledger.Ledger, requested request.Addresses) {
	var serving []string
	for _, name := range modelNodes {
		possible := true
		for _, f := range requested.Families() {
			possible = possible && len(m.requestedFree(name, f, requested)) > 0
		}
		if got := l.CanAllocate(name, requested.Families(), requested); got != possible {
			t.Fatalf("got CanAllocate %v for %s on %s, want %v", got, requested, name, possible)
		}
		if _, overlaps := l.OverlapsWith(name); overlaps || m.nodes[name].Name == "" {
			continue
		}
		covered := func(f address.Family) bool {
			return slices.ContainsFunc(m.nodes[name].Subnets, func(s netip.Prefix) bool {
				return slices.ContainsFunc(slices.Collect(address.Up(s)), func(a netip.Addr) bool { return address.Of(a) == f && requested.Contains(a) })
			})
		}
		if !slices.ContainsFunc(requested.Families(), func(f address.Family) bool { return !covered(f) }) {
			serving = append(serving, name)
		}
	}
	if got := l.NodesServing(requested); !slices.Equal(got, serving) {
		t.Fatalf("got NodesServing %v for %s, want %v", got, requested, serving)
	}
	// Blocker must return nil if and only if a pod without a reservation can claim the address at its home, the owner has an
	// entry for the address there, or the owner can claim the address because of a reservation.
	for _, f := range requested.Families() {
		a, single := requested.Single(f)
		if !single {
			continue
		}
		home, _ := l.Home(a)
		for _, owner := range append(modelOwners, "new/new-0") {
			got, possible := l.Blocker(owner, a), l.CanAllocate(home, []address.Family{f}, request.Exactly(a))
			reservation, _ := m.reservationOf(a)
			if slices.Contains(m.heldOn(owner, home), a) || reservation.Owner == owner && m.claimableBy(owner, home, a) {
				possible = true
			}
			if (got == nil) != possible {
				t.Fatalf("got Blocker %v of %s for %s with home %q, want none: %v", got, a, owner, home, possible)
			}
		}
	}
}

func drawRequest(t *rapid.T) request.Addresses {
	elements := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{
		"10.0.1.0/29", "10.0.1.2", "10.0.1.7", "10.0.0.0/16", "10.0.2.2-10.0.3.1", "10.0.3.2", "10.0.9.1", "fd00::/126", "fd00::2", "fd00::3-fd00:1::",
	}), 1, 3, rapid.ID[string]).Draw(t, "requested")
	requested, err := request.Parse(strings.Join(elements, ","))
	if err != nil {
		// Parse refuses ranges that overlap.
		requested, _ = request.Parse(elements[0])
	}
	return requested
}

// TestNodesServing checks that NodesServing, which uses an index, finds the same nodes as a search of all subnets.
func TestNodesServing(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 0))
	l := ledger.New()
	var nodes []pool.NodePool
	for i := range 200 {
		bits := []int{24, 26, 29, 30, 31, 32}[random.IntN(6)]
		v4 := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), byte(random.IntN(256))}), bits).Masked()
		n := pool.NodePool{Name: fmt.Sprintf("node-%03d", i), Subnets: []netip.Prefix{v4}}
		if i%2 == 0 {
			n.Subnets = append(n.Subnets, netip.MustParsePrefix(fmt.Sprintf("fd00:0:0:%x::/64", i+1)))
		}
		nodes = append(nodes, n)
		l.SetNode(n)
	}
	for _, n := range nodes[:50] {
		l.RemoveNode(n.Name)
	}
	nodes = nodes[50:]
	for range 500 {
		a := netip.AddrFrom4([4]byte{10, 0, byte(random.IntN(210)), byte(random.IntN(256))})
		b := netip.AddrFrom4([4]byte{10, 0, byte(random.IntN(210)), byte(random.IntN(256))})
		if b.Less(a) {
			a, b = b, a
		}
		text := []string{a.String(), a.String() + "-" + b.String(), fmt.Sprintf("%s,fd00:0:0:%x::7", a, 1+random.IntN(210))}[random.IntN(3)]
		requested, err := request.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, n := range nodes {
			families := map[address.Family]bool{}
			for _, s := range n.Subnets {
				if len(requested.Within(s)) > 0 {
					families[address.Of(s.Addr())] = true
				}
			}
			if len(families) == len(requested.Families()) {
				want = append(want, n.Name)
			}
		}
		if got := l.NodesServing(requested); !slices.Equal(got, want) {
			t.Fatalf("%s: got nodes %v, want %v", text, got, want)
		}
	}
}
