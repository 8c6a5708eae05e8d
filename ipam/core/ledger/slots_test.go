// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

var sameAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

// TestSlots checks that Slots follows the entries that name the workload, the claims in flight and the used addresses
// through changes of the pools.
func TestSlots(t *testing.T) {
	web := func(pod string) pool.Entry { return pool.OwnedEntry("db", pod, "Deployment", "web") }
	l := ledger.New()
	l.SetNode(node("n", "10.0.1.0/29", map[string]pool.Entry{
		"10.0.1.6": web("web-x"), "10.0.1.5": web("web-y"), "10.0.1.4": pool.OwnedEntry("db", "shop-x", "Deployment", "shop"), "10.0.1.3": {},
	}))
	l.SetNode(node("m", "10.0.2.0/29", map[string]pool.Entry{"10.0.2.6": web("web-x")}))
	if _, err := l.Assume("uid", ledger.ClaimRequest{Claim: ledger.Claim{Owner: "db/web-z", Node: "n", Addrs: []netip.Addr{addr("10.0.1.5")}, From: "db/web-y"}, Families: v4}); err != nil {
		t.Fatal(err)
	}
	slot := func(pod, node, a string) ledger.Slot {
		return ledger.Slot{Owner: "db/" + pod, NodeAddresses: ledger.NodeAddresses{Node: node, Addrs: []netip.Addr{addr(a)}}}
	}
	claimed := slot("web-y", "n", "10.0.1.5")
	claimed.Claimed = true
	check := func(when string, want ...ledger.Slot) {
		t.Helper()
		if diff := cmp.Diff(want, l.Slots("db/Deployment/web"), sameAddr); diff != "" {
			t.Errorf("slots %s (-want +got): %s", when, diff)
		}
	}
	check("on two nodes", slot("web-x", "m", "10.0.2.6"), claimed, slot("web-x", "n", "10.0.1.6"))

	change := l.SetNode(node("n", "10.0.1.0/29", map[string]pool.Entry{"10.0.1.6": pool.CooldownEntry("", time.Unix(1, 0)), "10.0.1.5": web("web-z")}, "10.0.1.5"))
	used := slot("web-z", "n", "10.0.1.5")
	used.User, used.Claimed = "db/old-0", true
	check("after a takeover and a release", slot("web-x", "m", "10.0.2.6"), used)
	if want := []string{"db/Deployment/shop", "db/Deployment/web"}; !slices.Equal(change.Workloads, want) {
		t.Errorf("got workloads %v of the change, want %v", change.Workloads, want)
	}
	l.RemoveNode("n")
	l.RemoveNode("m")
	check("without nodes")
	if left := l.Workloads(); len(left) > 0 {
		t.Errorf("got workloads %v of a ledger without nodes, want none", left)
	}
}

func TestAssumeSlot(t *testing.T) {
	former := pool.OwnedEntry("db", "web-x", "Deployment", "web")
	entries := map[string]pool.Entry{"10.0.1.6": former}
	for name, c := range map[string]struct {
		node     pool.NodePool
		reserved []ledger.Reservation
		// other is true if another pod has already claimed the slot.
		other   bool
		addr    string
		wantErr string
	}{
		"the slot of a former pod":                           {node: node("n", "10.0.1.0/29", entries), addr: "10.0.1.6"},
		"a slot whose FixedIP names an earlier holder":       {node: node("n", "10.0.1.0/29", entries), reserved: []ledger.Reservation{{Record: "db/web-10-0-1-6", Owner: "db/web-before", Addrs: []netip.Addr{addr("10.0.1.6")}}}, addr: "10.0.1.6"},
		"a slot that has a FixedIP and no entry":             {node: node("n", "10.0.1.0/29", nil), reserved: []ledger.Reservation{{Record: "db/web-10-0-1-6", Owner: "db/web-x", Addrs: []netip.Addr{addr("10.0.1.6")}}}, addr: "10.0.1.6"},
		"the agent reports the address as used":              {node: node("n", "10.0.1.0/29", entries, "10.0.1.6"), addr: "10.0.1.6", wantErr: "IP 10.0.1.6 on node n is still in use by pod db/old-0"},
		"another pod has claimed the slot":                   {node: node("n", "10.0.1.0/29", entries), other: true, addr: "10.0.1.6", wantErr: "IP 10.0.1.6 on node n is being claimed for pod db/web-z"},
		"another pod has taken over the slot":                {node: node("n", "10.0.1.0/29", map[string]pool.Entry{"10.0.1.6": pool.OwnedEntry("db", "web-z", "Deployment", "web")}), addr: "10.0.1.6", wantErr: "IP 10.0.1.6 on node n belongs to pod db/web-z"},
		"a FixedIP of another workload reserves the address": {node: node("n", "10.0.1.0/29", nil), reserved: []ledger.Reservation{{Record: "db/shop", Owner: "db/shop-x", Addrs: []netip.Addr{addr("10.0.1.6")}}}, addr: "10.0.1.6", wantErr: "IP 10.0.1.6 is reserved by FixedIP db/shop"},
	} {
		t.Run(name, func(t *testing.T) {
			l := ledger.New()
			l.SetNode(c.node)
			for _, r := range c.reserved {
				l.SetReservation(r)
			}
			if c.other {
				if _, err := l.Assume("other", ledger.ClaimRequest{Claim: ledger.Claim{Owner: "db/web-z", Node: "n", Addrs: []netip.Addr{addr(c.addr)}, From: "db/web-x"}, Families: v4}); err != nil {
					t.Fatal(err)
				}
			}
			claim, err := l.Assume("uid", ledger.ClaimRequest{Claim: ledger.Claim{Owner: "db/web-y", Node: "n", Addrs: []netip.Addr{addr(c.addr)}, From: "db/web-x"}, Families: v4})
			if c.wantErr != "" {
				if err == nil || err.Error() != c.wantErr {
					t.Fatalf("got error %v, want %s", err, c.wantErr)
				}
				return
			}
			want := ledger.Claim{Owner: "db/web-y", Node: "n", Addrs: []netip.Addr{addr(c.addr)}, From: "db/web-x"}
			if diff := cmp.Diff(want, claim, sameAddr); err != nil || diff != "" {
				t.Fatalf("got error %v, claim (-want +got): %s", err, diff)
			}
		})
	}
}
