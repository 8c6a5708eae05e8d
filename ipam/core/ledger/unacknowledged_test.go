// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

func TestUnheard(t *testing.T) {
	mine, others := pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"), pool.OwnedEntry("db", "mysql-1", "StatefulSet", "mysql")
	const at, beside = "10.0.1.3", "10.0.1.4"
	version := func(e pool.Entry, used ...string) pool.Node {
		n := node("a", "10.0.1.0/24", map[string]pool.Entry{at: e, beside: {}})
		n.UID, n.Used = "1", map[netip.Addr]string{}
		for _, a := range used {
			n.Used[addr(a)] = "db/mysql-0"
		}
		return n
	}
	said := func(since int64) pool.Entry { e := mine; e.Since = since; return e }
	none := version(mine)
	none.Entries = maps.Clone(none.Entries)
	delete(none.Entries, addr(at))
	anew := version(mine)
	anew.UID = "2"
	for name, c := range map[string]struct {
		versions []pool.Node
		gone     bool
		want     bool
		since    int64
	}{
		"its own from the start":                 {versions: []pool.Node{version(mine)}},
		"its own from nothing":                   {versions: []pool.Node{none, version(mine)}},
		"for anybody":                            {versions: []pool.Node{version(pool.Entry{})}},
		"for anybody, then its own":              {versions: []pool.Node{version(pool.Entry{}), version(mine)}, want: true},
		"with a report at once":                  {versions: []pool.Node{version(pool.Entry{}, at), version(mine)}, want: true},
		"and seen again":                         {versions: []pool.Node{version(pool.Entry{}), version(mine), version(mine)}, want: true},
		"and reported since":                     {versions: []pool.Node{version(pool.Entry{}), version(mine), version(mine, beside)}},
		"and reported to be free":                {versions: []pool.Node{version(pool.Entry{}, at), version(mine, at), version(mine)}},
		"and reported, and seen again":           {versions: []pool.Node{version(pool.Entry{}), version(mine), version(mine, at), version(mine, at)}},
		"and another's":                          {versions: []pool.Node{version(pool.Entry{}), version(mine), version(others)}},
		"and for anybody again":                  {versions: []pool.Node{version(pool.Entry{}), version(mine), version(pool.Entry{})}},
		"and for anybody, and its own once more": {versions: []pool.Node{version(pool.Entry{}), version(mine), version(mine, at), version(pool.Entry{}, at), version(mine, at)}, want: true},
		"and taken out":                          {versions: []pool.Node{version(pool.Entry{}), version(mine), none}},
		"and the node is another":                {versions: []pool.Node{version(pool.Entry{}), version(mine), anew}},
		"where the node is another":              {versions: []pool.Node{version(pool.Entry{}), anew}},
		"and the node is gone":                   {versions: []pool.Node{version(pool.Entry{}), version(mine)}, gone: true},
		"the mark of a move is nobody's":         {versions: []pool.Node{version(pool.Entry{}), version(pool.MovedEntry("b", "db/mysql-0"))}},
		"its own while it is for nobody":         {versions: []pool.Node{version(pool.MovedEntry("b", "db/mysql-0")), version(mine)}},
		"the node's own":                         {versions: []pool.Node{version(pool.Entry{}), version(pool.ForOwner("router"))}},
		"for anybody, then its own, it says":     {versions: []pool.Node{version(pool.Entry{}), version(said(7))}, want: true, since: 7},
		"its own from the start, it says":        {versions: []pool.Node{version(said(7))}, want: true, since: 7},
		"says it of itself, and reported since":  {versions: []pool.Node{version(said(7)), version(said(7), at)}},
		"says it anew with a report":             {versions: []pool.Node{version(said(7)), version(said(7), at), version(said(8))}, want: true, since: 8},
		"says it no more":                        {versions: []pool.Node{version(said(7)), version(mine)}, want: true},
		"its own after a rest, it says":          {versions: []pool.Node{version(pool.CooldownEntry("", time.Unix(1, 0))), version(said(7), at)}, want: true, since: 7},
	} {
		l := ledger.New()
		for _, v := range c.versions {
			l.SetNode(v)
		}
		if c.gone {
			l.RemoveNode("a")
		}
		since, got := l.Unheard("a", []netip.Addr{addr(beside), addr(at)})
		if got != c.want || since.IsZero() != (c.since == 0) || c.since != 0 && since.Unix() != c.since {
			t.Errorf("%s: %t since %v, want %t since %d", name, got, since, c.want, c.since)
		}
		for node, a := range map[string]string{"a": beside, "b": at} {
			if _, unheard := l.Unheard(node, []netip.Addr{addr(a)}); unheard {
				t.Errorf("%s: so is %s on %s, which is not asked for", name, a, node)
			}
		}
	}
}
