// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"net/netip"
	"testing"
	"time"

	"fixedip.io/fixedip/ipam/core/pool"
)

func TestRedactOwner(t *testing.T) {
	for _, tc := range []struct{ owner, requester, want string }{
		{"db/mysql-0", "db/web-0", "db/mysql-0"},
		{"db/mysql-0", "shop/web-0", "a pod of another namespace"},
		{"db/mysql-0", "", "db/mysql-0"},
		{"router", "shop/web-0", "router"},
	} {
		if got := pool.RedactOwner(tc.owner, tc.requester); got != tc.want {
			t.Errorf("RedactOwner(%q, %q) = %q, want %q", tc.owner, tc.requester, got, tc.want)
		}
	}
}

// TestBlocker checks the messages and reasons of Blockers, and that no message names a pod of another namespace.
func TestBlocker(t *testing.T) {
	n := pool.NodePool{
		Name: "n", PodCIDRs: []string{"10.0.1.0/24"}, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")},
		Entries: map[netip.Addr]pool.Entry{
			addr("10.0.1.1"): {},
			addr("10.0.1.2"): pool.ForOwner("db/mysql-0"),
			addr("10.0.1.3"): pool.ForOwner("shop/web-0"),
			addr("10.0.1.4"): pool.ForOwner("router"),
			addr("10.0.1.5"): pool.ForOwner("operator"),
			addr("10.0.1.6"): pool.CooldownEntry("db/mysql-0", time.Unix(1000, 0)),
			addr("10.0.1.7"): pool.MovedEntry("m", "db/mysql-0"),
			addr("10.0.1.8"): pool.MovedEntry("m", "shop/web-0"),
			addr("10.0.1.9"): pool.MoveTargetEntry("db/other-0"),
		},
		Used: map[netip.Addr]string{addr("10.0.1.20"): "db/other-1", addr("10.0.1.21"): "db/mysql-0", addr("10.0.1.22"): "shop/web-1", addr("10.0.1.23"): ""},
	}
	for a, want := range map[string]string{
		"10.0.1.1":  "IP 10.0.1.1 on node n is a dynamic entry, which any pod may be using; request an address nearer to the top of the node's subnet, or wait until the pool no longer has this one",
		"10.0.1.2":  "",
		"10.0.1.3":  "IP 10.0.1.3 on node n belongs to a pod of another namespace; request another address, or release this one",
		"10.0.1.4":  `IP 10.0.1.4 on node n is reserved for "router"; request another address`,
		"10.0.1.5":  `IP 10.0.1.5 on node n is reserved for "operator"; request another address`,
		"10.0.1.6":  "IP 10.0.1.6 on node n is cooling down after its release at 1970-01-01T00:16:40Z; it becomes available after the cooldown",
		"10.0.1.7":  "IP 10.0.1.7 on node n is moving to node m, whose pool does not have the entry yet",
		"10.0.1.8":  "IP 10.0.1.8 on node n belongs to a pod of another namespace and has moved to another node; request another address, or release this one",
		"10.0.1.9":  "IP 10.0.1.9 on node n belongs to pod db/other-0; request another address, or release this one",
		"10.0.1.20": "IP 10.0.1.20 on node n is still in use by pod db/other-1; it becomes available when that pod is gone and the agent no longer reports it",
		"10.0.1.21": "",
		"10.0.1.22": "IP 10.0.1.22 on node n is still in use by a pod of another namespace; it becomes available when that pod is gone and the agent no longer reports it",
		"10.0.1.23": "IP 10.0.1.23 on node n is still in use by an unknown pod; it becomes available when that pod is gone and the agent no longer reports it",
		"10.0.1.30": "",
		"10.0.2.1":  "IP 10.0.2.1 is not in the subnets of node n (10.0.1.0/24); it becomes available when a node gets a subnet that contains it",
	} {
		b := n.Blocker(addr(a), "db/mysql-0", nil)
		if got := ""; b != nil {
			got = b.Message()
			if got != want {
				t.Errorf("%s: got message: %s\nwant: %s", a, got, want)
			}
		} else if want != "" {
			t.Errorf("%s: got no Blocker, want: %s", a, want)
		}
	}
	n.Unreported = true
	for a, reason := range map[string]pool.Reason{"10.0.1.2": "", "10.0.1.1": pool.DynamicEntry, "10.0.1.20": pool.InUseByPod, "10.0.1.30": pool.NotReported} {
		if b := n.Blocker(addr(a), "db/mysql-0", nil); (b == nil) != (reason == "") || b != nil && b.Reason != reason {
			t.Errorf("%s before the agent has reported: got Blocker %v, want reason %q (empty: no Blocker)", a, b, reason)
		}
	}
	if b := n.OtherAddressOf("db/mysql-0", []netip.Addr{addr("10.0.1.30")}); b == nil || b.Message() != "pod db/mysql-0 already has IP 10.0.1.2 on node n, and can't have IP 10.0.1.30 there as well; delete the pod to release its other address" {
		t.Errorf("OtherAddressOf: got Blocker %v, want one that names 10.0.1.2 and 10.0.1.30", b)
	}
}
