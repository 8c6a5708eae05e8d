// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"

	"fixedip.io/fixedip/ipam/core/pool"
)

// NodeChange is the difference between two versions of a node's pool. The zero value is no difference.
type NodeChange struct {
	// Appeared is true if the node was not known before.
	Appeared bool
	// Freed is how many addresses became free for a claim, in the family in which more did.
	Freed int
	// Subnets are those that were added or removed.
	Subnets []netip.Prefix
	// Entries is true if an entry was added, removed or changed.
	Entries bool
	// Status is true if the addresses in use, the release handshakes or the probes changed.
	Status bool
	// Fixed is true if that concerns an address that is not dynamic, or if the agent has acknowledged an entry.
	Fixed bool
	// Owners are the pods that an added, removed or changed entry names as owner or in a marker, sorted.
	Owners []string
	// Workloads are those that the entries of these pods name, sorted.
	Workloads []string
	// Reported and ReportedOwners are the workloads and the pods with an address whose use changed, sorted.
	Reported, ReportedOwners []string
}

// Any reports whether anything changed that a decision can depend on.
func (c NodeChange) Any() bool {
	return c.Appeared || c.Freed > 0 || len(c.Subnets) > 0 || c.Entries || c.Status || len(c.Owners) > 0
}

// sameStatus reports whether two versions of a pool have the same addresses in use, release handshakes and probes.
func sameStatus(a, b pool.NodePool) bool {
	return maps.Equal(a.Used, b.Used) && maps.Equal(a.Handshakes, b.Handshakes) && slices.Equal(a.Probes, b.Probes)
}

// entryChanges returns the pods that a changed entry names, and their workloads.
func entryChanges(before, after pool.NodePool) (owners, workloads []string) {
	pods, found := sets.New[string](), sets.New[string]()
	note := func(from, in pool.NodePool) {
		for a, e := range from.Entries {
			owner, other := e.NamesPod(), in.Entries[a]
			if owner == "" || other == e || e.Kind == pool.Owned && other.OwnedBy(owner) {
				continue
			}
			pods.Insert(owner)
			if e.Workload != "" {
				found.Insert(e.Workload)
			}
		}
	}
	note(before, after)
	note(after, before)
	return sets.List(pods), sets.List(found)
}

// reports compares what an agent reports in two versions of a pool. fixed is true if that differs for an address that is
// not dynamic; workloads and owners are those of the entries of such addresses, sorted.
func reports(before, after pool.NodePool) (fixed bool, workloads, owners []string) {
	found, pods := sets.New[string](), sets.New[string]()
	note := func(a netip.Addr) {
		e, exists := after.Entries[a]
		if exists && e.Kind == pool.Dynamic {
			return
		}
		fixed = true
		if e.Workload != "" {
			found.Insert(e.Workload)
		}
		if e.Kind == pool.Owned {
			pods.Insert(e.Owner)
		}
	}
	differs(before.Used, after.Used, note)
	differs(before.Handshakes, after.Handshakes, note)
	return fixed, sets.List(found), sets.List(pods)
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
