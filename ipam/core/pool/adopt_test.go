// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"errors"
	"maps"
	"net/netip"
	"testing"
	"time"

	"fixedip.io/fixedip/ipam/core/pool"
)

func TestAdopt(t *testing.T) {
	mine, at := pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"), time.Unix(100, 0)
	since := mine
	since.Since = 100
	n := pool.Node{
		Name: "n", PodCIDRs: []string{"10.0.1.0/24"}, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")},
		Entries: map[netip.Addr]pool.Entry{
			addr("10.0.1.1"): {}, addr("10.0.1.2"): {}, addr("10.0.1.3"): pool.ForOwner("db/other-0"), addr("10.0.1.4"): pool.ForOwner("router"),
			addr("10.0.1.5"): pool.CooldownEntry("", time.Unix(1, 0)), addr("10.0.1.200"): mine, addr("fd00::6"): mine,
		},
		Used: map[netip.Addr]string{addr("10.0.1.1"): "db/mysql-0", addr("10.0.1.2"): "db/other-1"},
	}
	for name, c := range map[string]struct {
		running string
		// want are the entries that differ afterwards. Nothing: it is refused, unless it is none of
		// the pod's to change.
		want  map[string]pool.Entry
		taken bool
	}{
		"what it claimed":            {running: "10.0.1.200"},
		"a dynamic one":              {running: "10.0.1.1", want: map[string]pool.Entry{"10.0.1.1": since, "10.0.1.200": pool.CooldownEntry("", at)}},
		"one that rests":             {running: "10.0.1.5", want: map[string]pool.Entry{"10.0.1.5": since, "10.0.1.200": pool.CooldownEntry("", at)}},
		"one that left the pool":     {running: "10.0.1.9", want: map[string]pool.Entry{"10.0.1.9": since, "10.0.1.200": pool.CooldownEntry("", at)}},
		"one that another is using":  {running: "10.0.1.2", taken: true},
		"one that another owns":      {running: "10.0.1.3", taken: true},
		"the router's":               {running: "10.0.1.4", taken: true},
		"one of another node":        {running: "10.0.2.1", taken: true},
		"of the other family, alone": {running: "fd00::6"},
	} {
		edits, err := n.Adopt([]netip.Addr{addr(c.running)}, mine, at)
		if errors.Is(err, pool.ErrTaken) != c.taken {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := maps.Clone(n.Entries)
		for a, e := range c.want {
			want[addr(a)] = e
		}
		after := n.With(edits)
		if !maps.Equal(after.Entries, want) {
			t.Errorf("%s: the pool is %v, want %v", name, after.Entries, want)
		}
		if undone := after.With(after.Undo(edits)); !maps.Equal(undone.Entries, n.Entries) {
			t.Errorf("%s: undone, the pool is %v, want %v", name, undone.Entries, n.Entries)
		}
	}
}

// What somebody has changed since is not put back.
func TestUndo(t *testing.T) {
	a, b, mine := addr("10.0.1.1"), addr("10.0.1.2"), pool.ForOwner("db/mysql-0")
	n := pool.Node{Entries: map[netip.Addr]pool.Entry{a: {}, b: mine}}
	drop, _ := n.Drop(b)
	made := []pool.Edit{n.Set(a, mine), drop}
	after := n.With(made)
	after.Entries[a], after.Entries[b] = pool.ForOwner("db/other-0"), pool.Entry{}
	if undo := after.Undo(made); len(undo) != 0 {
		t.Errorf("undone: %v", undo)
	}
}
