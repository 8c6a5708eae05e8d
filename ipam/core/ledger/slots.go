// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/request"
)

// Slot is one place among those of a workload without stable pod names, as the pools have it: the
// addresses that one holder has on one node.
type Slot struct {
	// Owner is the holder, a pod that may be long gone, as pool entries name it.
	Owner string
	NodeAddresses
	// User is who the agent says uses one of the addresses; empty where nobody does.
	User string
	// Claimed: a claim in flight has one of the addresses.
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
		if c := strings.Compare(x.Node, y.Node); c != 0 {
			return c
		}
		return x.Addrs[0].Compare(y.Addrs[0])
	})
	return found
}

// Workloads are all that pool entries of pods name, sorted.
func (l *Ledger) Workloads() []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var all []string
	for resource := range l.workloads {
		all = append(all, resource)
	}
	slices.Sort(all)
	return all
}

// AssumeSlot decides for a pod the addresses of a slot whose holder is gone: those that it has on
// the node, and in a family that it lacks any, as a first claim would. That the holder is gone is
// for the caller to know. Of two pods the second is refused: the claim of the first is in the way.
func (l *Ledger) AssumeSlot(uid types.UID, owner, from, nodeName string, families []address.Family, addrs []netip.Addr) (Claim, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(uid)
	return l.assume(uid, Claim{Owner: owner, Node: nodeName, Addrs: slices.Clone(addrs), From: from}, families, request.Addresses{}, true)
}

// countWorkload adds to the number of entries that the owner of e has for its workload.
func (l *Ledger) countWorkload(e pool.Entry, more int) {
	if e.Workload == "" {
		return
	}
	owners := l.workloads[e.Workload]
	if owners == nil {
		owners = map[string]int{}
		l.workloads[e.Workload] = owners
	}
	if owners[e.Owner] += more; owners[e.Owner] == 0 {
		delete(owners, e.Owner)
	}
	if len(owners) == 0 {
		delete(l.workloads, e.Workload)
	}
}
