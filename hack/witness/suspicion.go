// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// suspicion is an apparent violation. It is cleared if the FixedIP turns out to have been deleted before, because watches of
// two kinds are not synchronised.
//
// The scheduler sees the state with a delay, so it may bind a pod to an address that is being released. The pod then gets
// another address, and no other pod can have had either of the two.
type suspicion struct {
	text string
	// bound is the revision in which the pod was bound. seen is the revision of the apparent violation: of the running pod,
	// or of the CiliumNode with the late claim.
	bound, seen uint64
	// record is the UID of the FixedIP that reserves the address; empty if there was none yet.
	record types.UID
	// key is the namespace/name of the pod, and node the node to which it was bound.
	key, node string
}

// promise is the reservation of a FixedIP: its addresses, separated by commas, and its UID.
type promise struct {
	ips    string
	record types.UID
}

// farewell is the UID of a FixedIP and the revision in which it was first seen with a deletionTimestamp.
type farewell struct {
	record types.UID
	asked  uint64
}

func (w *Witness) seeFarewell(fip *v1alpha1.FixedIP) {
	key := holder(fip)
	if fip.DeletionTimestamp == nil || slices.ContainsFunc(w.farewells[key], func(f farewell) bool { return f.record == fip.UID }) {
		return
	}
	w.farewells[key] = append(w.farewells[key], farewell{fip.UID, version(fip)})
}

// cleared reports whether the pod was bound while its address was being released: its FixedIP was being deleted, and an
// entry that the pod owned on its node was released before the apparent violation.
func (w *Witness) cleared(s suspicion) bool {
	return slices.ContainsFunc(w.farewells[s.key], func(f farewell) bool {
		return f.asked < s.bound && (s.record == "" || f.record == s.record) && w.history.taken(s.node, s.key, f.asked, s.seen)
	})
}

// suspects returns the texts of the suspicions that are not cleared: first those about addresses, sorted by pod, then those
// about claims that followed their binds.
func (w *Witness) suspects() []string {
	var found []string
	for _, key := range slices.Sorted(maps.Keys(w.suspicions)) {
		if s := w.suspicions[key]; !w.cleared(s) {
			found = append(found, s.text)
		}
	}
	for _, s := range w.early {
		if !w.cleared(s) {
			found = append(found, s.text)
		}
	}
	return found
}
