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

func TestOfferedTwice(t *testing.T) {
	mine := pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")
	for name, c := range map[string]struct {
		nodes []pool.NodePool
		// removed is a node that is removed after all nodes were set; empty: none.
		removed string
		// of is the argument of OfferedTwice, want its result. For each address in want, Offering must return nodes a and b.
		of   string
		want []string
	}{
		"each pool has only addresses of its own node": {
			nodes: []pool.NodePool{node("a", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.3": mine}), node("b", "10.0.2.0/24", map[string]pool.Entry{"10.0.2.3": {}})},
			of:    "a"},
		"node a, whose address node b carries": {
			nodes: []pool.NodePool{node("a", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.3": mine}), node("b", "10.0.2.0/24", map[string]pool.Entry{"10.0.1.3": mine})},
			of:    "a", want: []string{"10.0.1.3"}},
		"node b, which carries an address of node a": {
			nodes: []pool.NodePool{node("a", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.3": {}}), node("b", "10.0.2.0/24", map[string]pool.Entry{"10.0.1.3": mine})},
			of:    "b", want: []string{"10.0.1.3"}},
		"two nodes carry an address that has no home node": {
			nodes: []pool.NodePool{node("a", "10.0.1.0/24", map[string]pool.Entry{"10.0.9.3": {}}), node("b", "10.0.2.0/24", map[string]pool.Entry{"10.0.9.3": {}})},
			of:    "a", want: []string{"10.0.9.3"}},
		"two nodes with the same subnet": {
			nodes: []pool.NodePool{node("a", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.3": {}, "10.0.1.4": {}}), node("b", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.3": {}})},
			of:    "a", want: []string{"10.0.1.3"}},
		"the subnet of one node contains that of the other": {
			nodes: []pool.NodePool{node("a", "10.0.0.0/16", map[string]pool.Entry{"10.0.1.3": {}}), node("b", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.3": pool.ForOwner("router")})},
			of:    "b", want: []string{"10.0.1.3"}},
		"a Moved entry at the home is not allocatable": {
			nodes: []pool.NodePool{node("a", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.3": pool.MovedEntry("b", "db/mysql-0")}), node("b", "10.0.2.0/24", map[string]pool.Entry{"10.0.1.3": mine})},
			of:    "b"},
		"the other node was removed": {
			nodes:   []pool.NodePool{node("a", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.3": mine}), node("b", "10.0.2.0/24", map[string]pool.Entry{"10.0.1.3": mine})},
			removed: "b", of: "a"},
		"the entry on the other node was removed": {
			nodes: []pool.NodePool{node("a", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.3": mine}), node("b", "10.0.2.0/24", map[string]pool.Entry{"10.0.1.3": mine}), node("b", "10.0.2.0/24", nil)},
			of:    "a"},
	} {
		l := ledger.New()
		for _, n := range c.nodes {
			l.SetNode(n)
		}
		if c.removed != "" {
			l.RemoveNode(c.removed)
		}
		var want []netip.Addr
		for _, a := range c.want {
			want = append(want, addr(a))
		}
		if got := l.OfferedTwice(c.of); !slices.Equal(got, want) {
			t.Errorf("%s: OfferedTwice(%s) = %v, want %v", name, c.of, got, want)
		}
		for _, a := range want {
			if got := l.Offering(a); !slices.Equal(got, []string{"a", "b"}) {
				t.Errorf("%s: Offering(%s) = %v, want a and b", name, a, got)
			}
		}
	}
}

func TestHasCarriedAddresses(t *testing.T) {
	l := ledger.New()
	l.SetNode(node("a", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.3": {}, "10.0.2.3": pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"), "10.0.3.3": pool.MoveTargetEntry("db/mysql-1")}))
	for subnet, want := range map[string]bool{
		"10.0.1.0/24": false, // The subnet of the node itself.
		"10.0.2.0/24": true,
		"10.0.2.0/28": true,
		"10.0.3.0/24": false, // A MoveTarget entry is not allocatable.
		"10.0.4.0/24": false,
	} {
		if got := l.HasCarriedAddresses([]netip.Prefix{netip.MustParsePrefix("10.9.0.0/24"), netip.MustParsePrefix(subnet)}); got != want {
			t.Errorf("HasCarriedAddresses for subnet %s = %v, want %v", subnet, got, want)
		}
	}
	l.RemoveNode("a")
	if l.HasCarriedAddresses([]netip.Prefix{netip.MustParsePrefix("10.0.2.0/24")}) {
		t.Error("HasCarriedAddresses = true after the node was removed, want false")
	}
}
