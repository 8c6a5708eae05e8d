// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/test/gen"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// node returns a node with the subnet 10.0.1.0/29, in which .1 to .6 are usable.
func node(entries map[string]pool.Entry, used ...string) pool.NodePool {
	return gen.NodePool("n", "10.0.1.0/29", entries, gen.UsedBy("default/other", used...))
}

// unreported returns the node as if its agent had not reported.
func unreported(n pool.NodePool) pool.NodePool {
	n.Unreported = true
	return n
}

func edited(edits []pool.EntryChange) []string {
	var out []string
	for _, e := range edits {
		out = append(out, e.Addr.String())
	}
	return out
}

func equal(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// reserves returns a function that reports whether an address is among addrs, which FixedIPs reserve.
func reserves(addrs []string) func(netip.Addr) bool {
	return func(a netip.Addr) bool { return slices.Contains(addrs, a.String()) }
}

func TestFillDynamic(t *testing.T) {
	owned := pool.ForOwner("db/mysql-0")
	for name, c := range map[string]struct {
		node     pool.NodePool
		mark     nodepool.Watermark
		want     []string
		short    int
		reserved []string
	}{
		"an empty pool":                                 {node(nil), nodepool.Watermark{Free: 2, Max: 4}, []string{"10.0.1.1", "10.0.1.2"}, 0, nil},
		"enough free entries":                           {node(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": {}}), nodepool.Watermark{Free: 2, Max: 4}, nil, 0, nil},
		"a used entry is not free":                      {node(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": {}}, "10.0.1.1"), nodepool.Watermark{Free: 2, Max: 4}, []string{"10.0.1.3"}, 0, nil},
		"at most the maximum":                           {node(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": {}}, "10.0.1.1", "10.0.1.2"), nodepool.Watermark{Free: 2, Max: 3}, []string{"10.0.1.3"}, 0, nil},
		"owned addresses and cooldowns are skipped":     {node(map[string]pool.Entry{"10.0.1.1": owned, "10.0.1.2": pool.CooldownEntry("", time.Unix(1, 0))}), nodepool.Watermark{Free: 2, Max: 4}, []string{"10.0.1.3", "10.0.1.4"}, 0, nil},
		"a used address without an entry is skipped":    {node(nil, "10.0.1.1"), nodepool.Watermark{Free: 1, Max: 4}, []string{"10.0.1.2"}, 0, nil},
		"until the subnet is full":                      {node(map[string]pool.Entry{"10.0.1.6": owned, "10.0.1.5": owned}), nodepool.Watermark{Free: 6, Max: 9}, []string{"10.0.1.1", "10.0.1.2", "10.0.1.3", "10.0.1.4"}, 2, nil},
		"an entry of the node itself is not dynamic":    {node(map[string]pool.Entry{"10.0.1.1": pool.ForOwner("router")}), nodepool.Watermark{Free: 1, Max: 1}, []string{"10.0.1.2"}, 0, nil},
		"a node without a subnet":                       {pool.NodePool{Name: "n"}, nodepool.Watermark{Free: 1, Max: 1}, nil, 1, nil},
		"withdrawn entries are taken back first":        {node(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.5": pool.WithdrawnEntry(time.Unix(1, 0)), "10.0.1.6": pool.WithdrawnEntry(time.Unix(1, 0))}), nodepool.Watermark{Free: 2, Max: 4}, []string{"10.0.1.5"}, 0, nil},
		"a withdrawn entry that is reserved stays":      {node(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": pool.WithdrawnEntry(time.Unix(1, 0))}), nodepool.Watermark{Free: 2, Max: 4}, []string{"10.0.1.3"}, 0, []string{"10.0.1.2"}},
		"no withdrawn entry is taken back without need": {node(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": pool.WithdrawnEntry(time.Unix(1, 0))}), nodepool.Watermark{Free: 1, Max: 4}, nil, 0, nil},
		"an address that is withheld is skipped":        {withHandshakes(map[string]pool.Entry{"10.0.1.1": {}}, map[string]pool.Handshake{"10.0.1.2": pool.Released}), nodepool.Watermark{Free: 2, Max: 4}, []string{"10.0.1.3"}, 0, nil},
		"a reserved entry does not count as free":       {node(map[string]pool.Entry{"10.0.1.1": {}}), nodepool.Watermark{Free: 1, Max: 4}, []string{"10.0.1.2"}, 0, []string{"10.0.1.1"}},
		"reserved addresses are skipped":                {node(nil), nodepool.Watermark{Free: 2, Max: 4}, []string{"10.0.1.1", "10.0.1.3"}, 0, []string{"10.0.1.2"}},
	} {
		edits, short := nodepool.FillDynamic(c.node, address.IPv4, c.mark, reserves(c.reserved))
		if !equal(edited(edits), c.want) || short != c.short {
			t.Errorf("%s: got edits of %v and short %d, want %v and %d", name, edited(edits), short, c.want, c.short)
		}
	}
}

// TestFillDynamicIsIdempotent checks that FillDynamic changes no dynamic or owned entry and adds none for an address that is
// used or reserved, and that a second call returns no edits.
func TestFillDynamicIsIdempotent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := node(nil)
		for a := range address.Up(n.Subnets[0]) {
			switch rapid.IntRange(0, 3).Draw(t, "entry") {
			case 0:
				n.Entries[a] = pool.Entry{}
			case 1:
				n.Entries[a] = pool.ForOwner("db/mysql-0")
			}
			if rapid.Bool().Draw(t, "used") {
				n.Used[a] = "default/other"
			}
		}
		mark := nodepool.Watermark{Free: rapid.IntRange(1, 6).Draw(t, "free")}
		mark.Max = rapid.IntRange(mark.Free, 8).Draw(t, "max")
		reserved := reserves(rapid.SliceOf(rapid.SampledFrom([]string{"10.0.1.1", "10.0.1.4", "10.0.1.6"})).Draw(t, "reserved"))
		edits, _ := nodepool.FillDynamic(n, address.IPv4, mark, reserved)
		for _, e := range edits {
			if e.From != nil || n.InUse(e.Addr) || reserved(e.Addr) {
				t.Fatalf("got an edit of %s, which has an entry, is used or is reserved", e.Addr)
			}
		}
		if again, _ := nodepool.FillDynamic(n.With(edits), address.IPv4, mark, reserved); len(again) > 0 {
			t.Fatalf("a call after edits of %v returned edits of %v, want none", edited(edits), edited(again))
		}
	})
}

func TestExpireCooldowns(t *testing.T) {
	now := time.Unix(1000, 0)
	n := node(map[string]pool.Entry{
		"10.0.1.1": pool.CooldownEntry("", now.Add(-60*time.Second)),
		"10.0.1.2": pool.CooldownEntry("", now.Add(-59*time.Second)),
		"10.0.1.3": pool.CooldownEntry("", now.Add(-90*time.Second)),
		"10.0.1.4": pool.CooldownEntry("", now.Add(-90*time.Second)),
		"10.0.1.5": {Kind: pool.Cooldown},
		"10.0.1.6": pool.ForOwner("db/mysql-0"),
	}, "10.0.1.3")
	edits, next := expireCooldowns(n, now, time.Minute, time.Time{}, func(a netip.Addr) bool { return a == addr("10.0.1.4") })
	if want := []string{"10.0.1.1", "10.0.1.3", "10.0.1.5"}; !equal(edited(edits), want) {
		t.Errorf("got edits of %v, want %v", edited(edits), want)
	}
	for _, e := range edits {
		if e.Addr == addr("10.0.1.3") {
			// The agent still reports the address as used: its cooldown starts again.
			if *e.To != pool.CooldownEntry("", now) {
				t.Errorf("got edit %+v, want a cooldown that starts at %v", e, now)
			}
			continue
		}
		if e.To != nil || e.From == nil || *e.From != n.Entries[e.Addr] {
			t.Errorf("got edit %+v, want the removal of the current entry", e)
		}
	}
	if want := now.Add(time.Second); !next.Equal(want) {
		t.Errorf("got next check at %v, want %v", next, want)
	}
	// The node became ready a second ago, and earlier reports prove nothing.
	if edits, next := expireCooldowns(n, now, time.Minute, now.Add(-time.Second), func(netip.Addr) bool { return false }); len(edits) > 0 || !next.Equal(now.Add(59*time.Second)) {
		t.Errorf("node that became ready a second ago: got edits of %v and next check at %v, want no edits and %v", edited(edits), next, now.Add(59*time.Second))
	}
	// A cooldown of 0 is not restarted.
	if edits, _ := expireCooldowns(n, now, 0, time.Time{}, func(netip.Addr) bool { return false }); slices.Contains(edited(edits), "10.0.1.3") {
		t.Errorf("cooldown of 0: got edits of %v, want none of 10.0.1.3, which is in use", edited(edits))
	}
}

// TestMinFenceCooldown checks that the cooldown of an address on a node that is not its home lasts at least minFenceCooldown
// if the configured cooldown is shorter.
func TestMinFenceCooldown(t *testing.T) {
	now := time.Unix(1000, 0)
	n := node(map[string]pool.Entry{
		"10.0.1.1": pool.CooldownEntry("", now.Add(-time.Second)),
		"10.0.9.1": pool.CooldownEntry("", now.Add(-time.Second)),
		"10.0.9.2": pool.CooldownEntry("", now.Add(-4*time.Second)),
		"10.0.9.3": pool.CooldownEntry("", now.Add(-5*time.Second)),
	})
	none := func(netip.Addr) bool { return false }
	for _, cooldown := range []time.Duration{0, time.Second} {
		edits, next := expireCooldowns(n, now, cooldown, time.Time{}, none)
		if want := []string{"10.0.1.1", "10.0.9.3"}; !equal(edited(edits), want) {
			t.Errorf("cooldown of %s: got edits of %v, want %v", cooldown, edited(edits), want)
		}
		if want := now.Add(time.Second); !next.Equal(want) {
			t.Errorf("cooldown of %s: got next check at %v, want %v", cooldown, next, want)
		}
	}
	if edits, _ := expireCooldowns(n, now, time.Minute, time.Time{}, none); len(edits) > 0 {
		t.Errorf("cooldown of a minute: got edits of %v, want none", edited(edits))
	}
}

// acknowledged is State.Acknowledged for an agent that has acknowledged every cooldown.
func acknowledged(pool.NodePool, netip.Addr) bool { return true }

// expireCooldowns calls State.ExpireCooldowns for a node that became ready at readySince and whose agent has acknowledged every
// cooldown. No other node has any of the addresses.
func expireCooldowns(n pool.NodePool, now time.Time, cooldown time.Duration, readySince time.Time, held func(netip.Addr) bool) ([]pool.EntryChange, time.Time) {
	s := nodepool.State{Now: now, Cooldown: cooldown, ReadySince: readySince, Held: held, OnOtherNode: func(netip.Addr) bool { return false }, Acknowledged: acknowledged}
	return s.ExpireCooldowns(n)
}
