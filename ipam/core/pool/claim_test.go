// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestClaim(t *testing.T) {
	mine := pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")
	n := pool.NodePool{
		Name: "n", PodCIDRs: []string{"10.0.1.0/24", "fd00::/64"}, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("fd00::/64")},
		Entries: map[netip.Addr]pool.Entry{
			addr("10.0.1.1"): {}, addr("fd00::2"): mine, addr("10.0.1.3"): pool.ForOwner("db/other-0"),
			addr("10.0.1.4"): pool.CooldownEntry("", time.Unix(1, 0)), addr("10.0.1.5"): pool.CooldownEntry("", time.Unix(1, 0)), addr("10.0.1.6"): pool.ForOwner("router"),
		},
		Used:       map[netip.Addr]string{addr("10.0.1.5"): "db/other-1", addr("10.0.1.7"): "db/other-2", addr("10.0.1.8"): "db/mysql-0"},
		Handshakes: map[netip.Addr]pool.Handshake{addr("10.0.1.9"): pool.Released},
	}
	for name, c := range map[string]struct {
		want  []string
		edits int
		taken bool
	}{
		"a free address":        {[]string{"10.0.1.200"}, 1, false},
		"the pod's own address": {[]string{"fd00::2"}, 0, false},
		"the pod's own address and a free one of the other family": {[]string{"fd00::2", "10.0.1.200"}, 1, false},
		"a second address of the same family":                      {[]string{"fd00::3"}, 0, true},
		"an address that cools down":                               {[]string{"10.0.1.4"}, 0, true},
		"an address without an entry that the pod still uses":      {[]string{"10.0.1.8"}, 1, false},
		"a used address that cools down":                           {[]string{"10.0.1.5"}, 0, true},
		"an address that another pod uses":                         {[]string{"10.0.1.7"}, 0, true},
		"a dynamic entry":                                          {[]string{"10.0.1.1"}, 0, true},
		"an entry of another pod":                                  {[]string{"10.0.1.3"}, 0, true},
		"the address of the router":                                {[]string{"10.0.1.6"}, 0, true},
		"an address of another node":                               {[]string{"10.0.2.1"}, 0, true},
		"an address in a release handshake":                        {[]string{"10.0.1.9"}, 0, true},
		"the last address of the subnet":                           {[]string{"10.0.1.255"}, 0, true},
		"a free address and an entry of another pod":               {[]string{"10.0.1.200", "10.0.1.3"}, 0, true},
	} {
		var want []netip.Addr
		for _, a := range c.want {
			want = append(want, addr(a))
		}
		edits, err := n.Claim(want, mine)
		if len(edits) != c.edits || errors.Is(err, pool.ErrTaken) != c.taken {
			t.Errorf("%s: got %d edits and error %v, want %d edits and an error that matches ErrTaken: %v", name, len(edits), err, c.edits, c.taken)
		}
	}
}

// TestNoHijack checks that claims, releases and ends of cooldowns in any order never take an owned address from its
// pod: another pod gets the address only after a release.
func TestNoHijack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := pool.NodePool{Name: "n", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/29")}, Entries: map[netip.Addr]pool.Entry{}, Used: map[netip.Addr]string{}}
		addrs := slices.Collect(address.Up(n.Subnets[0]))
		pick := rapid.SampledFrom(addrs)
		pods := rapid.SampledFrom([]string{"mysql-0", "mysql-1", "mysql-2"})
		t.Repeat(map[string]func(*rapid.T){
			"claim": func(t *rapid.T) {
				want := rapid.SliceOfNDistinct(pick, 1, 2, rapid.ID[netip.Addr]).Draw(t, "addrs")
				entry := pool.OwnedEntry("db", pods.Draw(t, "pod"), "StatefulSet", "mysql")
				edits, err := n.Claim(want, entry)
				if err != nil {
					return
				}
				for _, e := range edits {
					if n.Entries[e.Addr].Kind == pool.Owned {
						t.Fatalf("the claim changed the owner of %s from %q to %q without a release", e.Addr, n.Entries[e.Addr].Owner(), entry.Owner())
					}
				}
				n = n.With(edits)
				for _, a := range want {
					if n.Entries[a] != entry {
						t.Fatalf("got entry %+v for %s after the claim, want %+v", n.Entries[a], a, entry)
					}
				}
			},
			"release": func(t *rapid.T) {
				owner := "db/" + pods.Draw(t, "pod")
				n = n.With(n.Release(owner, nil, time.Unix(1, 0)))
				for a, e := range n.Entries {
					if e.OwnedBy(owner) {
						t.Fatalf("the entry of %s still names %s after the release", a, owner)
					}
				}
			},
			"expire": func(*rapid.T) {
				for a, e := range n.Entries {
					if e.Kind == pool.Cooldown {
						delete(n.Entries, a)
					}
				}
			},
			"used": func(t *rapid.T) {
				a := pick.Draw(t, "addr")
				if _, used := n.Used[a]; used {
					delete(n.Used, a)
				} else {
					n.Used[a] = "db/" + pods.Draw(t, "pod")
				}
			},
		})
	})
}
