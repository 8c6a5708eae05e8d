// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// suspicion is an apparent violation. It is cleared if the pod was bound while its address was being released, because
// the deletion of its FixedIP had begun. The witness may see that deletion later than the violation, because watches of
// different kinds are not synchronized.
//
// A cleared suspicion is not a violation: the scheduler sees the state with a delay, so it may bind a pod to an address
// that is being released. The pod then gets another address, and neither of the two addresses can belong to another
// pod.
//
// Every deletion of the FixedIP counts, because the API does not show who requested it. The model in test/sim, which knows
// the author of each write, checks that the product deletes a FixedIP only for a reason.
type suspicion struct {
	text string
	// bound is the revision in which the pod was bound. seen is the revision of the apparent violation: of the running pod,
	// or of the CiliumNode with the late claim.
	bound, seen uint64
	// record is the UID of the FixedIP that reserves the address; empty if the pod was bound before its claim.
	record types.UID
	// key is the namespace/name of the pod, and node the node to which it was bound.
	key, node string
}

// promise is the reservation of a FixedIP: its addresses, separated by commas, and its UID.
type promise struct {
	ips    string
	record types.UID
}

// deletion is the UID of a FixedIP and the revision in which it was first seen with a deletionTimestamp.
type deletion struct {
	record   types.UID
	revision uint64
}

func (w *Witness) seeDeletion(fip *v1alpha1.FixedIP) {
	key := holder(fip)
	if fip.DeletionTimestamp == nil || slices.ContainsFunc(w.deletions[key], func(d deletion) bool { return d.record == fip.UID }) {
		return
	}
	w.deletions[key] = append(w.deletions[key], deletion{fip.UID, version(fip)})
}

// cleared reports whether the pod was bound while its address was being released. This is the case if the deletion of its
// FixedIP began before the bind, and if the pod lost an entry on its node between the start of that deletion and the apparent
// violation.
func (w *Witness) cleared(s suspicion) bool {
	return slices.ContainsFunc(w.deletions[s.key], func(d deletion) bool {
		return d.revision < s.bound && (s.record == "" || d.record == s.record) && w.history.taken(s.node, s.key, d.revision, s.seen)
	})
}

// suspects returns the texts of the suspicions that are not cleared: first those about addresses, sorted by pod, then those
// about pods that were bound before their claim.
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
