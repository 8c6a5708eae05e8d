// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"testing"

	"fixedip.io/fixedip/ipam/core/pool"
)

// TestOffered checks which addresses a CiliumNode offers, and that a CiliumNode without a pool offers none. The field NoPool of
// a result cannot replace that check: if the agent answers before await reads the CiliumNode, NoPool is false although the
// probe was written while the CiliumNode had no pool.
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
