// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"fixedip.io/fixedip/ipam/core/pool"
)

// TestCheckBinding checks the binding invariant (principle 4 in docs/design/architecture.md), and that a planned address
// must not be used by another pod.
func TestCheckBinding(t *testing.T) {
	const owner = "db/mysql-0"
	mine := pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")
	v4, other, v6 := addr("10.0.1.9"), addr("10.0.1.10"), addr("fd00::9")
	for name, c := range map[string]struct {
		entries map[netip.Addr]pool.Entry
		used    map[netip.Addr]string
		planned []netip.Addr
		want    string
	}{
		"a pod without a fixed address":                             {},
		"a pod without a fixed address, and entries of other pods":  {entries: map[netip.Addr]pool.Entry{v4: {}, other: pool.ForOwner("db/mysql-1")}},
		"a pod without a fixed address, and an entry with its name": {entries: map[netip.Addr]pool.Entry{v4: mine}, want: "the pool of node n has an entry for pod db/mysql-0 that the pod should not have: IP 10.0.1.9"},
		"an entry of an unreserved pod on a strict node":            {entries: map[netip.Addr]pool.Entry{v4: pool.UnreservedEntry("db", "mysql-0")}, planned: []netip.Addr{v4}},
		"exactly the planned entries":                               {entries: map[netip.Addr]pool.Entry{v4: mine, v6: mine}, planned: []netip.Addr{v6, v4}},
		"no entry for the planned address":                          {planned: []netip.Addr{v4}, want: "the pool of node n lacks an entry for pod db/mysql-0: IP 10.0.1.9"},
		"an entry for one of two planned addresses":                 {entries: map[netip.Addr]pool.Entry{v4: mine}, planned: []netip.Addr{v4, v6}, want: "the pool of node n lacks an entry for pod db/mysql-0: IP fd00::9"},
		"no entry for either of two planned addresses":              {planned: []netip.Addr{v4, v6}, want: "the pool of node n lacks entries for pod db/mysql-0: IP 10.0.1.9, fd00::9"},
		"a pod without a fixed address, two entries with its name":  {entries: map[netip.Addr]pool.Entry{v4: mine, v6: mine}, want: "the pool of node n has entries for pod db/mysql-0 that the pod should not have: IP 10.0.1.9, fd00::9"},
		"an additional entry of the same family":                    {entries: map[netip.Addr]pool.Entry{v4: mine, other: mine}, planned: []netip.Addr{v4}, want: "the pool of node n has an entry for pod db/mysql-0 that the pod should not have: IP 10.0.1.10"},
		"an additional entry of another family":                     {entries: map[netip.Addr]pool.Entry{v4: mine, v6: mine}, planned: []netip.Addr{v4}, want: "the pool of node n has an entry for pod db/mysql-0 that the pod should not have: IP fd00::9"},
		"an entry for another address":                              {entries: map[netip.Addr]pool.Entry{other: mine}, planned: []netip.Addr{v4}, want: "the pool of node n has an entry for pod db/mysql-0 that the pod should not have: IP 10.0.1.10"},
		"the planned address cools down":                            {entries: map[netip.Addr]pool.Entry{v4: pool.CooldownEntry(owner, time.Unix(1, 0))}, planned: []netip.Addr{v4}, want: "the pool of node n lacks an entry for pod db/mysql-0: IP 10.0.1.9"},
		"the pod uses the planned address":                          {entries: map[netip.Addr]pool.Entry{v4: mine}, used: map[netip.Addr]string{v4: owner}, planned: []netip.Addr{v4}},
		"another pod of the namespace uses the planned address":     {entries: map[netip.Addr]pool.Entry{v4: mine}, used: map[netip.Addr]string{v4: "db/web-0"}, planned: []netip.Addr{v4}, want: "the Cilium agent of node n reports IP 10.0.1.9 as used by pod db/web-0"},
		"a pod of another namespace uses the planned address":       {entries: map[netip.Addr]pool.Entry{v4: mine}, used: map[netip.Addr]string{v4: "shop/web-0"}, planned: []netip.Addr{v4}, want: "the Cilium agent of node n reports IP 10.0.1.9 as used by a pod of another namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := (pool.NodePool{Name: "n", Entries: c.entries, Used: c.used}).CheckBinding(owner, c.planned); err != nil {
				got = err.Error()
				if !errors.Is(err, pool.ErrTaken) {
					t.Errorf("got error %v, want one that matches ErrTaken", err)
				}
			}
			if got != c.want {
				t.Errorf("got error %q, want %q", got, c.want)
			}
		})
	}
}
