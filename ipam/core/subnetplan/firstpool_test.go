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
	reserved := []reservation.Address{reservedAddress("10.0.0.17", "node-1"), reservedAddress("10.0.9.9", "node-1")}
	of := func(e pool.Entry) entries { return entries{addr("10.0.0.17"): e} }
	for name, c := range map[string]struct {
		// own are the entries of the inheriting node, other those of another node.
		own, other entries
		// runsOn is the node on which the pod runs with the address; empty: none.
		runsOn    string
		want      entries
		announced []subnetplan.MoveTarget
	}{
		"no other pool has an entry":                    {want: of(mine)},
		"the pod runs with the address on another node": {runsOn: "other", want: of(pool.MovedEntry("other", "db/mysql-0"))},
		"another pool has the entry of the pod":         {other: of(mine), want: of(pool.MovedEntry("other", "db/mysql-0"))},
		"another pool has an entry of another pod":      {other: of(pool.OwnedEntry("db", "x-0", "StatefulSet", "x")), want: of(pool.MovedEntry("other", "db/x-0"))},
		"another pool has a dynamic entry":              {other: of(pool.Entry{}), want: of(pool.MovedEntry("other", ""))},
		"another pool has a move target":                {other: of(pool.MoveTargetEntry("db/mysql-0")), want: of(mine), announced: []subnetplan.MoveTarget{{Node: "other", Addr: addr("10.0.0.17"), Entry: pool.MoveTargetEntry("db/mysql-0")}}},
		"another pool has a Cooldown entry":             {other: of(pool.CooldownEntry("", clock)), want: of(mine)},
		"the inheriting node has the entry":             {own: of(mine), want: entries{}},
		"the inheriting node has a move target":         {own: of(pool.MoveTargetEntry("db/mysql-0")), want: of(mine)},
	} {
		n := pool.NodePool{Name: "inheriting", Entries: c.own}
		others := []pool.NodePool{{Name: "inheriting", Entries: entries{addr("10.0.0.17"): mine}}, {Name: "other", Entries: c.other}}
		runningOn := map[netip.Addr]string{}
		if c.runsOn != "" {
			runningOn[addr("10.0.0.17")] = c.runsOn
		}
		got, announced := subnetplan.Reserve(n, cidrsOf("10.0.0.16/28"), reserved, runningOn, others)
		if diff := cmp.Diff(c.want, got, byValue) + cmp.Diff(c.announced, announced, byValue); diff != "" {
			t.Errorf("%s: entries and move targets (-want +got): %s", name, diff)
		}
	}
}

// TestKeepRunning checks which entries the first pool of a node gets for the addresses that pods of the node run with
// (finding C2 in docs/project/findings.md).
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
	unreserved := pod("web", nil, a)
	router := subnetplan.Running{Owner: "router", Addrs: []netip.Addr{a}, Dedicated: pool.ForOwner("router")}
	foreign := addr("10.0.9.9")
	home := pool.NodePool{Name: "home", Subnets: cidrsOf("10.0.9.0/28"), Entries: entries{foreign: pool.MovedEntry("node-1", "db/mysql-0")}}
	for name, c := range map[string]struct {
		// present are the entries that the pool has already, for reserved addresses.
		present entries
		running []subnetplan.Running
		strict  bool
		want    entries
	}{
		"an unreserved pod":                                                  {nil, []subnetplan.Running{unreserved}, false, entries{a: {}}},
		"an unreserved pod on a strict node":                                 {nil, []subnetplan.Running{unreserved}, true, entries{a: pool.UnreservedEntry("db", "web")}},
		"a pod with a claim and no FixedIP":                                  {nil, []subnetplan.Running{pod("mysql-0", &mine, a)}, false, entries{a: mine}},
		"a pod with its reserved address":                                    {entries{a: mine}, []subnetplan.Running{pod("mysql-0", nil, a)}, false, nil},
		"a pod with another address than the reserved one":                   {entries{a: mine}, []subnetplan.Running{pod("mysql-0", nil, b)}, false, entries{b: {}}},
		"a pod with another address than the reserved one, strict":           {entries{a: mine}, []subnetplan.Running{pod("mysql-0", nil, b)}, true, entries{b: pool.CooldownEntry("", clock)}},
		"an unreserved pod with an address that is reserved for another pod": {entries{a: other}, []subnetplan.Running{unreserved}, false, entries{a: pool.CooldownEntry("", clock)}},
		"an unreserved pod with an address that has moved":                   {entries{a: pool.MovedEntry("node-2", "db/mysql-1")}, []subnetplan.Running{unreserved}, false, nil},
		"an unreserved pod with the address of a foreign entry":              {entries{a: pool.ForOwner("example.com/vip")}, []subnetplan.Running{unreserved}, false, nil},
		"an unreserved pod with an address of the node itself":               {entries{a: pool.ForOwner("router")}, []subnetplan.Running{unreserved}, false, entries{a: pool.CooldownEntry("", clock)}},
		"two pods with one name":                                             {nil, []subnetplan.Running{pod("mysql-0", &mine, a), pod("mysql-0", &mine, a)}, false, entries{a: mine}},
		"two pods with one address":                                          {nil, []subnetplan.Running{pod("mysql-0", &mine, a), unreserved}, false, entries{a: pool.CooldownEntry("", clock)}},
		"both families":                                                      {nil, []subnetplan.Running{pod("mysql-0", &mine, a, addr("fd00::17"))}, false, entries{a: mine, addr("fd00::17"): mine}},
		"the node's own address":                                             {nil, []subnetplan.Running{router}, false, entries{a: {}}},
		"the node's own address, strict":                                     {nil, []subnetplan.Running{router}, true, entries{a: pool.ForOwner("router")}},
		"an address that moved here, with a FixedIP":                         {nil, []subnetplan.Running{recorded(pod("mysql-0", &mine, foreign), foreign)}, false, entries{foreign: mine}},
		"an address in place of the one that the FixedIP reserves":           {nil, []subnetplan.Running{recorded(pod("mysql-0", &mine, a), b)}, false, entries{a: {}}},
		"an address of a family in which the FixedIP reserves none":          {nil, []subnetplan.Running{recorded(pod("mysql-0", &mine, a), addr("fd00::18"))}, false, entries{a: mine}},
		"an IPv6 address that the FixedIP does not reserve, IPv4 only":       {nil, []subnetplan.Running{ipv4Only(recorded(pod("mysql-0", &mine, addr("fd00::17")), a))}, false, entries{addr("fd00::17"): {}}},
		"an address that moved here, without a FixedIP":                      {nil, []subnetplan.Running{pod("mysql-0", &mine, foreign)}, false, entries{foreign: mine}},
		"a reserved address without a home":                                  {nil, []subnetplan.Running{recorded(pod("mysql-0", &mine, addr("10.0.8.8")), addr("10.0.8.8"))}, false, entries{addr("10.0.8.8"): mine}},
		"an unreserved address without a home":                               {nil, []subnetplan.Running{pod("mysql-0", &mine, addr("10.0.8.8"))}, false, nil},
		"an address of another node that has not moved":                      {nil, []subnetplan.Running{pod("mysql-1", &other, foreign)}, false, nil},
		"an unreserved pod with an address of another node":                  {nil, []subnetplan.Running{pod("web", nil, foreign)}, false, nil},
	} {
		n := pool.NodePool{Name: "node-1", Subnets: cidrsOf("10.0.0.16/28", "fd00::/64"), Entries: c.present}
		got := entries{}
		for a, e := range subnetplan.KeepRunning(n, c.running, c.strict, []pool.NodePool{n, home}, clock).Entries {
			if before, existed := c.present[a]; !existed || before != e {
				got[a] = e
			}
		}
		if diff := cmp.Diff(c.want, got, byValue, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: new entries (-want +got): %s", name, diff)
		}
	}
}
