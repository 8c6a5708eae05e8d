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

			addr("10.0.1.10"): pool.MovedEntry("m", ""),
			addr("10.0.1.11"): pool.MovedEntry("", "db/mysql-0"),
		},
		Used: map[netip.Addr]string{
			addr("10.0.1.20"): "db/other-1", addr("10.0.1.21"): "db/mysql-0", addr("10.0.1.22"): "shop/web-1", addr("10.0.1.23"): "",
			addr("10.0.1.24"): "router", addr("10.0.1.25"): "operator",
		},
	}
	for a, want := range map[string]string{
		"10.0.1.1":  "IP 10.0.1.1 has a dynamic entry in the pool of node n, so that any pod may be using it; the controller removes that entry when a FixedIP reserves the IP and no pod uses it; otherwise request an address nearer to the top of the node's subnet",
		"10.0.1.2":  "",
		"10.0.1.3":  "IP 10.0.1.3 on node n belongs to a pod of another namespace; request another address; this one becomes available when it has been released and its cooldown has ended",
		"10.0.1.4":  `IP 10.0.1.4 on node n is reserved for the node itself (router); request another address`,
		"10.0.1.5":  `IP 10.0.1.5 on node n has a pool entry whose owner "operator" is not a pod; request another address`,
		"10.0.1.6":  "IP 10.0.1.6 on node n has been cooling down since 1970-01-01T00:16:40Z; it becomes available when the cooldown is over and the Cilium agent has confirmed that no pod uses it",
		"10.0.1.7":  "IP 10.0.1.7 of node n has moved to node m, or is about to",
		"10.0.1.8":  "IP 10.0.1.8 of node n belongs to a pod of another namespace and has moved to another node, or is about to; request another address; this one becomes available when it has been released and its cooldown has ended",
		"10.0.1.9":  "IP 10.0.1.9 on node n belongs to pod db/other-0; request another address; this one becomes available when it has been released and its cooldown has ended",
		"10.0.1.10": "IP 10.0.1.10 of node n has moved to another node, or is about to; request another address; this one becomes available when it has been released and its cooldown has ended",
		"10.0.1.11": "IP 10.0.1.11 of node n has moved to another node, or is about to",
		"10.0.1.20": "IP 10.0.1.20 on node n is still in use by pod db/other-1; it becomes available when no pod has it and the Cilium agent no longer reports it as used",
		"10.0.1.21": "",
		"10.0.1.22": "IP 10.0.1.22 on node n is still in use by a pod of another namespace; it becomes available when no pod has it and the Cilium agent no longer reports it as used",
		"10.0.1.23": "IP 10.0.1.23 on node n is still in use by an unknown pod; it becomes available when no pod has it and the Cilium agent no longer reports it as used",
		"10.0.1.24": "IP 10.0.1.24 on node n is still in use by the node itself (router); it becomes available when no pod has it and the Cilium agent no longer reports it as used",
		"10.0.1.25": `IP 10.0.1.25 on node n is still in use by "operator"; it becomes available when no pod has it and the Cilium agent no longer reports it as used`,
		"10.0.1.30": "",
		"10.0.2.1":  "IP 10.0.2.1 is not in the subnets of node n (10.0.1.0/24); it becomes available when a node has subnets that contain it and do not overlap those of other nodes",
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
	for _, c := range []struct {
		blocker pool.Blocker
		want    string
	}{
		{pool.Blocker{Reason: pool.SubnetNotFound, NoSubnet: true}, "IP 10.0.1.30 is in no node's subnet; it becomes available when a node gets a subnet that contains it"},
		{pool.Blocker{Reason: pool.SubnetNotFound}, "IP 10.0.1.30 is in no node's subnet, or the subnets of its node overlap those of another node; it becomes available when a node has subnets that contain it and do not overlap those of other nodes"},
		{pool.Blocker{Reason: pool.InUseByPod, Node: "n", Who: "(unknown)"}, "IP 10.0.1.30 on node n is still in use by an unknown pod; it becomes available when no pod has it and the Cilium agent no longer reports it as used"},
		{pool.Blocker{Reason: pool.InUseByPod, Node: "n", Who: "db/mysql-0"}, "IP 10.0.1.30 on node n is still in use by the former pod db/mysql-0; it becomes available when no pod has it and the Cilium agent no longer reports it as used"},
	} {
		c.blocker.Addr, c.blocker.Requester = addr("10.0.1.30"), "db/mysql-0"
		if got := c.blocker.Message(); got != c.want {
			t.Errorf("got message: %s\nwant: %s", got, c.want)
		}
	}
	n.Unreported = true
	for a, reason := range map[string]pool.Reason{"10.0.1.2": "", "10.0.1.1": pool.DynamicEntry, "10.0.1.20": pool.InUseByPod, "10.0.1.30": pool.NotReported} {
		if b := n.Blocker(addr(a), "db/mysql-0", nil); (b == nil) != (reason == "") || b != nil && b.Reason != reason {
			t.Errorf("%s before the agent has reported: got Blocker %v, want reason %q (empty: no Blocker)", a, b, reason)
		}
	}
	if b := n.OtherAddressOf("db/mysql-0", []netip.Addr{addr("10.0.1.30")}); b == nil || b.Message() != "the pool of node n already has IP 10.0.1.2 for pod db/mysql-0, which can't have IP 10.0.1.30 there as well; the controller releases IP 10.0.1.2 when no pod needs it; delete the pod if it runs with IP 10.0.1.2" {
		t.Errorf("OtherAddressOf: got Blocker %v, want one that names 10.0.1.2 and 10.0.1.30", b)
	}
}
