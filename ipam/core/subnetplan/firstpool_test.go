// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnetplan_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reservation"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

type entries = map[netip.Addr]pool.Entry

func TestReserve(t *testing.T) {
	mine := pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")
	reserved := []reservation.Address{kept("10.0.0.17", "node-1"), kept("10.0.9.9", "node-1")}
	of := func(e pool.Entry) entries { return entries{addr("10.0.0.17"): e} }
	for name, c := range map[string]struct {
		heir, other entries
		// elsewhere is the node on which the pod runs with the address; empty: none.
		elsewhere string
		want      entries
		announced []subnetplan.Announced
	}{
		"no pool has it":                   {want: of(mine)},
		"its pod runs elsewhere with it":   {elsewhere: "other", want: of(pool.MovedEntry("other", "db/mysql-0"))},
		"it lives elsewhere":               {other: of(mine), want: of(pool.MovedEntry("other", "db/mysql-0"))},
		"another pod has it elsewhere":     {other: of(pool.OwnedEntry("db", "x-0", "StatefulSet", "x")), want: of(pool.MovedEntry("other", "db/x-0"))},
		"it is a dynamic entry elsewhere":  {other: of(pool.Entry{}), want: of(pool.MovedEntry("other", ""))},
		"it was about to move":             {other: of(pool.MoveTargetEntry("db/mysql-0")), want: of(mine), announced: []subnetplan.Announced{{Node: "other", Addr: addr("10.0.0.17"), Entry: pool.MoveTargetEntry("db/mysql-0")}}},
		"it cools down elsewhere":          {other: of(pool.CooldownEntry("", clock)), want: of(mine)},
		"the heir has it already":          {heir: of(mine), want: entries{}},
		"it was about to move to the heir": {heir: of(pool.MoveTargetEntry("db/mysql-0")), want: of(mine)},
	} {
		heir := pool.NodePool{Name: "heir", Entries: c.heir}
		others := []pool.NodePool{{Name: "heir", Entries: entries{addr("10.0.0.17"): mine}}, {Name: "other", Entries: c.other}}
		elsewhere := map[netip.Addr]string{}
		if c.elsewhere != "" {
			elsewhere[addr("10.0.0.17")] = c.elsewhere
		}
		got, announced := subnetplan.Reserve(heir, cidrsOf("10.0.0.16/28"), reserved, elsewhere, others)
		if diff := cmp.Diff(c.want, got, byValue) + cmp.Diff(c.announced, announced, byValue); diff != "" {
			t.Errorf("%s (-want +got): %s", name, diff)
		}
	}
}

// TestKeepRunning checks that the first pool of a node contains every address that a pod of the node runs with (finding C2).
func TestKeepRunning(t *testing.T) {
	mine, other := pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"), pool.OwnedEntry("db", "mysql-1", "StatefulSet", "mysql")
	a, b := addr("10.0.0.17"), addr("10.0.0.18")
	pod := func(name string, fixed *pool.Entry, addrs ...netip.Addr) subnetplan.Running {
		return subnetplan.Running{Owner: "db/" + name, Addrs: addrs, Fixed: fixed, Dedicated: pool.UnreservedEntry("db", name)}
	}
	recorded := func(r subnetplan.Running, reserved ...netip.Addr) subnetplan.Running {
		r.Reserved = reserved
		return r
	}
	ipv4Only := func(r subnetplan.Running) subnetplan.Running {
		r.IPv4Only = true
		return r
	}
	ordinary := pod("web", nil, a)
	router := subnetplan.Running{Owner: "router", Addrs: []netip.Addr{a}, Dedicated: pool.ForOwner("router")}
	foreign := addr("10.0.9.9")
	home := pool.NodePool{Name: "home", Subnets: cidrsOf("10.0.9.0/28"), Entries: entries{foreign: pool.MovedEntry("node-1", "db/mysql-0")}}
	for name, c := range map[string]struct {
		// stands are the entries that the pool has already, for reserved addresses.
		stands  entries
		running []subnetplan.Running
		strict  bool
		want    entries
	}{
		"an ordinary pod":                                 {nil, []subnetplan.Running{ordinary}, false, entries{a: {}}},
		"an ordinary pod on a strict node":                {nil, []subnetplan.Running{ordinary}, true, entries{a: pool.UnreservedEntry("db", "web")}},
		"a fixed pod that no FixedIP records yet":         {nil, []subnetplan.Running{pod("mysql-0", &mine, a)}, false, entries{a: mine}},
		"a fixed pod with its reserved address":           {entries{a: mine}, []subnetplan.Running{pod("mysql-0", nil, a)}, false, nil},
		"a fixed pod with another address":                {entries{a: mine}, []subnetplan.Running{pod("mysql-0", nil, b)}, false, entries{b: {}}},
		"a fixed pod with another address, strict":        {entries{a: mine}, []subnetplan.Running{pod("mysql-0", nil, b)}, true, entries{b: pool.CooldownEntry("", clock)}},
		"an address that is reserved for another pod":     {entries{a: other}, []subnetplan.Running{ordinary}, false, entries{a: pool.CooldownEntry("", clock)}},
		"an address that lives elsewhere":                 {entries{a: pool.MovedEntry("node-2", "db/mysql-1")}, []subnetplan.Running{ordinary}, false, nil},
		"two pods of one name":                            {nil, []subnetplan.Running{pod("mysql-0", &mine, a), pod("mysql-0", &mine, a)}, false, entries{a: mine}},
		"two pods of one address":                         {nil, []subnetplan.Running{pod("mysql-0", &mine, a), ordinary}, false, entries{a: pool.CooldownEntry("", clock)}},
		"both families":                                   {nil, []subnetplan.Running{pod("mysql-0", &mine, a, addr("fd00::17"))}, false, entries{a: mine, addr("fd00::17"): mine}},
		"the node's own address":                          {nil, []subnetplan.Running{router}, false, entries{a: {}}},
		"the node's own address, strict":                  {nil, []subnetplan.Running{router}, true, entries{a: pool.ForOwner("router")}},
		"an address that moved here, and is recorded":     {nil, []subnetplan.Running{recorded(pod("mysql-0", &mine, foreign), foreign)}, false, entries{foreign: mine}},
		"an address beside those that are recorded":       {nil, []subnetplan.Running{recorded(pod("mysql-0", &mine, a), b)}, false, entries{a: {}}},
		"one of the other family beside them":             {nil, []subnetplan.Running{recorded(pod("mysql-0", &mine, a), addr("fd00::18"))}, false, entries{a: mine}},
		"an IPv6 address beside them, IPv4 only":          {nil, []subnetplan.Running{ipv4Only(recorded(pod("mysql-0", &mine, addr("fd00::17")), a))}, false, entries{addr("fd00::17"): {}}},
		"an address that moved here":                      {nil, []subnetplan.Running{pod("mysql-0", &mine, foreign)}, false, entries{foreign: mine}},
		"an address that is recorded, and has no home":    {nil, []subnetplan.Running{recorded(pod("mysql-0", &mine, addr("10.0.8.8")), addr("10.0.8.8"))}, false, entries{addr("10.0.8.8"): mine}},
		"an address that is not recorded, and has none":   {nil, []subnetplan.Running{pod("mysql-0", &mine, addr("10.0.8.8"))}, false, nil},
		"an address of another node that has not moved":   {nil, []subnetplan.Running{pod("mysql-1", &other, foreign)}, false, nil},
		"an ordinary pod with an address of another node": {nil, []subnetplan.Running{pod("web", nil, foreign)}, false, nil},
	} {
		n := pool.NodePool{Name: "node-1", Subnets: cidrsOf("10.0.0.16/28", "fd00::/64"), Entries: c.stands}
		got := entries{}
		for a, e := range subnetplan.KeepRunning(n, c.running, c.strict, []pool.NodePool{n, home}, clock).Entries {
			if before, stood := c.stands[a]; !stood || before != e {
				got[a] = e
			}
		}
		if diff := cmp.Diff(c.want, got, byValue, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got): %s", name, diff)
		}
	}
}
