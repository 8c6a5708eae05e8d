// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"cmp"
	"net/netip"
	"slices"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Slots returns the states of the slots of a workload, from its FixedIPs and its entries. The caller adds what is
// known of the pods and the workload.
func Slots(records []v1alpha1.FixedIP, entries []ledger.Slot) []State {
	var slots []State
	taken := make([]bool, len(entries))
	for i := range records {
		s := State{Slot: true, Record: &records[i], Holder: records[i].Spec.PodName}
		for j, e := range entries {
			if !taken[j] && slices.ContainsFunc(address.Strings(e.Addrs), func(a string) bool { return slices.Contains(s.Record.Spec.IPs, a) }) {
				taken[j], s.Held, s.Holder = true, []ledger.NodeAddresses{e.NodeAddresses}, podOf(e.Owner)
				break
			}
		}
		slots = append(slots, s)
	}
	for j, e := range entries {
		if !taken[j] {
			slots = append(slots, State{Slot: true, Held: []ledger.NodeAddresses{e.NodeAddresses}, Holder: podOf(e.Owner)})
		}
	}
	return slots
}

// Surplus reports which of the slots a workload has beyond its replicas and the pods that an update may add to these:
// without the latter an update would release an address and claim another with each pod. Only slots whose pods are
// gone are surplus: first those that are about to be released already, then those with the lowest addresses, which
// were claimed last. A workload without a number of replicas needs all slots.
func Surplus(slots []State, w identity.Workload) []bool {
	surplus := make([]bool, len(slots))
	if w.Replicas == nil {
		return surplus
	}
	var gone []int
	standing := 0
	for i, s := range slots {
		if s.Record != nil && s.Record.DeletionTimestamp != nil {
			continue
		}
		standing++
		if s.Pod == nil {
			gone = append(gone, i)
		}
	}
	slices.SortFunc(gone, func(x, y int) int {
		return cmp.Or(cmp.Compare(slots[x].expiryOrder(), slots[y].expiryOrder()), slots[x].firstAddress().Compare(slots[y].firstAddress()))
	})
	for _, i := range gone[:max(0, min(len(gone), standing-int(*w.Replicas)-int(w.Surge)))] {
		surplus[i] = true
	}
	return surplus
}

// expiryOrder orders slots that are about to be released before the others.
func (s State) expiryOrder() int {
	if s.Record != nil && s.Record.Status.ExpiresAt != nil {
		return 0
	}
	return 1
}

// firstAddress returns the lowest address of a slot.
func (s State) firstAddress() netip.Addr {
	if len(s.Held) > 0 {
		return s.Held[0].Addrs[0]
	}
	if s.Record != nil && len(recorded(s.Record)) > 0 {
		return recorded(s.Record)[0]
	}
	return netip.Addr{}
}

func podOf(owner string) string {
	_, name, _ := pool.SplitOwnerKey(owner)
	return name
}
