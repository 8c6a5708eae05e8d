// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Slot is a slot of a workload as the pools have it: the addresses of one holder on one node.
type Slot struct {
	// Owner is the holder as pool entries name it. The pod may be long gone.
	Owner string
	NodeAddresses
	// User is the pod that uses one of the addresses, as the agent reports it; empty: none.
	User string
	// Claimed is true if a claim in flight has one of the addresses.
	Claimed bool
}

// Slots returns the slots of a workload (a pool.WorkloadKey), by node and address.
func (l *Ledger) Slots(workload string) []Slot {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var found []Slot
	for owner := range l.workloads[workload] {
		for _, h := range l.owners[owner] {
			n, ok := l.node(h.Node)
			if !ok {
				continue
			}
			s := Slot{Owner: owner, NodeAddresses: NodeAddresses{Node: h.Node}}
			for _, a := range h.Addrs {
				if n.pool.Entries[a].Workload != workload {
					continue
				}
				s.Addrs = append(s.Addrs, a)
				if user, used := n.pool.Used[a]; used {
					s.User = user
				}
				if _, assumed := n.assumed[a]; assumed {
					s.Claimed = true
				}
			}
			if len(s.Addrs) > 0 {
				found = append(found, s)
			}
		}
	}
	slices.SortFunc(found, func(x, y Slot) int {
		return cmp.Or(strings.Compare(x.Node, y.Node), x.Addrs[0].Compare(y.Addrs[0]))
	})
	return found
}

// Workloads returns all workloads that entries of pools name, sorted.
func (l *Ledger) Workloads() []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.Sorted(maps.Keys(l.workloads))
}
