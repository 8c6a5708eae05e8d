// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"fixedip.io/fixedip/ipam/core/pool"
)

// TestMoveSteps checks each step of a move with several entries of the pool: the result or the error, that the step is
// idempotent, and that Undo reverts the step.
func TestMoveSteps(t *testing.T) {
	at := time.Unix(1000, 0)
	const owner = "db/mysql-0"
	mine := pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")
	a, b := addr("10.0.1.9"), addr("10.0.1.8")
	home := netip.MustParsePrefix("10.0.1.0/24")
	other := pool.ForOwner("db/other-0")
	type entries = map[netip.Addr]pool.Entry
	is := func(e pool.Entry) entries { return entries{a: e} }
	fromHome := pool.Move{Owner: owner, Entry: mine, Addrs: []netip.Addr{a}, Home: "h", From: "h", To: "t"}
	onward := fromHome
	onward.From, onward.To = "s", "t"
	toHome := fromHome
	toHome.From, toHome.To = "s", "h"
	down := func(m pool.Move) pool.Move { m.Down = true; return m }
	prepare, mark := pool.Move.PrepareTarget, pool.Move.MarkLeaving
	commit, complete := pool.Move.CommitAtHome, pool.Move.CompleteAtTarget
	vacate := func(m pool.Move, n pool.NodePool) ([]pool.EntryChange, error) { return m.VacateSource(n, at) }
	for name, c := range map[string]struct {
		step    func(pool.Move, pool.NodePool) ([]pool.EntryChange, error)
		move    pool.Move
		entries entries
		used    string
		// want are the entries after the step, if err is nil.
		want entries
		err  error
	}{
		"prepare":                                    {step: prepare, move: fromHome, want: is(pool.MoveTargetEntry(owner))},
		"prepare: done already":                      {step: prepare, move: fromHome, entries: is(pool.MoveTargetEntry(owner)), want: is(pool.MoveTargetEntry(owner))},
		"prepare: the move is complete":              {step: prepare, move: fromHome, entries: is(mine), want: is(mine)},
		"prepare: the address cools down":            {step: prepare, move: fromHome, entries: is(pool.CooldownEntry("", at)), err: pool.ErrTaken},
		"prepare: an entry of another pod":           {step: prepare, move: fromHome, entries: is(other), err: pool.ErrTaken},
		"prepare: a MoveTarget entry of another pod": {step: prepare, move: fromHome, entries: is(pool.MoveTargetEntry("db/other-0")), err: pool.ErrTaken},
		"prepare: another pod uses the address":      {step: prepare, move: fromHome, used: "db/other-0", err: pool.ErrTaken},
		"prepare: another address of the pod":        {step: prepare, move: fromHome, entries: entries{b: mine}, err: pool.ErrTaken},

		"mark leaving":                         {step: mark, move: onward, entries: is(pool.MovedEntry("s", owner)), want: is(pool.LeavingEntry("s", owner))},
		"mark leaving: done already":           {step: mark, move: onward, entries: is(pool.LeavingEntry("s", owner)), want: is(pool.LeavingEntry("s", owner))},
		"mark leaving: the address is at home": {step: mark, move: onward, entries: is(mine), err: pool.ErrUndecided},
		"mark leaving: moved to another node":  {step: mark, move: onward, entries: is(pool.MovedEntry("x", owner)), err: pool.ErrUndecided},
		"commit onward: not marked as leaving": {step: commit, move: onward, entries: is(pool.MovedEntry("s", owner)), err: pool.ErrUndecided},

		"vacate":                     {step: vacate, move: onward, entries: is(mine), want: is(pool.CooldownEntry("", at))},
		"vacate: a MoveTarget entry": {step: vacate, move: onward, entries: is(pool.MoveTargetEntry(owner)), want: is(pool.CooldownEntry("", at))},
		"vacate: no entry":           {step: vacate, move: onward, want: is(pool.CooldownEntry("", at))},
		"vacate: done long ago":      {step: vacate, move: onward, entries: is(pool.CooldownEntry("", at.Add(-time.Hour))), want: is(pool.CooldownEntry("", at.Add(-time.Hour)))},
		"vacate: cooldown of the pod, and the address is used":            {step: vacate, move: onward, entries: is(pool.CooldownEntry(owner, at)), used: owner, err: pool.ErrOldPodRunning},
		"vacate, node down: cooldown of the pod, and the address is used": {step: vacate, move: down(onward), entries: is(pool.CooldownEntry(owner, at)), used: owner, want: is(pool.CooldownEntry(owner, at))},
		"vacate: an entry of another pod":                                 {step: vacate, move: onward, entries: is(other), err: pool.ErrTaken},
		"vacate: the address is used":                                     {step: vacate, move: onward, entries: is(mine), used: owner, err: pool.ErrOldPodRunning},
		"vacate, node down: the address is used":                          {step: vacate, move: down(onward), entries: is(mine), used: owner, want: is(pool.CooldownEntry("", at))},
		"commit":                                                          {step: commit, move: fromHome, entries: is(mine), want: is(pool.MovedEntry("t", owner))},
		"commit: done already":                                            {step: commit, move: fromHome, entries: is(pool.MovedEntry("t", owner)), want: is(pool.MovedEntry("t", owner))},
		"commit: no entry":                                                {step: commit, move: fromHome, want: is(pool.MovedEntry("t", owner))},
		"commit: the address cools down":                                  {step: commit, move: fromHome, entries: is(pool.CooldownEntry("", at)), want: is(pool.MovedEntry("t", owner))},
		"commit: the address is used":                                     {step: commit, move: fromHome, entries: is(mine), used: owner, err: pool.ErrOldPodRunning},
		"commit, node down: the address is used":                          {step: commit, move: down(fromHome), entries: is(mine), used: owner, want: is(pool.MovedEntry("t", owner))},
		"commit, node down: another pod uses the address":                 {step: commit, move: down(fromHome), used: "db/other-0", err: pool.ErrTaken},
		"commit: an entry of another pod":                                 {step: commit, move: fromHome, entries: is(other), err: pool.ErrTaken},
		"commit: a dynamic entry":                                         {step: commit, move: fromHome, entries: is(pool.Entry{}), err: pool.ErrTaken},
		"commit onward":                                                   {step: commit, move: onward, entries: is(pool.LeavingEntry("s", owner)), want: is(pool.MovedEntry("t", owner))},
		"commit onward: moved to another node":                            {step: commit, move: onward, entries: is(pool.MovedEntry("x", owner)), err: pool.ErrUndecided},
		"commit onward: the address is at home":                           {step: commit, move: onward, entries: is(mine), err: pool.ErrUndecided},
		"commit onward: the address cools down":                           {step: commit, move: onward, entries: is(pool.CooldownEntry("", at)), err: pool.ErrUndecided},
		"commit onward: a Moved entry of another pod":                     {step: commit, move: onward, entries: is(pool.MovedEntry("s", "db/other-0")), err: pool.ErrUndecided},
		"commit to home":                                                  {step: commit, move: toHome, entries: is(pool.LeavingEntry("s", owner)), want: is(mine)},
		"commit to home: done already":                                    {step: commit, move: toHome, entries: is(mine), want: is(mine)},
		"commit to home: moved to another node":                           {step: commit, move: toHome, entries: is(pool.MovedEntry("x", owner)), err: pool.ErrUndecided},
		"commit to home: another address of the pod":                      {step: commit, move: toHome, entries: entries{a: pool.LeavingEntry("s", owner), b: mine}, err: pool.ErrTaken},

		"complete":                                    {step: complete, move: fromHome, entries: is(pool.MoveTargetEntry(owner)), want: is(mine)},
		"complete: done already":                      {step: complete, move: fromHome, entries: is(mine), want: is(mine)},
		"complete: the address cools down":            {step: complete, move: fromHome, entries: is(pool.CooldownEntry("", at)), err: pool.ErrTaken},
		"complete: no entry":                          {step: complete, move: fromHome, err: pool.ErrUndecided},
		"complete: a MoveTarget entry of another pod": {step: complete, move: fromHome, entries: is(pool.MoveTargetEntry("db/other-0")), err: pool.ErrTaken},
		"complete: another address of the pod":        {step: complete, move: fromHome, entries: entries{a: pool.MoveTargetEntry(owner), b: mine}, err: pool.ErrTaken},
	} {
		t.Run(name, func(t *testing.T) {
			n := pool.NodePool{Name: "n", Subnets: []netip.Prefix{home}, Entries: c.entries, Used: map[netip.Addr]string{}}
			if c.used != "" {
				n.Used[a] = c.used
			}
			edits, err := c.step(c.move, n)
			if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
				t.Fatalf("got error %v, want %v", err, c.err)
			}
			if err != nil {
				return
			}
			after := n.With(edits)
			if !maps.Equal(after.Entries, c.want) {
				t.Errorf("got entries %v, want %v", after.Entries, c.want)
			}
			if again, err := c.step(c.move, after); err != nil || len(again) > 0 {
				t.Errorf("a second call returned %v and error %v, want no edits and no error", again, err)
			}
			if undone := after.With(after.Undo(edits)); !maps.Equal(undone.Entries, n.With(nil).Entries) {
				t.Errorf("got entries %v after Undo, want %v", undone.Entries, c.entries)
			}
		})
	}
}

// TestMoveErrors checks the errors of CheckCommitted if the home does not have the expected entry or subnet. They must not
// name another pod, which may be in another namespace.
func TestMoveErrors(t *testing.T) {
	a := addr("10.0.1.9")
	m := pool.Move{Owner: "db/mysql-0", Entry: pool.ForOwner("db/mysql-0"), Addrs: []netip.Addr{a}, Home: "h", From: "s", To: "t"}
	for name, c := range map[string]struct {
		entries map[netip.Addr]pool.Entry
		subnets []netip.Prefix
		want    string
	}{
		"no entry":                          {want: "the entry of IP 10.0.1.9 on node h is missing, not moved to node t as expected: the move cannot continue"},
		"leaving another node":              {entries: map[netip.Addr]pool.Entry{a: pool.LeavingEntry("s", m.Owner)}, want: "the entry of IP 10.0.1.9 on node h is leaving node s, not moved to node t as expected: the move cannot continue"},
		"moved to the node for another pod": {entries: map[netip.Addr]pool.Entry{a: pool.MovedEntry("t", "shop/web-0")}, want: "the entry of IP 10.0.1.9 on node h is moved for another pod, not moved to node t as expected: the move cannot continue"},
		"the home has lost the subnet":      {entries: map[netip.Addr]pool.Entry{a: pool.MovedEntry("t", m.Owner)}, subnets: []netip.Prefix{}, want: "IP 10.0.1.9 is no longer in the subnets of node h (none): the move cannot continue"},
	} {
		if c.subnets == nil {
			c.subnets = []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}
		}
		if err := m.CheckCommitted(pool.NodePool{Name: "h", Subnets: c.subnets, Entries: c.entries}); err == nil || err.Error() != c.want {
			t.Errorf("%s: got error %v, want %s", name, err, c.want)
		}
	}
}

// TestMoveRequiresUnused checks which edits require that the agent does not report the address as used
// (EntryChange.RequireUnused): those that take the address from the pool where the pod ran, unless that node is down.
func TestMoveRequiresUnused(t *testing.T) {
	const owner = "db/mysql-0"
	a := addr("10.0.1.9")
	mine := pool.ForOwner(owner)
	from := func(home, from, to string, isDown bool) pool.Move {
		return pool.Move{Owner: owner, Entry: mine, Addrs: []netip.Addr{a}, Home: home, From: from, To: to, Down: isDown}
	}
	vacate := func(m pool.Move, n pool.NodePool) ([]pool.EntryChange, error) {
		return m.VacateSource(n, time.Unix(1000, 0))
	}
	at := func(e pool.Entry) map[netip.Addr]pool.Entry { return map[netip.Addr]pool.Entry{a: e} }
	for name, c := range map[string]struct {
		step    func(pool.Move, pool.NodePool) ([]pool.EntryChange, error)
		move    pool.Move
		entries map[netip.Addr]pool.Entry
		want    bool
	}{
		"commit at home":                {pool.Move.CommitAtHome, from("h", "h", "t", false), at(mine), true},
		"commit at a home that is down": {pool.Move.CommitAtHome, from("h", "h", "t", true), at(mine), false},
		"commit onward":                 {pool.Move.CommitAtHome, from("h", "s", "t", false), at(pool.LeavingEntry("s", owner)), false},
		"commit to home":                {pool.Move.CommitAtHome, from("h", "s", "h", false), at(pool.LeavingEntry("s", owner)), false},
		"vacate":                        {vacate, from("h", "s", "t", false), at(mine), true},
		"vacate a node that is down":    {vacate, from("h", "s", "t", true), at(mine), false},
		"vacate a MoveTarget entry":     {vacate, from("h", "s", "t", false), at(pool.MoveTargetEntry(owner)), false},
		"prepare":                       {pool.Move.PrepareTarget, from("h", "h", "t", false), nil, false},
		"complete":                      {pool.Move.CompleteAtTarget, from("h", "h", "t", false), at(pool.MoveTargetEntry(owner)), false},
		"mark leaving":                  {pool.Move.MarkLeaving, from("h", "s", "t", false), at(pool.MovedEntry("s", owner)), false},
	} {
		n := pool.NodePool{Name: "n", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}, Entries: c.entries}
		edits, err := c.step(c.move, n)
		if err != nil || len(edits) != 1 || edits[0].RequireUnused != c.want {
			t.Errorf("%s: got edits %+v and error %v, want one edit with RequireUnused %v", name, edits, err, c.want)
		}
	}
}

// TestMoveTogether checks that two addresses are moved by one set of edits or not at all, and that CheckCommitted requires
// both.
func TestMoveTogether(t *testing.T) {
	const owner = "db/mysql-0"
	addrs := []netip.Addr{addr("10.0.1.9"), addr("fd00:1::9")}
	m := pool.Move{Owner: owner, Entry: pool.ForOwner(owner), Addrs: addrs, Home: "h", From: "h", To: "t", Down: true}
	n := pool.NodePool{Name: "h", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("fd00:1::/64")},
		Entries: map[netip.Addr]pool.Entry{addrs[0]: pool.ForOwner(owner), addrs[1]: pool.ForOwner(owner)}}
	edits, err := m.CommitAtHome(n)
	if err != nil || len(edits) != 2 {
		t.Errorf("got edits %v and error %v, want two edits", edits, err)
	}
	if err := m.CheckCommitted(n); !errors.Is(err, pool.ErrUndecided) {
		t.Errorf("before the edits: got error %v, want ErrUndecided", err)
	}
	if err := m.CheckCommitted(n.With(edits)); err != nil {
		t.Errorf("after the edits: got error %v, want none", err)
	}
	if err := m.CheckCommitted(n.With(edits[:1])); !errors.Is(err, pool.ErrUndecided) {
		t.Errorf("after one of two edits: got error %v, want ErrUndecided", err)
	}
	n.Entries[addrs[1]] = pool.ForOwner("db/other-0")
	if edits, err := m.CommitAtHome(n); !errors.Is(err, pool.ErrTaken) {
		t.Errorf("an entry of another pod: got edits %v and error %v, want ErrTaken", edits, err)
	}
}

// TestFenceAndReturn checks that FenceTarget writes Cooldown entries for addresses without an entry, with an Owned entry of the
// owner or with a MoveTarget entry for the owner. It also checks that ReturnHome writes a Cooldown entry only for an address
// whose entry is the LeavingEntry of the given node and owner. Neither method changes any other entry.
func TestFenceAndReturn(t *testing.T) {
	at := time.Unix(1000, 0)
	const owner = "db/mysql-0"
	entries := map[netip.Addr]pool.Entry{
		addr("10.0.1.1"): pool.ForOwner(owner), addr("10.0.1.2"): pool.MoveTargetEntry(owner), addr("10.0.1.4"): pool.ForOwner("db/other-0"),
		addr("10.0.1.5"): pool.LeavingEntry("t", owner), addr("10.0.1.6"): pool.LeavingEntry("t", "db/other-0"), addr("10.0.1.7"): pool.LeavingEntry("x", owner), addr("10.0.1.8"): pool.MovedEntry("t", owner),
	}
	var all []netip.Addr
	for i := byte(1); i < 9; i++ {
		all = append(all, netip.AddrFrom4([4]byte{10, 0, 1, i}))
	}
	n := pool.NodePool{Name: "n", Entries: entries}
	edited := func(edits []pool.EntryChange, to pool.Entry) []string {
		var out []string
		for _, e := range edits {
			if *e.To != to {
				t.Errorf("got new entry %v for %s, want %v", *e.To, e.Addr, to)
			}
			out = append(out, e.Addr.String())
		}
		slices.Sort(out)
		return out
	}
	if got := edited(n.FenceTarget(owner, all, at), pool.CooldownEntry("", at)); !slices.Equal(got, []string{"10.0.1.1", "10.0.1.2", "10.0.1.3"}) {
		t.Errorf("FenceTarget: got edits of %v, want 10.0.1.1, 10.0.1.2 and 10.0.1.3", got)
	}
	if got := edited(n.ReturnHome(owner, "t", all, at), pool.CooldownEntry("", at)); !slices.Equal(got, []string{"10.0.1.5"}) {
		t.Errorf("ReturnHome: got edits of %v, want 10.0.1.5", got)
	}
}
