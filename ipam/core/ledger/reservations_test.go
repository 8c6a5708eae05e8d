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

// reserve returns the reservation of a FixedIP that was created at the Unix time created.
func reserve(record, owner string, created int64, addrs ...string) ledger.Reservation {
	r := ledger.Reservation{Record: record, Owner: owner, Since: time.Unix(created, 0)}
	for _, a := range addrs {
		r.Addrs = append(r.Addrs, addr(a))
	}
	return r
}

// TestAssumeReserved checks that only the pod of a FixedIP can claim a reserved address that has no entry, and that an entry
// takes precedence over a reservation.
func TestAssumeReserved(t *testing.T) {
	both := []address.Family{address.IPv4, address.IPv6}
	small := func(entries map[string]pool.Entry, used ...string) pool.NodePool {
		n := node("n", "10.0.1.0/30", entries, used...)
		n.Subnets = append(n.Subnets, netip.MustParsePrefix("fd00::/126"))
		return n
	}
	mysql := reserve("db/mysql-0", "db/mysql-0", 1, "10.0.1.2")
	for name, c := range map[string]struct {
		node      pool.NodePool
		reserved  []ledger.Reservation
		owner     string
		available int64
		want      string
		wantErr   string
	}{
		"another pod does not get the reserved address":                 {node: small(nil), reserved: []ledger.Reservation{mysql}, owner: "db/x-0", available: 1, want: "10.0.1.1, fd00::3"},
		"the pod gets the reserved address and one of the other family": {node: small(nil), reserved: []ledger.Reservation{mysql}, owner: "db/mysql-0", available: 1, want: "10.0.1.2, fd00::3"},
		"the pod gets reserved addresses in both families":              {node: small(nil), reserved: []ledger.Reservation{reserve("db/mysql-0", "db/mysql-0", 1, "fd00::1", "10.0.1.1")}, owner: "db/mysql-0", available: 1, want: "10.0.1.1, fd00::1"},
		"another pod while the reserved address cools down": {node: small(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": pool.CooldownEntry("", time.Unix(1, 0))}), reserved: []ledger.Reservation{mysql}, owner: "db/x-0",
			wantErr: "the subnets of node n (10.0.1.0/30, fd00::/126) have no free IPv4 address"},
		"the pod while the reserved address cools down": {node: small(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": pool.CooldownEntry("", time.Unix(1, 0))}), reserved: []ledger.Reservation{mysql}, owner: "db/mysql-0", wantErr: "IP 10.0.1.2 on node n has been cooling down since 1970-01-01T00:00:01Z"},
		"an entry of another pod takes precedence": {node: small(map[string]pool.Entry{"10.0.1.2": pool.ForOwner("db/x-0")}), reserved: []ledger.Reservation{mysql}, owner: "db/mysql-0", available: 1,
			wantErr: "IP 10.0.1.2 on node n belongs to pod db/x-0"},
		"the pod of the entry keeps the address": {node: small(map[string]pool.Entry{"10.0.1.2": pool.ForOwner("db/x-0")}), reserved: []ledger.Reservation{mysql}, owner: "db/x-0", available: 1, want: "10.0.1.2, fd00::3"},
		"the older of two FixedIPs takes precedence": {node: small(nil), reserved: []ledger.Reservation{mysql, reserve("db/late-0", "db/late-0", 2, "10.0.1.2")}, owner: "db/late-0", available: 1,
			wantErr: "IP 10.0.1.2 is reserved by FixedIP db/mysql-0"},
		"the reserved address is in no subnet of the node": {node: small(nil), reserved: []ledger.Reservation{reserve("db/mysql-0", "db/mysql-0", 1, "10.0.9.1")}, owner: "db/mysql-0", available: 2,
			wantErr: "IP 10.0.9.1 is not in the subnets of node n (10.0.1.0/30, fd00::/126)"},
		"a FixedIP with another name than the pod": {node: small(nil), reserved: []ledger.Reservation{reserve("db/by-hand", "db/mysql-0", 1, "10.0.1.2")}, owner: "db/mysql-0", available: 1, want: "10.0.1.1, fd00::3"},
		"another pod uses the reserved address": {node: small(nil, "10.0.1.2"), reserved: []ledger.Reservation{mysql}, owner: "db/mysql-0", available: 1,
			wantErr: "IP 10.0.1.2 on node n is still in use by pod db/old-0"},
	} {
		t.Run(name, func(t *testing.T) {
			l := ledger.New()
			for _, r := range c.reserved {
				l.SetReservation(r)
			}
			l.SetNode(c.node)
			if available := l.Available("n", address.IPv4); available != c.available {
				t.Errorf("got Available %d, want %d", available, c.available)
			}
			claim, err := l.Assume("uid", ledger.ClaimRequest{Claim: ledger.Claim{Owner: c.owner, Node: "n"}, Families: both})
			if got := address.Join(claim.Addrs); got != c.want || err == nil != (c.wantErr == "") || err != nil && err.Error() != c.wantErr {
				t.Fatalf("got claim of %q and error %v, want %q and %q", got, err, c.want, c.wantErr)
			}
		})
	}
}

// TestReplaceReservation checks that SetReservation and RemoveReservation return exactly the nodes of the addresses that the
// FixedIP no longer reserves, and that the older of two FixedIPs takes precedence.
func TestReplaceReservation(t *testing.T) {
	l := ledger.New()
	l.SetNode(node("n1", "10.0.1.0/29", nil))
	l.SetNode(node("n2", "10.0.2.0/29", nil))
	for _, step := range []struct {
		what      string
		do        func() []string
		freed     []string
		available [2]int64
	}{
		{"a FixedIP is created", func() []string { return l.SetReservation(reserve("db/a", "db/a-0", 1, "10.0.1.6")) }, nil, [2]int64{5, 6}},
		{"the FixedIP is seen again without a change", func() []string { return l.SetReservation(reserve("db/a", "db/a-0", 1, "10.0.1.6")) }, nil, [2]int64{5, 6}},
		{"a second FixedIP reserves the address", func() []string { return l.SetReservation(reserve("db/b", "db/b-0", 2, "10.0.1.6", "10.0.2.6")) }, nil, [2]int64{5, 5}},
		{"the first FixedIP is created again with another address", func() []string { return l.SetReservation(reserve("db/a", "db/a-0", 3, "10.0.2.5")) }, []string{"n1"}, [2]int64{5, 4}},
		{"the second FixedIP is removed", func() []string { return l.RemoveReservation("db/b") }, []string{"n1", "n2"}, [2]int64{6, 5}},
		{"the second FixedIP is removed again", func() []string { return l.RemoveReservation("db/b") }, nil, [2]int64{6, 5}},
	} {
		freed := step.do()
		available := [2]int64{l.Available("n1", address.IPv4), l.Available("n2", address.IPv4)}
		if !slices.Equal(freed, step.freed) || available != step.available {
			t.Errorf("%s: got freed nodes %v and Available %v, want %v and %v", step.what, freed, available, step.freed, step.available)
		}
	}
	// The older FixedIP takes precedence, whatever the order of the events.
	l.SetReservation(reserve("db/young", "db/young-0", 9, "10.0.1.6"))
	l.SetReservation(reserve("db/old", "db/old-0", 8, "10.0.1.6"))
	if _, err := l.Assume("uid", ledger.ClaimRequest{Claim: ledger.Claim{Owner: "db/old-0", Node: "n1", Addrs: []netip.Addr{addr("10.0.1.6")}}, Families: v4}); err != nil {
		t.Errorf("Assume of 10.0.1.6 for db/old-0 returns error %v, want a claim, because the older FixedIP names db/old-0", err)
	}
}

// TestReservations checks Reservations, ReservationsIn, ReservationsWithoutSubnet and Unrecorded.
func TestReservations(t *testing.T) {
	l := ledger.New()
	l.SetNode(node("n", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.9": pool.ForOwner("db/mysql-0"), "10.0.1.10": pool.ForOwner("db/by-hand"), "10.0.1.11": pool.UnreservedEntry("db", "job-x")}))
	for _, r := range []ledger.Reservation{
		reserve("db/mysql-0", "db/mysql-0", 1, "10.0.1.9", "fd00::9"), reserve("db/mysql-1", "db/mysql-1", 1, "10.0.2.1"),
		reserve("db/late-1", "db/late-1", 2, "10.0.2.1"), reserve("db/mysql-2", "db/mysql-2", 1), reserve("db/first-0", "db/first-0", 1, "10.0.1.0"),
	} {
		l.SetReservation(r)
	}
	names := func(all []ledger.Reservation) (records []string) {
		for _, r := range all {
			records = append(records, r.Record)
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
		"all reservations":                      {l.Reservations(), []string{"db/first-0", "db/late-1", "db/mysql-0", "db/mysql-1", "db/mysql-2"}},
		"in a subnet":                           {l.ReservationsIn(subnets("10.0.1.0/24")...), []string{"db/first-0", "db/mysql-0"}},
		"both FixedIPs that reserve an address": {l.ReservationsIn(subnets("10.0.2.0/30")...), []string{"db/late-1", "db/mysql-1"}},
		"each FixedIP once":                     {l.ReservationsIn(subnets("10.0.1.9/24", "fd00::/64")...), []string{"db/first-0", "db/mysql-0"}},
		"in no subnet":                          {l.ReservationsIn(), nil},
		"without a home node":                   {l.ReservationsWithoutSubnet(), []string{"db/late-1", "db/mysql-0", "db/mysql-1"}},
	} {
		if got := names(c.got); !slices.Equal(got, c.want) {
			t.Errorf("%s: got FixedIPs %v, want %v", name, got, c.want)
		}
	}
	l.SetNode(node("m", "10.0.9.0/24", map[string]pool.Entry{"10.0.9.9": pool.OwnedEntry("db", "new-0", "StatefulSet", "new")}))
	claims, others := l.Unrecorded()
	if want := []string{"db/new-0"}; !slices.Equal(claims, want) {
		t.Errorf("Unrecorded returns claims %v, want %v", claims, want)
	}
	if want := []string{"db/by-hand"}; !slices.Equal(others, want) {
		t.Errorf("Unrecorded returns others %v, want %v", others, want)
	}
}
