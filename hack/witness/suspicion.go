package witness

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// suspicion is a promise that is broken as far as seen. It is not, if the FixedIP turns out to have been
// deleted, or asked to go, before: the watches of two kinds are not in step.
//
// Whoever is bound while his former address is being taken back may still count on it: the scheduler sees
// what stands, a moment late. He gets another one, and nobody else can have had either.
type suspicion struct {
	text string
	// bound is the version in which the pod was bound, and seen the one in which a promise looks broken: of the
	// pod that runs, or of the CiliumNode with the late claim.
	bound, seen uint64
	// record is the FixedIP that promises; empty: none did yet.
	record types.UID
	// key and node are namespace/name of the pod, and where it was bound.
	key, node string
}

// promise is what a FixedIP keeps for its pod.
type promise struct {
	ips    string
	record types.UID
}

// farewell is the version in which a FixedIP was first seen asked to go.
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

// cleared tells whether a suspect was bound while his address was being taken back: its FixedIP had been asked to
// go, and the entry that named him on his node then was taken before anything looked broken.
func (w *Witness) cleared(s suspicion) bool {
	return slices.ContainsFunc(w.farewells[s.key], func(f farewell) bool {
		return f.asked < s.bound && (s.record == "" || f.record == s.record) && w.history.taken(s.node, s.key, f.asked, s.seen)
	})
}

// suspects are the suspicions that nothing has cleared, in words: those by pod, and then claims that came
// after their binds.
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
