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

// TestMoveSteps checks each step of a move against each entry that its pool may have: the result or the error, that the step
// is idempotent, and that Undo takes it back.
func TestMoveSteps(t *testing.T) {
	at := time.Unix(1000, 0)
	const owner = "db/mysql-0"
	mine := pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")
	a, b := addr("10.0.1.9"), addr("10.0.1.8")
	home := netip.MustParsePrefix("10.0.1.0/24")
	other := pool.ForOwner("db/other-0")
	type entries = map[netip.Addr]pool.Entry
	is := func(e pool.Entry) entries { return entries{a: e} }
	out := pool.Move{Owner: owner, Entry: mine, Addrs: []netip.Addr{a}, Home: "h", From: "h", To: "t"}
	on := out
	on.From, on.To = "s", "t"
	back := out
	back.From, back.To = "s", "h"
	lost := func(m pool.Move) pool.Move { m.Down = true; return m }
	announce, settle, turn := pool.Move.PrepareTarget, pool.Move.CompleteAtTarget, pool.Move.CommitAtHome
	leave := func(m pool.Move, n pool.NodePool) ([]pool.EntryChange, error) { return m.VacateSource(n, at) }
	for name, c := range map[string]struct {
		step    func(pool.Move, pool.NodePool) ([]pool.EntryChange, error)
		move    pool.Move
		entries entries
		used    string
		// want are the entries after the step, if err is nil.
		want entries
		err  error
	}{
		"announced":                       {step: announce, move: out, want: is(pool.MoveTargetEntry(owner))},
		"announced already":               {step: announce, move: out, entries: is(pool.MoveTargetEntry(owner)), want: is(pool.MoveTargetEntry(owner))},
		"announced and settled":           {step: announce, move: out, entries: is(mine), want: is(mine)},
		"not announced over what rests":   {step: announce, move: out, entries: is(pool.CooldownEntry("", at)), err: pool.ErrTaken},
		"nor over another's":              {step: announce, move: out, entries: is(other), err: pool.ErrTaken},
		"nor over another's announcement": {step: announce, move: out, entries: is(pool.MoveTargetEntry("db/other-0")), err: pool.ErrTaken},
		"nor what another uses":           {step: announce, move: out, used: "db/other-0", err: pool.ErrTaken},
		"nor beside another address":      {step: announce, move: out, entries: entries{b: mine}, err: pool.ErrTaken},

		"departed":                  {step: pool.Move.MarkLeaving, move: on, entries: is(pool.MovedEntry("s", owner)), want: is(pool.LeavingEntry("s", owner))},
		"departed already":          {step: pool.Move.MarkLeaving, move: on, entries: is(pool.LeavingEntry("s", owner)), want: is(pool.LeavingEntry("s", owner))},
		"not departed from home":    {step: pool.Move.MarkLeaving, move: on, entries: is(mine), err: pool.ErrUndecided},
		"nor from elsewhere":        {step: pool.Move.MarkLeaving, move: on, entries: is(pool.MovedEntry("x", owner)), err: pool.ErrUndecided},
		"not turned on before that": {step: turn, move: on, entries: is(pool.MovedEntry("s", owner)), err: pool.ErrUndecided},

		"left":                              {step: leave, move: on, entries: is(mine), want: is(pool.CooldownEntry("", at))},
		"left before it arrived":            {step: leave, move: on, entries: is(pool.MoveTargetEntry(owner)), want: is(pool.CooldownEntry("", at))},
		"left where it never was":           {step: leave, move: on, want: is(pool.CooldownEntry("", at))},
		"left long ago":                     {step: leave, move: on, entries: is(pool.CooldownEntry("", at.Add(-time.Hour))), want: is(pool.CooldownEntry("", at.Add(-time.Hour)))},
		"what was taken is not left in use": {step: leave, move: on, entries: is(pool.CooldownEntry(owner, at)), used: owner, err: pool.ErrUnfenced},
		"but where it is down":              {step: leave, move: lost(on), entries: is(pool.CooldownEntry(owner, at)), used: owner, want: is(pool.CooldownEntry(owner, at))},
		"another's is not left":             {step: leave, move: on, entries: is(other), err: pool.ErrTaken},
		"what is in use is not left":        {step: leave, move: on, entries: is(mine), used: owner, err: pool.ErrUnfenced},
		"but on a node that is down":        {step: leave, move: lost(on), entries: is(mine), used: owner, want: is(pool.CooldownEntry("", at))},
		"turned":                            {step: turn, move: out, entries: is(mine), want: is(pool.MovedEntry("t", owner))},
		"turned already":                    {step: turn, move: out, entries: is(pool.MovedEntry("t", owner)), want: is(pool.MovedEntry("t", owner))},
		"turned without an entry":           {step: turn, move: out, want: is(pool.MovedEntry("t", owner))},
		"turned from rest":                  {step: turn, move: out, entries: is(pool.CooldownEntry("", at)), want: is(pool.MovedEntry("t", owner))},
		"what is in use is not turned":      {step: turn, move: out, entries: is(mine), used: owner, err: pool.ErrUnfenced},
		"but where the node is down":        {step: turn, move: lost(out), entries: is(mine), used: owner, want: is(pool.MovedEntry("t", owner))},
		"nor what another uses at home":     {step: turn, move: lost(out), used: "db/other-0", err: pool.ErrTaken},
		"nor another's":                     {step: turn, move: out, entries: is(other), err: pool.ErrTaken},
		"nor a dynamic one":                 {step: turn, move: out, entries: is(pool.Entry{}), err: pool.ErrTaken},
		"turned on":                         {step: turn, move: on, entries: is(pool.LeavingEntry("s", owner)), want: is(pool.MovedEntry("t", owner))},
		"not on from elsewhere":             {step: turn, move: on, entries: is(pool.MovedEntry("x", owner)), err: pool.ErrUndecided},
		"nor on from home":                  {step: turn, move: on, entries: is(mine), err: pool.ErrUndecided},
		"nor on from rest":                  {step: turn, move: on, entries: is(pool.CooldownEntry("", at)), err: pool.ErrUndecided},
		"nor another's absence":             {step: turn, move: on, entries: is(pool.MovedEntry("s", "db/other-0")), err: pool.ErrUndecided},
		"turned home":                       {step: turn, move: back, entries: is(pool.LeavingEntry("s", owner)), want: is(mine)},
		"turned home already":               {step: turn, move: back, entries: is(mine), want: is(mine)},
		"not home from elsewhere":           {step: turn, move: back, entries: is(pool.MovedEntry("x", owner)), err: pool.ErrUndecided},
		"not home beside another address":   {step: turn, move: back, entries: entries{a: pool.LeavingEntry("s", owner), b: mine}, err: pool.ErrTaken},

		"settled":                          {step: settle, move: out, entries: is(pool.MoveTargetEntry(owner)), want: is(mine)},
		"settled already":                  {step: settle, move: out, entries: is(mine), want: is(mine)},
		"not settled where it was left":    {step: settle, move: out, entries: is(pool.CooldownEntry("", at)), err: pool.ErrTaken},
		"nor where it is not announced":    {step: settle, move: out, err: pool.ErrUndecided},
		"nor where another is":             {step: settle, move: out, entries: is(pool.MoveTargetEntry("db/other-0")), err: pool.ErrTaken},
		"nor beside another address of it": {step: settle, move: out, entries: entries{a: pool.MoveTargetEntry(owner), b: mine}, err: pool.ErrTaken},
	} {
		t.Run(name, func(t *testing.T) {
			n := pool.NodePool{Name: "n", Subnets: []netip.Prefix{home}, Entries: c.entries, Used: map[netip.Addr]string{}}
			if c.used != "" {
				n.Used[a] = c.used
			}
			edits, err := c.step(c.move, n)
			if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if err != nil {
				return
			}
			after := n.With(edits)
			if !maps.Equal(after.Entries, c.want) {
				t.Errorf("%v, want %v", after.Entries, c.want)
			}
			if again, err := c.step(c.move, after); err != nil || len(again) > 0 {
				t.Errorf("made again: %v, %v", again, err)
			}
			if undone := after.With(after.Undo(edits)); !maps.Equal(undone.Entries, n.With(nil).Entries) {
				t.Errorf("taken back: %v, want %v", undone.Entries, c.entries)
			}
		})
	}
}

// TestMoveTakesWhatIsNotListed checks which edits require that the agent does not report the address as used
// (EntryChange.Unlisted): those that take the address from a pod's entry, unless the node is down.
func TestMoveTakesWhatIsNotListed(t *testing.T) {
	const owner = "db/mysql-0"
	a := addr("10.0.1.9")
	mine := pool.ForOwner(owner)
	from := func(home, from, to string, isDown bool) pool.Move {
		return pool.Move{Owner: owner, Entry: mine, Addrs: []netip.Addr{a}, Home: home, From: from, To: to, Down: isDown}
	}
	leave := func(m pool.Move, n pool.NodePool) ([]pool.EntryChange, error) {
		return m.VacateSource(n, time.Unix(1000, 0))
	}
	for name, c := range map[string]struct {
		step  func(pool.Move, pool.NodePool) ([]pool.EntryChange, error)
		move  pool.Move
		entry pool.Entry
		want  bool
	}{
		"turned at home":                        {pool.Move.CommitAtHome, from("h", "h", "t", false), mine, true},
		"turned at a home that is down":         {pool.Move.CommitAtHome, from("h", "h", "t", true), mine, false},
		"turned at the home of what lives away": {pool.Move.CommitAtHome, from("h", "s", "t", false), pool.LeavingEntry("s", owner), false},
		"turned home":                           {pool.Move.CommitAtHome, from("h", "s", "h", false), pool.LeavingEntry("s", owner), false},
		"left":                                  {leave, from("h", "s", "t", false), mine, true},
		"left on a node that is down":           {leave, from("h", "s", "t", true), mine, false},
		"left before it arrived":                {leave, from("h", "s", "t", false), pool.MoveTargetEntry(owner), false},
		"announced":                             {pool.Move.PrepareTarget, from("h", "h", "t", false), pool.MoveTargetEntry(owner), false},
		"settled":                               {pool.Move.CompleteAtTarget, from("h", "h", "t", false), pool.MoveTargetEntry(owner), false},
		"departed from a node that may have it": {pool.Move.MarkLeaving, from("h", "s", "t", false), pool.MovedEntry("s", owner), false},
	} {
		n := pool.NodePool{Name: "n", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}, Entries: map[netip.Addr]pool.Entry{a: c.entry}}
		edits, err := c.step(c.move, n)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, e := range edits {
			if e.Unlisted != c.want {
				t.Errorf("%s: unlisted %v, want %v", name, e.Unlisted, c.want)
			}
		}
	}
}

// TestMoveTogether checks that two addresses are moved by one set of edits or not at all, and that IsCommitted requires
// both.
func TestMoveTogether(t *testing.T) {
	const owner = "db/mysql-0"
	addrs := []netip.Addr{addr("10.0.1.9"), addr("fd00:1::9")}
	m := pool.Move{Owner: owner, Entry: pool.ForOwner(owner), Addrs: addrs, Home: "h", From: "h", To: "t", Down: true}
	n := pool.NodePool{Name: "h", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("fd00:1::/64")},
		Entries: map[netip.Addr]pool.Entry{addrs[0]: pool.ForOwner(owner), addrs[1]: pool.ForOwner(owner)}}
	edits, err := m.CommitAtHome(n)
	if err != nil || len(edits) != 2 {
		t.Errorf("%v, %v; want both", edits, err)
	}
	if err := m.IsCommitted(n); !errors.Is(err, pool.ErrUndecided) {
		t.Errorf("turned before: %v", err)
	}
	if err := m.IsCommitted(n.With(edits)); err != nil {
		t.Errorf("turned after: %v", err)
	}
	if err := m.IsCommitted(n.With(edits[:1])); !errors.Is(err, pool.ErrUndecided) {
		t.Errorf("turned in part: %v", err)
	}
	n.Entries[addrs[1]] = pool.ForOwner("db/other-0")
	if edits, err := m.CommitAtHome(n); !errors.Is(err, pool.ErrTaken) {
		t.Errorf("%v, %v; want none", edits, err)
	}
}

// TestEndOfAbsence checks that FenceTarget and ReturnHome write Cooldown entries for the addresses of the owner, and that
// they change no entry of another owner or another move.
func TestEndOfAbsence(t *testing.T) {
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
				t.Errorf("%s becomes %v", e.Addr, *e.To)
			}
			out = append(out, e.Addr.String())
		}
		slices.Sort(out)
		return out
	}
	if got := edited(n.FenceTarget(owner, all, at), pool.CooldownEntry("", at)); !slices.Equal(got, []string{"10.0.1.1", "10.0.1.2", "10.0.1.3"}) {
		t.Errorf("barred: %v", got)
	}
	if got := edited(n.ReturnHome(owner, "t", all, at), pool.CooldownEntry("", at)); !slices.Equal(got, []string{"10.0.1.5"}) {
		t.Errorf("returned: %v", got)
	}
}
