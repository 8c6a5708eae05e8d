// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"testing"
	"time"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

func TestBlocker(t *testing.T) {
	l := ledger.New()
	l.SetNode(node("node-1", "10.0.1.0/28", map[string]pool.Entry{
		"10.0.1.1": {}, "10.0.1.2": pool.ForOwner("db/other-0"), "10.0.1.3": pool.CooldownEntry("", time.Unix(1000, 0)), "10.0.1.4": pool.ForOwner("db/mysql-0"),
		"10.0.1.5": pool.ForOwner("router"),
	}, "10.0.1.6"))
	l.SetNode(node("node-2", "10.0.2.0/29", nil))
	l.SetNode(node("node-3", "10.0.2.0/30", nil))
	if _, err := l.Assume("uid", ledger.ClaimRequest{Claim: ledger.Claim{Owner: "db/other-1", Node: "node-1"}, Families: v4, Requested: parseRequest(t, "10.0.1.8")}); err != nil {
		t.Fatal(err)
	}
	l.SetReservation(reserve("db/reserved-0", "db/reserved-0", 1, "10.0.1.10"))
	l.SetReservation(reserve("db/mysql-0", "db/mysql-0", 1, "10.0.1.11"))
	l.SetReservation(reserve("shop/web-0", "shop/web-0", 1, "10.0.1.12"))
	for ip, want := range map[string]string{
		"10.0.1.9":  "",
		"10.0.1.10": "IP 10.0.1.10 is reserved by FixedIP db/reserved-0; request another address, or have that FixedIP deleted if its addresses are no longer needed",
		"10.0.1.11": "",
		"10.0.1.12": "IP 10.0.1.12 is reserved by a FixedIP of another namespace; request another address, or have that FixedIP deleted if its addresses are no longer needed",
		"10.0.1.3":  "IP 10.0.1.3 on node node-1 has been cooling down since 1970-01-01T00:16:40Z; it becomes available when the cooldown is over and the Cilium agent has confirmed that no pod uses it",
		"10.0.1.4":  "",
		"10.0.1.1":  "IP 10.0.1.1 has a dynamic entry in the pool of node node-1, so that any pod may be using it; the controller removes that entry when a FixedIP reserves the IP and no pod uses it; otherwise request an address nearer to the top of the node's subnet",
		"10.0.1.2":  "IP 10.0.1.2 on node node-1 belongs to pod db/other-0; request another address; this one becomes available when it has been released and its cooldown has ended",
		"10.0.1.5":  `IP 10.0.1.5 on node node-1 is reserved for the node itself (router); request another address`,
		"10.0.1.6":  "IP 10.0.1.6 on node node-1 is still in use by pod db/old-0; it becomes available when no pod has it and the Cilium agent no longer reports it as used",
		"10.0.1.8":  "IP 10.0.1.8 on node node-1 is being claimed for pod db/other-1; wait until that claim has ended, and request another address if the IP belongs to another pod then",
		"10.0.1.0":  "IP 10.0.1.0 is the first or last address of a subnet of node node-1, which no pod can have; request another address",
		"10.0.1.15": "IP 10.0.1.15 is the first or last address of a subnet of node node-1, which no pod can have; request another address",
		"10.0.9.1":  "IP 10.0.9.1 is in no node's subnet; it becomes available when a node gets a subnet that contains it",
	} {
		got := ""
		if b := l.Blocker("db/mysql-0", addr(ip)); b != nil {
			got = b.Message()
		}
		if got != want {
			t.Errorf("%s: got message %q, want %q", ip, got, want)
		}
	}
	if b := l.Blocker("db/mysql-0", addr("10.0.2.1")); b == nil || b.Reason != pool.SubnetOverlap {
		t.Errorf("got Blocker %v for an address in the subnets of two nodes, want the reason SubnetOverlap", b)
	}
}
