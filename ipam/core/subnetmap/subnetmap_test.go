// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnetmap_test

import (
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/subnetmap"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// of returns the map of a node with one subnet. Key of entries and used: the address. The agent withholds the addresses in
// releasing.
func of(cidr string, entries map[string]pool.Entry, used map[string]string, releasing []netip.Addr, reserved ...ledger.Reservation) subnetmap.Node {
	n := pool.NodePool{Name: "node-1", Subnets: []netip.Prefix{netip.MustParsePrefix(cidr)}, Entries: map[netip.Addr]pool.Entry{}, Used: map[netip.Addr]string{}, Handshakes: map[netip.Addr]pool.Handshake{}}
	for a, e := range entries {
		n.Entries[addr(a)] = e
	}
	for a, owner := range used {
		n.Used[addr(a)] = owner
	}
	for _, a := range releasing {
		n.Handshakes[a] = pool.ReadyForRelease
	}
	l := ledger.New()
	l.SetNode(n)
	for _, r := range reserved {
		l.SetReservation(r)
	}
	return subnetmap.Of(l, n)
}

// TestStates checks the state, the holder and the user of each kind of address.
func TestStates(t *testing.T) {
	got := of("10.0.1.0/26", map[string]pool.Entry{
		"10.0.1.1": {}, "10.0.1.2": {}, "10.0.1.3": {}, "10.0.1.4": {},
		"10.0.1.5":  pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"),
		"10.0.1.6":  pool.OwnedEntry("db", "mysql-1", "StatefulSet", "mysql"),
		"10.0.1.7":  pool.OwnedEntry("db", "mysql-2", "StatefulSet", "mysql"),
		"10.0.1.8":  pool.UnreservedEntry("web", "other"),
		"10.0.1.9":  pool.ForOwner("router"),
		"10.0.1.10": pool.CooldownEntry("db/gone", time.Unix(1, 0)),
		"10.0.1.11": pool.MovedEntry("node-2", "db/moved"),
		"10.0.1.12": pool.ForOwner("by hand"),
		"10.0.9.9":  pool.OwnedEntry("db", "guest", "StatefulSet", "guest"),
		"10.0.9.10": pool.MoveTargetEntry("db/arriving"),
	}, map[string]string{
		"10.0.1.2": "web/a", "10.0.1.3": "router", "10.0.1.4": "", "10.0.1.6": "db/mysql-1", "10.0.1.7": "web/thief", "10.0.1.30": "web/stray",
	}, []netip.Addr{addr("10.0.1.20")}, ledger.Reservation{Record: "db/kept", Owner: "db/kept", Addrs: []netip.Addr{addr("10.0.1.40"), addr("10.0.1.5")}})
	want := subnetmap.Node{
		Name: "node-1",
		Subnets: []subnetmap.Subnet{{CIDR: netip.MustParsePrefix("10.0.1.0/26"), Size: 62,
			Counts: map[subnetmap.State]int{
				subnetmap.DynamicFree: 1, subnetmap.DynamicUsed: 2, subnetmap.NodeOwned: 2, subnetmap.Fixed: 1, subnetmap.FixedUsed: 2, subnetmap.Unreserved: 1,
				subnetmap.Cooldown: 1, subnetmap.Moved: 1, subnetmap.Foreign: 1, subnetmap.Releasing: 1, subnetmap.Unlisted: 1, subnetmap.Reserved: 1,
			},
			Addresses: []subnetmap.Cell{
				{Address: addr("10.0.1.1"), State: subnetmap.DynamicFree},
				{Address: addr("10.0.1.2"), State: subnetmap.DynamicUsed, Holder: "web/a"},
				{Address: addr("10.0.1.3"), State: subnetmap.NodeOwned, Holder: "router"},
				{Address: addr("10.0.1.4"), State: subnetmap.DynamicUsed},
				{Address: addr("10.0.1.5"), State: subnetmap.Fixed, Holder: "db/mysql-0", Workload: "db/StatefulSet/mysql"},
				{Address: addr("10.0.1.6"), State: subnetmap.FixedUsed, Holder: "db/mysql-1", Workload: "db/StatefulSet/mysql"},
				{Address: addr("10.0.1.7"), State: subnetmap.FixedUsed, Holder: "db/mysql-2", User: "web/thief", Workload: "db/StatefulSet/mysql"},
				{Address: addr("10.0.1.8"), State: subnetmap.Unreserved, Holder: "web/other"},
				{Address: addr("10.0.1.9"), State: subnetmap.NodeOwned, Holder: "router"},
				{Address: addr("10.0.1.10"), State: subnetmap.Cooldown, Holder: "db/gone"},
				{Address: addr("10.0.1.11"), State: subnetmap.Moved, Holder: "db/moved", Node: "node-2"},
				{Address: addr("10.0.1.12"), State: subnetmap.Foreign, Holder: "by hand"},
				{Address: addr("10.0.1.20"), State: subnetmap.Releasing},
				{Address: addr("10.0.1.30"), State: subnetmap.Unlisted, Holder: "web/stray"},
				{Address: addr("10.0.1.40"), State: subnetmap.Reserved, Holder: "db/kept"},
			}}},
		Carried: []subnetmap.Cell{
			{Address: addr("10.0.9.9"), State: subnetmap.Fixed, Holder: "db/guest", Workload: "db/StatefulSet/guest"},
			{Address: addr("10.0.9.10"), State: subnetmap.MoveTarget, Holder: "db/arriving"},
		},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(subnetmap.Subnet{}, "Rows"), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("map (-want +got): %s", diff)
	}
	var symbols []byte
	for _, c := range got.Subnets[0].Rows[0].Cells {
		symbols = append(symbols, c.State.Describe().Symbol)
	}
	if want := "-dDNDfFFPNcm?.......h.........!.........r......................-"; string(symbols) != want {
		t.Errorf("row\n%s, want\n%s", symbols, want)
	}
}

// TestRows checks which rows of a subnet are described.
func TestRows(t *testing.T) {
	owned := pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")
	type row struct {
		First   string
		Cells   int
		Skipped bool
	}
	for name, c := range map[string]struct {
		cidr    string
		entries []string
		rows    []row
		cut     bool
		size    int64
	}{
		"whole IPv4":       {"10.0.1.0/25", nil, []row{{"10.0.1.0", 64, false}, {"10.0.1.64", 64, false}}, false, 126},
		"small IPv4":       {"10.0.1.8/29", nil, []row{{"10.0.1.8", 8, false}}, false, 6},
		"one address":      {"10.0.1.8/32", nil, []row{{"10.0.1.8", 1, false}}, false, 1},
		"the last address": {"255.255.255.192/26", nil, []row{{"255.255.255.192", 64, false}}, false, 62},
		"whole IPv6":       {"fd00::/120", nil, []row{{"fd00::", 64, false}, {"fd00::40", 64, false}, {"fd00::80", 64, false}, {"fd00::c0", 64, false}}, false, 255},
		"large IPv4": {"10.0.0.0/16", []string{"10.0.0.1", "10.0.0.65", "10.0.7.200", "10.0.255.254"},
			[]row{{"10.0.0.0", 64, false}, {"10.0.0.64", 64, false}, {"10.0.7.192", 64, true}, {"10.0.255.192", 64, true}}, false, 65534},
		"large IPv6":       {"fd00::/64", []string{"fd00::ff:1"}, []row{{"fd00::ff:0", 64, true}}, true, math.MaxInt64},
		"large and unused": {"fd00::/64", nil, nil, true, math.MaxInt64},
		"two of one row":   {"fd00::/112", []string{"fd00::1", "fd00::2"}, []row{{"fd00::", 64, false}}, true, 65535},
	} {
		t.Run(name, func(t *testing.T) {
			entries := map[string]pool.Entry{}
			for _, a := range c.entries {
				entries[a] = owned
			}
			s := of(c.cidr, entries, nil, nil).Subnets[0]
			var rows []row
			for _, r := range s.Rows {
				rows = append(rows, row{r.First.String(), len(r.Cells), r.Skipped})
			}
			if diff := cmp.Diff(c.rows, rows); diff != "" || s.Cut != c.cut || s.Size != c.size {
				t.Errorf("cut %v, size %d, want %v and %d; rows (-want +got): %s", s.Cut, s.Size, c.cut, c.size, diff)
			}
		})
	}
}

// TestSymbols checks that no two states look the same, and that every state has a description.
func TestSymbols(t *testing.T) {
	seen := map[byte]subnetmap.State{}
	for _, d := range subnetmap.States {
		if other, ok := seen[d.Symbol]; ok {
			t.Errorf("the states %s and %s have the same symbol %c, want different symbols", d.State, other, d.Symbol)
		}
		seen[d.Symbol] = d.State
		if d.State.Describe() != d || d.Text == "" {
			t.Errorf("Describe of %s returns %+v, want %+v with a text", d.State, d.State.Describe(), d)
		}
	}
	if len(seen) != 15 {
		t.Errorf("%d states have a description, want 15", len(seen))
	}
}
