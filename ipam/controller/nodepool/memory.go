// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"maps"
	"net/netip"
	"time"

	"fixedip.io/fixedip/ipam/core/pool"
)

// memory is the state of one node that the controller stores in memory only: a replica that takes over starts without it.
type memory struct {
	// uid is the UID of the CiliumNode. A CiliumNode that is created again has a memory of its own.
	uid string
	// unreported is the time at which the CiliumNode was first seen with a pool while pool.NodePool.Unreported is true; zero if
	// the CiliumNode has no pool or Unreported is false.
	unreported time.Time
	// withdrawals counts the writes that this process has decided. withdrawn contains, for each withdrawn address, the count at
	// its last withdrawal: an answer of the agent about an earlier withdrawal of an address proves nothing, because a pod may
	// have had the address in between. Key: the address of a withdrawn entry.
	withdrawals uint64
	withdrawn   map[netip.Addr]uint64
	// stripped is true after hasStripped. The controller writes the CiliumNode only once for the sole purpose of removing its
	// managedFields: if another client uses server-side apply, the fields return, and the writes would never end.
	stripped bool
}

// remember returns the memory of a node. It creates one if there is none for this CiliumNode. The caller must hold mu.
func (r *Reconciler) remember(n pool.NodePool) *memory {
	m := r.nodes[n.Name]
	if m == nil || m.uid != n.UID {
		m = &memory{uid: n.UID, withdrawn: map[netip.Addr]uint64{}}
		if r.nodes == nil {
			r.nodes = map[string]*memory{}
		}
		r.nodes[n.Name] = m
	}
	return m
}

// withdrawing records the addresses that edits of n withdraw, and forgets the addresses whose entries in n are not
// withdrawn. Call it before the write.
func (r *Reconciler) withdrawing(n pool.NodePool, edits []pool.EntryChange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.remember(n)
	m.withdrawals++
	maps.DeleteFunc(m.withdrawn, func(a netip.Addr, _ uint64) bool { return !n.Entries[a].IsWithdrawn() })
	for _, e := range edits {
		if e.To != nil && e.To.IsWithdrawn() {
			m.withdrawn[e.Addr] = m.withdrawals
		}
	}
}

// withdrawal returns the number of the last withdrawal of an address by this process; 0 if there was none.
func (r *Reconciler) withdrawal(n pool.NodePool, a netip.Addr) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.remember(n).withdrawn[a]
}

// shouldStrip reports whether the managedFields of a CiliumNode have to be removed.
func (r *Reconciler) shouldStrip(n pool.NodePool) bool {
	if !r.StripManagedFields || !n.Tracked {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.remember(n).stripped
}

// hasStripped records that the managedFields of a CiliumNode were removed.
func (r *Reconciler) hasStripped(n pool.NodePool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remember(n).stripped = true
}
