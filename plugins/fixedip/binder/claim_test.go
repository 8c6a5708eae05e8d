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

// TestClaimIsConfirmed checks that CheckBinding accepts a claim of the cache only if the pool at the API server has the same
// entries for the pod and the agent reports no other pod as their user.
func TestClaimIsConfirmed(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.1.6"), netip.MustParseAddr("10.0.1.7")
	mine := movedID.Entry()
	for name, c := range map[string]struct {
		// shown contains the entries in the cache, current those at the API server.
		shown, current map[netip.Addr]pool.Entry
		used           map[netip.Addr]string
		want           string
	}{
		"the entry exists":                          {shown: map[netip.Addr]pool.Entry{a: mine, b: {}}, current: map[netip.Addr]pool.Entry{a: mine}},
		"the agent reports the pod as the user":     {shown: map[netip.Addr]pool.Entry{a: mine}, current: map[netip.Addr]pool.Entry{a: mine}, used: map[netip.Addr]string{a: movedOwner}},
		"the agent reports another pod as the user": {shown: map[netip.Addr]pool.Entry{a: mine}, current: map[netip.Addr]pool.Entry{a: mine}, used: map[netip.Addr]string{a: "db/other-0"}, want: "the Cilium agent of node n reports IP 10.0.1.6 as used by pod db/other-0"},
		"the entry was released":                    {shown: map[netip.Addr]pool.Entry{a: mine}, current: map[netip.Addr]pool.Entry{a: pool.CooldownEntry("", time.Unix(1, 0))}, want: "the pool of node n lacks an entry for pod db/mysql-0: IP 10.0.1.6"},
		"an entry of another address replaced it":   {shown: map[netip.Addr]pool.Entry{a: mine, b: {}}, current: map[netip.Addr]pool.Entry{b: mine}, want: "the pool of node n has an entry for pod db/mysql-0 that the pod should not have: IP 10.0.1.7"},
		"two entries exist":                         {shown: map[netip.Addr]pool.Entry{a: mine, b: mine}, current: map[netip.Addr]pool.Entry{a: mine, b: mine}},
		"another pod uses one of two addresses":     {shown: map[netip.Addr]pool.Entry{a: mine, b: mine}, current: map[netip.Addr]pool.Entry{a: mine, b: mine}, used: map[netip.Addr]string{b: "web/x"}, want: "the Cilium agent of node n reports IP 10.0.1.7 as used by a pod of another namespace"},
	} {
		b := &Binder{Shared: &Shared{Cache: &cache.Cache{Ledger: ledger.New()}}}
		b.Cache.Ledger.SetNode(pool.NodePool{Name: "n", UID: "n", Entries: c.shown})
		got := ""
		if err := (pool.NodePool{Name: "n", UID: "n", Entries: c.current, Used: c.used}).CheckBinding(movedOwner, b.Cache.Ledger.HeldOn(movedOwner, "n")); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: CheckBinding returned error %q, want %q", name, got, c.want)
		}
	}
}

// TestClaimThatWasReplaced checks that the method claim returns ErrTaken and updates the cache if the cache shows the
// entries of a claim, but the API server no longer has them.
func TestClaimThatWasReplaced(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, clients := movedPod()
	s := newPools(t, 0, atHome)
	a := s.process(ctx, "scheduler", clients)
	// The watch does not show the following writes.
	s.actors = nil
	for _, addr := range movedAddrs {
		s.nodes["home"].Spec.IPAM.Pool[addr.String()] = ciliumpool.EncodeEntry(pool.CooldownEntry(movedOwner, time.Now()))
	}
	s.nodes["home"].Spec.IPAM.Pool["10.0.1.20"] = ciliumpool.EncodeEntry(movedID.Entry())
	s.nodes["home"].Generation, s.nodes["home"].ResourceVersion = 2, "2"
	claim, err := a.binder.Cache.Ledger.Assume("pod-1", ledger.ClaimRequest{Claim: ledger.Claim{Owner: movedOwner, Node: "home"}, Families: []address.Family{address.IPv4, address.IPv6}})
	if err != nil || !a.binder.Cache.Ledger.IsClaimed(claim) {
		t.Fatalf("Assume returned claim %v and error %v, want a claim whose entries the cache shows in the pool", claim, err)
	}
	if err := a.binder.claim(ctx, &Plan{id: movedID}, claim); !errors.Is(err, pool.ErrTaken) {
		t.Errorf("claim returned error %v, want %v", err, pool.ErrTaken)
	}
	if a.binder.Cache.Ledger.IsClaimed(claim) {
		t.Error("the cache still shows the entries of the claim, want the entries at the API server")
	}
}
