// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"iter"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/plugins/fixedip/inuse"
)

// fakeInUse answers from what a test sets. The zero value: all addresses are free, and all pods are gone.
type fakeInUse struct {
	fence pool.Fence
	// living and leaving are pods, as pool entries name them.
	living, leaving []string
	// formerUntil is when former pods have stopped.
	formerUntil time.Time
}

func (f fakeInUse) ByOthers(inuse.Subject, iter.Seq[*corev1.Pod]) inuse.Verdict {
	return inuse.Verdict{}
}
func (f fakeInUse) Unacknowledged(inuse.Subject) inuse.Verdict               { return inuse.Verdict{} }
func (f fakeInUse) ByPredecessor(inuse.Subject, bool) inuse.Verdict          { return inuse.Verdict{} }
func (f fakeInUse) Fence(context.Context, inuse.Subject) (pool.Fence, error) { return f.fence, nil }
func (f fakeInUse) FormerGone(context.Context, string) error                 { return nil }

func (f fakeInUse) Lives(owner string) (lives, leaves bool) {
	return slices.Contains(f.living, owner), slices.Contains(f.leaving, owner)
}

func (f fakeInUse) FormerUntil(string, string, []netip.Addr, *v1alpha1.Departure) time.Time {
	return f.formerUntil
}
