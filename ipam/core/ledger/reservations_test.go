// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// keeping returns the reservation of a FixedIP that was created at the Unix time made.
func keeping(record, owner string, made int64, addrs ...string) ledger.Reservation {
	k := ledger.Reservation{Record: record, Owner: owner, Since: time.Unix(made, 0)}
	for _, a := range addrs {
		k.Addrs = append(k.Addrs, addr(a))
	}
	return k
}

// TestKept checks that only the pod of a FixedIP can claim a reserved address that has no entry, and that an entry takes
// precedence over a reservation.
func TestKept(t *testing.T) {
	both := []address.Family{address.IPv4, address.IPv6}
	small := func(entries map[string]pool.Entry, used ...string) pool.NodePool {
		n := node("n", "10.0.1.0/30", entries, used...)
		n.Subnets = append(n.Subnets, netip.MustParsePrefix("fd00::/126"))
		return n
	}
	mysql := keeping("db/mysql-0", "db/mysql-0", 1, "10.0.1.2")
	for name, c := range map[string]struct {
		node    pool.NodePool
		kept    []ledger.Reservation
		owner   string
		room    int64
		want    string
		wantErr string
	}{
		"not for another": {node: small(nil), kept: []ledger.Reservation{mysql}, owner: "db/x-0", room: 1, want: "10.0.1.1, fd00::3"},
		"for its pod, and another family beside it": {node: small(nil), kept: []ledger.Reservation{mysql}, owner: "db/mysql-0", room: 1, want: "10.0.1.2, fd00::3"},
		"for its pod in both families":              {node: small(nil), kept: []ledger.Reservation{keeping("db/mysql-0", "db/mysql-0", 1, "fd00::1", "10.0.1.1")}, owner: "db/mysql-0", room: 1, want: "10.0.1.1, fd00::1"},
		"not for another while it rests": {node: small(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": pool.CooldownEntry("", time.Unix(1, 0))}), kept: []ledger.Reservation{mysql}, owner: "db/x-0",
			wantErr: "no free IPv4 address is left in the subnets of node n (10.0.1.0/30, fd00::/126)"},
		"for its pod while it rests": {node: small(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": pool.CooldownEntry("", time.Unix(1, 0))}), kept: []ledger.Reservation{mysql}, owner: "db/mysql-0", wantErr: "IP 10.0.1.2 on node n is cooling down after its release at 1970-01-01T00:00:01Z"},
		"an entry comes first": {node: small(map[string]pool.Entry{"10.0.1.2": pool.ForOwner("db/x-0")}), kept: []ledger.Reservation{mysql}, owner: "db/mysql-0", room: 1,
			wantErr: "IP 10.0.1.2 on node n belongs to pod db/x-0"},
		"who holds it keeps it": {node: small(map[string]pool.Entry{"10.0.1.2": pool.ForOwner("db/x-0")}), kept: []ledger.Reservation{mysql}, owner: "db/x-0", room: 1, want: "10.0.1.2, fd00::3"},
		"the older of two": {node: small(nil), kept: []ledger.Reservation{mysql, keeping("db/late-0", "db/late-0", 2, "10.0.1.2")}, owner: "db/late-0", room: 1,
			wantErr: "IP 10.0.1.2 is reserved by FixedIP db/mysql-0"},
		"on another node": {node: small(nil), kept: []ledger.Reservation{keeping("db/mysql-0", "db/mysql-0", 1, "10.0.9.1")}, owner: "db/mysql-0", room: 2,
			wantErr: "IP 10.0.9.1 is not in the subnets of node n (10.0.1.0/30, fd00::/126)"},
		"not from a FixedIP of another name": {node: small(nil), kept: []ledger.Reservation{keeping("db/by-hand", "db/mysql-0", 1, "10.0.1.2")}, owner: "db/mysql-0", room: 1, want: "10.0.1.1, fd00::3"},
		"what the agent uses for another": {node: small(nil, "10.0.1.2"), kept: []ledger.Reservation{mysql}, owner: "db/mysql-0", room: 1,
			wantErr: "IP 10.0.1.2 on node n is still in use by pod db/old-0"},
	} {
		t.Run(name, func(t *testing.T) {
			l := ledger.New()
			for _, k := range c.kept {
				l.SetRecord(k)
			}
			l.SetNode(c.node)
			if room := l.Available("n", address.IPv4); room != c.room {
				t.Errorf("room %d, want %d", room, c.room)
			}
			claim, err := l.Assume("uid", ledger.ClaimRequest{Claim: ledger.Claim{Owner: c.owner, Node: "n"}, Families: both})
			if got := address.Join(claim.Addrs); got != c.want || err == nil != (c.wantErr == "") || err != nil && err.Error() != c.wantErr {
				t.Fatalf("claimed %q, %v; want %q, %s", got, err, c.want, c.wantErr)
			}
		})
	}
}

// TestKeptNoMore checks that a FixedIP that is removed or reserves another address frees the addresses that it reserved,
// and no others; and that the older of two FixedIPs takes precedence.
func TestKeptNoMore(t *testing.T) {
	l := ledger.New()
	l.SetNode(node("n1", "10.0.1.0/29", nil))
	l.SetNode(node("n2", "10.0.2.0/29", nil))
	for _, step := range []struct {
		what  string
		do    func() []string
		freed []string
		rooms [2]int64
	}{
		{"made", func() []string { return l.SetRecord(keeping("db/a", "db/a-0", 1, "10.0.1.6")) }, nil, [2]int64{5, 6}},
		{"seen again", func() []string { return l.SetRecord(keeping("db/a", "db/a-0", 1, "10.0.1.6")) }, nil, [2]int64{5, 6}},
		{"a second one of the address", func() []string { return l.SetRecord(keeping("db/b", "db/b-0", 2, "10.0.1.6", "10.0.2.6")) }, nil, [2]int64{5, 5}},
		{"created again with another", func() []string { return l.SetRecord(keeping("db/a", "db/a-0", 3, "10.0.2.5")) }, []string{"n1"}, [2]int64{5, 4}},
		{"gone", func() []string { return l.RemoveRecord("db/b") }, []string{"n1", "n2"}, [2]int64{6, 5}},
		{"gone twice", func() []string { return l.RemoveRecord("db/b") }, nil, [2]int64{6, 5}},
	} {
		freed := step.do()
		rooms := [2]int64{l.Available("n1", address.IPv4), l.Available("n2", address.IPv4)}
		if !slices.Equal(freed, step.freed) || rooms != step.rooms {
			t.Errorf("%s: freed on %v with room %v, want %v and %v", step.what, freed, rooms, step.freed, step.rooms)
		}
	}
	// The older one takes precedence, in whatever order the FixedIPs are seen.
	l.SetRecord(keeping("db/young", "db/young-0", 9, "10.0.1.6"))
	l.SetRecord(keeping("db/old", "db/old-0", 8, "10.0.1.6"))
	if _, err := l.Assume("uid", ledger.ClaimRequest{Claim: ledger.Claim{Owner: "db/old-0", Node: "n1", Addrs: []netip.Addr{addr("10.0.1.6")}}, Families: v4}); err != nil {
		t.Error(err)
	}
}

// TestKeepings checks Reservations, ReservationsIn, ReservationsWithoutSubnet and Unrecorded.
func TestKeepings(t *testing.T) {
	l := ledger.New()
	l.SetNode(node("n", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.9": pool.ForOwner("db/mysql-0"), "10.0.1.10": pool.ForOwner("db/by-hand")}))
	for _, k := range []ledger.Reservation{
		keeping("db/mysql-0", "db/mysql-0", 1, "10.0.1.9", "fd00::9"), keeping("db/mysql-1", "db/mysql-1", 1, "10.0.2.1"),
		keeping("db/late-1", "db/late-1", 2, "10.0.2.1"), keeping("db/mysql-2", "db/mysql-2", 1), keeping("db/first-0", "db/first-0", 1, "10.0.1.0"),
	} {
		l.SetRecord(k)
	}
	names := func(all []ledger.Reservation) (records []string) {
		for _, k := range all {
			records = append(records, k.Record)
		}
		return records
	}
	subnets := func(text ...string) (found []netip.Prefix) {
		for _, s := range text {
			found = append(found, netip.MustParsePrefix(s))
		}
		return found
	}
	for name, c := range map[string]struct {
		got  []ledger.Reservation
		want []string
	}{
		"all":                       {l.Reservations(), []string{"db/first-0", "db/late-1", "db/mysql-0", "db/mysql-1", "db/mysql-2"}},
		"in a subnet":               {l.ReservationsIn(subnets("10.0.1.0/24")...), []string{"db/first-0", "db/mysql-0"}},
		"both that keep an address": {l.ReservationsIn(subnets("10.0.2.0/30")...), []string{"db/late-1", "db/mysql-1"}},
		"each once":                 {l.ReservationsIn(subnets("10.0.1.9/24", "fd00::/64")...), []string{"db/first-0", "db/mysql-0"}},
		"in none":                   {l.ReservationsIn(), nil},
		"without a home":            {l.ReservationsWithoutSubnet(), []string{"db/late-1", "db/mysql-0", "db/mysql-1"}},
	} {
		if got := names(c.got); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if got := l.Unrecorded(); got != 1 {
		t.Errorf("%d pods hold an address without a FixedIP, want 1", got)
	}
}
