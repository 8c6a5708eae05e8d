// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package gather

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
)

// An address is not released while another pod has it, or its agent may have assigned it to another.
func TestReports(t *testing.T) {
	const owner = "db/mysql-0"
	a := netip.MustParseAddr("10.0.1.6")
	claimed := pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")
	for name, c := range map[string]struct {
		entry pool.Entry
		// user is who has the address, as the agent reports it.
		user   string
		why    string
		blocks string
	}{
		"it was claimed":                  {entry: claimed},
		"its pod has it":                  {entry: claimed, user: owner},
		"another has it":                  {entry: claimed, user: "db/other-0", blocks: "db/other-0", why: "IP 10.0.1.6 is still in use by db/other-0 on node n, whose agent assigned it before it knew the owner; release is blocked until that pod is deleted"},
		"one of another namespace has it": {entry: claimed, user: "web/other-0", blocks: "web/other-0", why: "IP 10.0.1.6 is still in use by a pod of another namespace on node n, whose agent assigned it before it knew the owner; release is blocked until that pod is deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			g := &Gatherer{Ledger: ledger.New()}
			n := pool.NodePool{Name: "n", UID: "n", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}, Entries: map[netip.Addr]pool.Entry{a: c.entry}, Used: map[netip.Addr]string{}}
			want := reclaim.State{Held: []ledger.NodeAddresses{{Node: "n", Addrs: []netip.Addr{a}}}}
			if c.user != "" {
				n.Used[a] = c.user
				want.Reported = []netip.Addr{a}
			}
			if c.why != "" {
				want.Blockers = []reclaim.ReleaseBlocker{{Addr: a, User: c.blocks, Why: c.why}}
			}
			g.Ledger.SetNode(n)
			got := reclaim.State{Held: g.Ledger.Held(owner)}
			g.reports(owner, &got)
			if diff := cmp.Diff(want, got, cmp.Comparer(func(x, y netip.Addr) bool { return x == y })); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}
