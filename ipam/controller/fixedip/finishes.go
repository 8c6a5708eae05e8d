// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"slices"
	"sync"

	ctrl "sigs.k8s.io/controller-runtime"
)

// finishes limits the number of finalizers that are removed at the same time to parallelFinishes. The other requests wait in
// line. They are not retried at short intervals: if a workload with thousands of pods is deleted, the retries would need
// more CPU time than the releases.
type finishes struct {
	mu      sync.Mutex
	running int
	// waiting are the requests for which begin returned false, in order, without duplicates.
	waiting []ctrl.Request
	// inLine contains the same requests as waiting.
	inLine map[ctrl.Request]bool
}

// begin reports whether a request may remove a finalizer now; the caller must then call end. Otherwise the request waits in
// line.
func (f *finishes) begin(r ctrl.Request) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running < parallelFinishes {
		f.running++
		return true
	}
	if !f.inLine[r] {
		if f.inLine == nil {
			f.inLine = map[ctrl.Request]bool{}
		}
		f.waiting, f.inLine[r] = append(f.waiting, r), true
	}
	return false
}

// end ends a removal. It returns the requests that have to be queued now: the first ones in line, as many as may remove a
// finalizer. If one of them no longer has a finalizer to remove, its place stays empty until the next call of end, or until
// another request in line is tried again after whileFinishing.
func (f *finishes) end() []ctrl.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running--
	n := min(len(f.waiting), parallelFinishes-f.running)
	next := slices.Clone(f.waiting[:n])
	f.waiting = f.waiting[n:]
	for _, r := range next {
		delete(f.inLine, r)
	}
	return next
}
