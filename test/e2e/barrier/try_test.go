// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"testing"

	"fixedip.io/fixedip/ipam/core/pool"
)

// TestOffered checks that a CiliumNode without a pool offers no address. The agent can answer a barrier so early that the lab
// does not see the CiliumNode without its pool before the answer.
func TestOffered(t *testing.T) {
	addr := netip.MustParseAddr("10.240.4.8")
	for name, row := range map[string]struct {
		node pool.NodePool
		want bool
	}{
		"the entry is withdrawn":              {pool.NodePool{HasPool: true, Entries: map[netip.Addr]pool.Entry{addr: pool.ForOwner(withdrawnOwner)}}, false},
		"the entry is dynamic":                {pool.NodePool{HasPool: true, Entries: map[netip.Addr]pool.Entry{addr: {}}}, true},
		"the entry is missing":                {pool.NodePool{HasPool: true}, true},
		"the CiliumNode does not have a pool": {pool.NodePool{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := offered(row.node, addr); got != row.want {
				t.Errorf("offered returns %t, want %t", got, row.want)
			}
		})
	}
}
