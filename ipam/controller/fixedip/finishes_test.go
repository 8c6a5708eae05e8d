// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"fmt"
	"testing"

	ctrl "sigs.k8s.io/controller-runtime"

	"fixedip.io/fixedip/ipam/controller/internal/source"
)

// TestFinishes checks that requests wait in line: each of them gets its turn once and in order, although begin is called twice
// for it before its turn. At most parallelFinishes requests remove a finalizer at the same time.
func TestFinishes(t *testing.T) {
	var f finishes
	request := func(i int) ctrl.Request { return source.ForOwner(fmt.Sprintf("db/web-%d", i))[0] }
	const all = 3 * parallelFinishes
	for i := range parallelFinishes {
		if !f.begin(request(i)) {
			t.Fatalf("request %d waits, although only %d others run", i, f.running)
		}
	}
	for range 2 {
		for i := parallelFinishes; i < all; i++ {
			if f.begin(request(i)) {
				t.Fatalf("request %d began while %d others ran", i, f.running)
			}
		}
	}
	for i := parallelFinishes; i < all; i++ {
		next := f.end()
		if len(next) != 1 || next[0] != request(i) || !f.begin(next[0]) {
			t.Fatalf("after the end of a removal: got the next requests %v, want %v, which may begin", next, request(i))
		}
	}
	for range parallelFinishes {
		if next := f.end(); len(next) > 0 {
			t.Errorf("got the next requests %v, want none", next)
		}
	}
	if f.running != 0 || len(f.waiting)+len(f.inLine) != 0 {
		t.Errorf("got %d running and %d waiting requests at the end, want none", f.running, len(f.waiting))
	}
}
