// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"net/netip"
	"slices"
	"time"

	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/pool"
)

// counted tells whether a pod on the node has an address, or may be given it back.
func (d *duty) counted(n pool.Node) func(netip.Addr) bool {
	return func(a netip.Addr) bool { return d.now.Before(d.back(n.Entries[a])) || d.held(a) }
}

// back is until when an address is kept for a pod on the node to be given back: one of the name that it was taken
// from waits for its own there (see adoptReconciler.mend), which has been looked at after two sweeps. Zero: there is
// none. A pod that has opted out since, or that asks for another address, is not given it back: where the node has no
// other left, each of the two would wait for the other.
func (d *duty) back(e pool.Entry) time.Time {
	if e.Kind != pool.Cooldown || e.Pod == "" || !slices.Contains(d.counting, e.Pod) {
		return time.Time{}
	}
	return e.SinceTime().Add(2 * source.ResyncPeriod)
}

// lastBack is when the next address is kept no longer to be given back; zero: none is.
func (d *duty) lastBack(n pool.Node) (next time.Time) {
	for _, e := range n.Entries {
		if until := d.back(e); d.now.Before(until) {
			next = sooner(next, until)
		}
	}
	return next
}
