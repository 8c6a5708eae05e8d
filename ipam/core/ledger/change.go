// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"maps"
	"net/netip"
	"slices"

	"fixedip.io/fixedip/ipam/core/pool"
)

// subnetChanges returns the subnets that only one of two versions of a pool has.
func subnetChanges(before, after []netip.Prefix) []netip.Prefix {
	var changed []netip.Prefix
	for _, pair := range [][2][]netip.Prefix{{before, after}, {after, before}} {
		for _, s := range pair[0] {
			if !slices.Contains(pair[1], s) {
				changed = append(changed, s)
			}
		}
	}
	return changed
}

// freedSince returns how many addresses became free, in the family in which more did.
func (n *node) freedSince(before [2]int64) int {
	now := n.rooms()
	return int(max(0, now[0]-before[0], now[1]-before[1]))
}

// reports compares what an agent says in two versions of a pool. fixed is true if that differs for an address that is
// not dynamic; workloads and owners are those that such addresses are kept for, sorted.
func reports(before, after pool.NodePool) (fixed bool, workloads, owners []string) {
	found, pods := map[string]bool{}, map[string]bool{}
	note := func(a netip.Addr) {
		e, exists := after.Entries[a]
		if exists && e.Kind == pool.Dynamic {
			return
		}
		fixed = true
		if e.Workload != "" {
			found[e.Workload] = true
		}
		if e.Kind == pool.Owned {
			pods[e.Owner] = true
		}
	}
	differs(before.Used, after.Used, note)
	differs(before.Handshakes, after.Handshakes, note)
	return fixed, slices.Sorted(maps.Keys(found)), slices.Sorted(maps.Keys(pods))
}

// differs calls note with the keys whose values differ.
func differs[V comparable](before, after map[netip.Addr]V, note func(netip.Addr)) {
	for a, was := range before {
		if now, ok := after[a]; !ok || now != was {
			note(a)
		}
	}
	for a := range after {
		if _, ok := before[a]; !ok {
			note(a)
		}
	}
}
