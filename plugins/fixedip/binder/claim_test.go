// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/plugins/fixedip/cache"
)

// TestClaimIsConfirmed checks that CheckBinding accepts a claim that the cache shows only if the API server has the same
// entries and the agent reports no other pod as their user.
func TestClaimIsConfirmed(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.1.6"), netip.MustParseAddr("10.0.1.7")
	mine := movedID.Entry()
	for name, c := range map[string]struct {
		shown, stands map[netip.Addr]pool.Entry
		used          map[netip.Addr]string
		want          string
	}{
		"the entry exists":          {shown: map[netip.Addr]pool.Entry{a: mine, b: {}}, stands: map[netip.Addr]pool.Entry{a: mine}},
		"and the agent lists it":    {shown: map[netip.Addr]pool.Entry{a: mine}, stands: map[netip.Addr]pool.Entry{a: mine}, used: map[netip.Addr]string{a: movedOwner}},
		"and another has it":        {shown: map[netip.Addr]pool.Entry{a: mine}, stands: map[netip.Addr]pool.Entry{a: mine}, used: map[netip.Addr]string{a: "db/other-0"}, want: "10.0.1.6 on node n is used by db/other-0"},
		"the entry was released":    {shown: map[netip.Addr]pool.Entry{a: mine}, stands: map[netip.Addr]pool.Entry{a: pool.CooldownEntry("", time.Unix(1, 0))}, want: "node n has no entry for db/mysql-0 at 10.0.1.6"},
		"another entry replaced it": {shown: map[netip.Addr]pool.Entry{a: mine, b: {}}, stands: map[netip.Addr]pool.Entry{b: mine}, want: "node n has an entry for db/mysql-0 at 10.0.1.7, which is not planned for that pod"},
		"two, both shown":           {shown: map[netip.Addr]pool.Entry{a: mine, b: mine}, stands: map[netip.Addr]pool.Entry{a: mine, b: mine}},
		"two, and another has one":  {shown: map[netip.Addr]pool.Entry{a: mine, b: mine}, stands: map[netip.Addr]pool.Entry{a: mine, b: mine}, used: map[netip.Addr]string{b: "web/x"}, want: "10.0.1.7 on node n is used by a pod of another namespace"},
	} {
		b := &Binder{Shared: &Shared{Cache: &cache.Cache{Ledger: ledger.New()}}}
		b.Cache.Ledger.SetNode(pool.NodePool{Name: "n", UID: "n", Entries: c.shown})
		got := ""
		if err := (pool.NodePool{Name: "n", UID: "n", Entries: c.stands, Used: c.used}).CheckBinding(movedOwner, b.Cache.Ledger.HeldOn(movedOwner, "n")); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestClaimThatWasReplaced checks that a claim that the cache shows is lost if the API server does not have it any more, and
// that the read that finds this updates the cache.
func TestClaimThatWasReplaced(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, clients := movedPod()
	s := newPools(t, 0, atHome)
	a := s.process(ctx, "scheduler", clients)
	s.actors = nil // The watch does not show the following writes.
	for _, addr := range movedAddrs {
		s.nodes["home"].Spec.IPAM.Pool[addr.String()] = ciliumpool.EncodeEntry(pool.CooldownEntry(movedOwner, time.Now()))
	}
	s.nodes["home"].Spec.IPAM.Pool["10.0.1.20"] = ciliumpool.EncodeEntry(movedID.Entry())
	s.nodes["home"].Generation, s.nodes["home"].ResourceVersion = 2, "2"
	claim, err := a.binder.Cache.Ledger.Assume("pod-1", ledger.ClaimRequest{Claim: ledger.Claim{Owner: movedOwner, Node: "home"}, Families: []address.Family{address.IPv4, address.IPv6}})
	if err != nil || !a.binder.Cache.Ledger.IsClaimed(claim) {
		t.Fatalf("the cache does not have the claim %v: %v", claim, err)
	}
	if err := a.binder.claim(ctx, &Plan{id: movedID}, claim); !errors.Is(err, pool.ErrTaken) {
		t.Errorf("%v", err)
	}
	if a.binder.Cache.Ledger.IsClaimed(claim) {
		t.Error("the cache still shows the claim")
	}
}
