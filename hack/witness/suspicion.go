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
	// pod is the version of the pod that is suspect, and bound the one in which it was bound.
	pod, bound uint64
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

// cleared tells whether a suspect was bound while his address was being taken back.
func (w *Witness) cleared(s suspicion) bool {
	return slices.ContainsFunc(w.farewells[s.key], func(f farewell) bool {
		if f.asked >= s.bound {
			return false
		}
		if s.record != "" {
			return f.record == s.record
		}
		return w.history.taken(s.node, s.key, f.asked)
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
