// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"net/netip"
	"slices"
	"testing"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

func TestOffers(t *testing.T) {
	mine := pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")
	for name, c := range map[string]struct {
		nodes []pool.NodePool
		// gone is a node that is removed after all nodes were set; empty: none.
		gone string
		// asked is the argument of OfferedTwice, want its result. Offering must return nodes a and b for each address.
		asked string
		want  []string
	}{
		"each its own": {
			nodes: []pool.NodePool{node("a", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.3": mine}), node("b", "10.0.2.0/24", map[string]pool.Entry{"10.0.2.3": {}})},
			asked: "a"},
		"a stray is at home elsewhere": {
			nodes: []pool.NodePool{node("a", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.3": mine}), node("b", "10.0.2.0/24", map[string]pool.Entry{"10.0.1.3": mine})},
			asked: "a", want: []string{"10.0.1.3"}},
		"and the other way round": {
			nodes: []pool.NodePool{node("a", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.3": {}}), node("b", "10.0.2.0/24", map[string]pool.Entry{"10.0.1.3": mine})},
			asked: "b", want: []string{"10.0.1.3"}},
		"two strays": {
			nodes: []pool.NodePool{node("a", "10.0.1.0/24", map[string]pool.Entry{"10.0.9.3": {}}), node("b", "10.0.2.0/24", map[string]pool.Entry{"10.0.9.3": {}})},
			asked: "a", want: []string{"10.0.9.3"}},
		"one subnet twice": {
			nodes: []pool.NodePool{node("a", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.3": {}, "10.0.1.4": {}}), node("b", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.3": {}})},
			asked: "a", want: []string{"10.0.1.3"}},
		"a subnet in a subnet": {
			nodes: []pool.NodePool{node("a", "10.0.0.0/16", map[string]pool.Entry{"10.0.1.3": {}}), node("b", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.3": pool.ForOwner("router")})},
			asked: "b", want: []string{"10.0.1.3"}},
		"the mark at home of one that is away offers nothing": {
			nodes: []pool.NodePool{node("a", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.3": pool.MovedEntry("b", "db/mysql-0")}), node("b", "10.0.2.0/24", map[string]pool.Entry{"10.0.1.3": mine})},
			asked: "b"},
		"the other node is gone": {
			nodes: []pool.NodePool{node("a", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.3": mine}), node("b", "10.0.2.0/24", map[string]pool.Entry{"10.0.1.3": mine})},
			gone:  "b", asked: "a"},
		"the stray is gone": {
			nodes: []pool.NodePool{node("a", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.3": mine}), node("b", "10.0.2.0/24", map[string]pool.Entry{"10.0.1.3": mine}), node("b", "10.0.2.0/24", nil)},
			asked: "a"},
	} {
		l := ledger.New()
		for _, n := range c.nodes {
			l.SetNode(n)
		}
		if c.gone != "" {
			l.RemoveNode(c.gone)
		}
		var want []netip.Addr
		for _, a := range c.want {
			want = append(want, addr(a))
		}
		if got := l.OfferedTwice(c.asked); !slices.Equal(got, want) {
			t.Errorf("%s: node %s shares %v, want %v", name, c.asked, got, want)
		}
		for _, a := range want {
			if got := l.Offering(a); !slices.Equal(got, []string{"a", "b"}) {
				t.Errorf("%s: %s is offered by %v", name, a, got)
			}
		}
	}
}

func TestStraysIn(t *testing.T) {
	l := ledger.New()
	l.SetNode(node("a", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.3": {}, "10.0.2.3": pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"), "10.0.3.3": pool.MoveTargetEntry("db/mysql-1")}))
	for subnet, want := range map[string]bool{
		"10.0.1.0/24": false, // The subnet of the node itself.
		"10.0.2.0/24": true,
		"10.0.2.0/28": true,
		"10.0.3.0/24": false, // A MoveTarget entry is not allocatable.
		"10.0.4.0/24": false,
	} {
		if got := l.HasForeignAddresses([]netip.Prefix{netip.MustParsePrefix("10.9.0.0/24"), netip.MustParsePrefix(subnet)}); got != want {
			t.Errorf("in %s: %v, want %v", subnet, got, want)
		}
	}
	l.RemoveNode("a")
	if l.HasForeignAddresses([]netip.Prefix{netip.MustParsePrefix("10.0.2.0/24")}) {
		t.Error("the node is gone, and its stray is not")
	}
}
