// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"net/netip"
	"testing"
	"time"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/plugins/fixedip/cache"
)

// A claim that stands in the cache counts if the API server has the same entries, and the agent lists no other pod.
func TestClaimIsConfirmed(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.1.6"), netip.MustParseAddr("10.0.1.7")
	mine := movedID.Entry()
	for name, c := range map[string]struct {
		shown, stands map[netip.Addr]pool.Entry
		used          map[netip.Addr]string
		want          string
	}{
		"it stands":                    {shown: map[netip.Addr]pool.Entry{a: mine, b: {}}, stands: map[netip.Addr]pool.Entry{a: mine}},
		"and its agent lists it":       {shown: map[netip.Addr]pool.Entry{a: mine}, stands: map[netip.Addr]pool.Entry{a: mine}, used: map[netip.Addr]string{a: movedOwner}},
		"and another has it":           {shown: map[netip.Addr]pool.Entry{a: mine}, stands: map[netip.Addr]pool.Entry{a: mine}, used: map[netip.Addr]string{a: "db/other-0"}, want: "10.0.1.6 on node n is used by db/other-0"},
		"it was taken":                 {shown: map[netip.Addr]pool.Entry{a: mine}, stands: map[netip.Addr]pool.Entry{a: pool.CooldownEntry("", time.Unix(1, 0))}, want: "node n has no entry for db/mysql-0 at 10.0.1.6"},
		"another is kept in its place": {shown: map[netip.Addr]pool.Entry{a: mine, b: {}}, stands: map[netip.Addr]pool.Entry{b: mine}, want: "node n has an entry for db/mysql-0 at 10.0.1.7, which is not planned for it"},
		"two, both shown":              {shown: map[netip.Addr]pool.Entry{a: mine, b: mine}, stands: map[netip.Addr]pool.Entry{a: mine, b: mine}},
		"two, and another has one":     {shown: map[netip.Addr]pool.Entry{a: mine, b: mine}, stands: map[netip.Addr]pool.Entry{a: mine, b: mine}, used: map[netip.Addr]string{b: "web/x"}, want: "10.0.1.7 on node n is used by a pod of another namespace"},
	} {
		b := &Binder{Shared: &Shared{Cache: &cache.Cache{Ledger: ledger.New()}}}
		b.Cache.Ledger.SetNode(pool.NodePool{Name: "n", UID: "n", Entries: c.shown})
		got := ""
		if err := (pool.NodePool{Name: "n", UID: "n", Entries: c.stands, Used: c.used}).CheckBinding(movedOwner, b.heldOn(movedOwner, "n")); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
