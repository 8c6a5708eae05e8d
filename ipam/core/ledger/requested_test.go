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

func asks(t *testing.T, text string) request.Addresses {
	t.Helper()
	asked, err := request.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return asked
}

func TestAssumeFrom(t *testing.T) {
	released := func(sec int64) pool.Entry { return pool.CooldownEntry("", time.Unix(sec, 0)) }
	dual := node("n", "10.0.1.0/29", nil)
	dual.Subnets = append(dual.Subnets, netip.MustParsePrefix("fd00::/64"))
	both := []address.Family{address.IPv4, address.IPv6}
	for name, c := range map[string]struct {
		node     pool.NodePool
		asked    string
		families []address.Family
		want     string
		wantErr  string
	}{
		"the one":                         {node: node("n", "10.0.1.0/29", nil), asked: "10.0.1.2", want: "10.0.1.2"},
		"the highest of a set":            {node: node("n", "10.0.1.0/29", nil), asked: "10.0.1.2,10.0.1.4,10.0.1.3", want: "10.0.1.4"},
		"the next below":                  {node: node("n", "10.0.1.0/29", map[string]pool.Entry{"10.0.1.4": pool.ForOwner("db/x-0")}), asked: "10.0.1.2-10.0.1.4", want: "10.0.1.3"},
		"the part in the subnet":          {node: node("n", "10.0.1.0/29", nil), asked: "10.0.0.0/16", want: "10.0.1.6"},
		"never a dynamic entry":           {node: node("n", "10.0.1.0/29", map[string]pool.Entry{"10.0.1.4": {}}), asked: "10.0.1.3,10.0.1.4", want: "10.0.1.3"},
		"never what cools down":           {node: node("n", "10.0.1.0/29", map[string]pool.Entry{"10.0.1.2": released(2), "10.0.1.3": released(1)}), asked: "10.0.1.2-10.0.1.4", want: "10.0.1.4"},
		"what it holds, asked for or not": {node: node("n", "10.0.1.0/29", map[string]pool.Entry{"10.0.1.5": pool.ForOwner("db/mysql-0")}), asked: "10.0.1.2", want: "10.0.1.5"},
		"any of the family not asked for": {node: dual, asked: "10.0.1.2", families: both, want: "10.0.1.2, fd00::ffff:ffff:ffff:ffff"},
		"one of each":                     {node: dual, asked: "fd00::/120,10.0.1.2", families: both, want: "10.0.1.2, fd00::ff"},
		"none is left": {node: node("n", "10.0.1.0/29", map[string]pool.Entry{"10.0.1.2": pool.ForOwner("db/x-0")}), asked: "10.0.1.2",
			wantErr: "none of the requested addresses (10.0.1.2) is free in the subnets of node n (10.0.1.0/29)"},
		"none is there": {node: node("n", "10.0.1.0/29", nil), asked: "10.0.2.0/24",
			wantErr: "none of the requested addresses (10.0.2.1-10.0.2.254) is free in the subnets of node n (10.0.1.0/29)"},
		"never an end of the subnet": {node: node("n", "10.0.1.0/29", nil), asked: "10.0.1.0,10.0.1.7",
			wantErr: "none of the requested addresses (10.0.1.0, 10.0.1.7) is free in the subnets of node n (10.0.1.0/29)"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.families == nil {
				c.families = v4
			}
			l := ledger.New()
			l.SetNode(c.node)
			claim, err := l.Assume("uid", ledger.ClaimRequest{Claim: ledger.Claim{Owner: "db/mysql-0", Node: "n"}, Families: c.families, Requested: asks(t, c.asked)})
			if c.wantErr != "" {
				if err == nil || err.Error() != c.wantErr {
					t.Fatalf("error %v, want %s", err, c.wantErr)
				}
				return
			}
			if err != nil || address.Join(claim.Addrs) != c.want {
				t.Fatalf("claim %+v, %v; want %s", claim, err, c.want)
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

// askedFree returns the free addresses of a node in a family that are among the requested ones; all free ones if none are
// requested in the family.
func (m *model) askedFree(name string, f address.Family, asked request.Addresses) []netip.Addr {
	return slices.DeleteFunc(m.free(name, f), func(a netip.Addr) bool { return len(asked.Ranges(f)) > 0 && !asked.Contains(a) })
}

// compareAsked compares CanAllocate, NodesServing and Blocker for the requested addresses with the answers of the model.
func (m *model) compareAsked(t *rapid.T, l *ledger.Ledger, asked request.Addresses) {
	var reach []string
	for _, name := range modelNodes {
		offers := true
		for _, f := range asked.Families() {
			offers = offers && len(m.askedFree(name, f, asked)) > 0
		}
		if got := l.CanAllocate(name, asked.Families(), asked); got != offers {
			t.Fatalf("%s offers %s: %v, want %v", name, asked, got, offers)
		}
		if _, disputed := l.OverlapsWith(name); disputed || m.nodes[name].Name == "" {
			continue
		}
		covered := func(f address.Family) bool {
			return slices.ContainsFunc(m.nodes[name].Subnets, func(s netip.Prefix) bool {
				return slices.ContainsFunc(slices.Collect(address.Up(s)), func(a netip.Addr) bool { return address.Of(a) == f && asked.Contains(a) })
			})
		}
		if !slices.ContainsFunc(asked.Families(), func(f address.Family) bool { return !covered(f) }) {
			reach = append(reach, name)
		}
	}
	if got := l.NodesServing(asked); !slices.Equal(got, reach) {
		t.Fatalf("%s reaches %v, want %v", asked, got, reach)
	}
	// Blocker must return nil exactly if the home can allocate the address, or if the owner has its entry or reservation.
	for _, f := range asked.Families() {
		a, single := asked.Single(f)
		if !single {
			continue
		}
		home, _ := l.Home(a)
		for _, owner := range append(modelOwners, "new/new-0") {
			got, offered := l.Blocker(owner, a), l.CanAllocate(home, []address.Family{f}, request.Exactly(a))
			keeper, _ := m.keeper(a)
			if slices.Contains(m.heldOn(owner, home), a) || keeper.Owner == owner && m.claimableBy(owner, home, a) {
				offered = true
			}
			if (got == nil) != offered {
				t.Fatalf("%s for %s: %v, offered on %q: %v", a, owner, got, home, offered)
			}
		}
	}
}

func drawAsked(t *rapid.T) request.Addresses {
	elements := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{
		"10.0.1.0/29", "10.0.1.2", "10.0.1.7", "10.0.0.0/16", "10.0.2.2-10.0.3.1", "10.0.3.2", "10.0.9.1", "fd00::/126", "fd00::2", "fd00::3-fd00:1::",
	}), 1, 3, rapid.ID[string]).Draw(t, "asked")
	asked, err := request.Parse(strings.Join(elements, ","))
	if err != nil {
		// Parse refuses ranges that overlap.
		asked, _ = request.Parse(elements[0])
	}
	return asked
}

// TestReachIsComplete checks that NodesServing, which uses an index, finds the same nodes as a search of all subnets.
func TestReachIsComplete(t *testing.T) {
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
			t.Fatalf("%s: %v, want %v", text, got, want)
		}
	}
}
