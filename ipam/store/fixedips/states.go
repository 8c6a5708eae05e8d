// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedips

import (
	"context"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/conformance"
	"fixedip.io/fixedip/ipam/core/reservation"
	"fixedip.io/fixedip/ipam/store/watch"
)

// States counts FixedIPs by their state, and remembers those that are being deleted and those whose pods have a mismatch.
type States struct {
	mu sync.Mutex
	// counts contains the number of FixedIPs, never negative. Key: a state.
	counts map[reservation.State]int
	// releasing contains the time at which the deletion of each FixedIP in the state Releasing began. Key: its UID.
	releasing map[types.UID]time.Time
	// mismatched contains the mismatches that conformance.Mismatch reports. Key: the UID of the FixedIP.
	mismatched map[types.UID]mismatch
}

// mismatch is the mismatch of one pod.
type mismatch struct {
	// reason is the last reason, one of conformance.MismatchReasons.
	reason string
	pod    types.UID
	// since is the time at which the first known reason for this pod was written.
	since time.Time
}

// CountStates counts the FixedIPs of an informer. Call it before the informer is started.
func CountStates(ctx context.Context, caches cache.Cache) (*States, error) {
	p := &States{counts: map[reservation.State]int{}, releasing: map[types.UID]time.Time{}, mismatched: map[types.UID]mismatch{}}
	_, err := watch.Objects(ctx, caches, &v1alpha1.FixedIP{}, p.change)
	return p, err
}

func (p *States) change(before, after *v1alpha1.FixedIP) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var known mismatch
	if before != nil {
		p.counts[reservation.StateOf(before)]--
		known = p.mismatched[before.UID]
		delete(p.releasing, before.UID)
		delete(p.mismatched, before.UID)
	}
	if after == nil {
		return
	}
	p.counts[reservation.StateOf(after)]++
	if after.DeletionTimestamp != nil {
		p.releasing[after.UID] = after.DeletionTimestamp.Time
	}
	if reason := conformance.Mismatch(after); reason != "" {
		m := mismatch{reason: reason, pod: after.Status.PodUID, since: conformance.MismatchSince(after)}
		if known.pod == m.pod && !known.since.IsZero() {
			// Each new reason or message changes lastTransitionTime, but the pod has had the mismatch since the first one.
			m.since = known.since
		}
		p.mismatched[after.UID] = m
	}
}

// Counts returns the number of FixedIPs in each state. Key: the state.
func (p *States) Counts() map[reservation.State]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}

// Mismatched returns the number of FixedIPs whose running pods have a mismatch, and the time since which the pod with the
// oldest mismatch has had it; the zero time if there is none. Key: the reason, one of conformance.MismatchReasons.
func (p *States) Mismatched() (counts map[string]int, oldest time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	counts = map[string]int{}
	for _, m := range p.mismatched {
		counts[m.reason]++
		oldest = earlier(oldest, m.since)
	}
	return counts, oldest
}

// OldestRelease returns the earliest time at which the deletion of an existing FixedIP began; the zero time if no FixedIP is
// being deleted.
func (p *States) OldestRelease() (oldest time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, at := range p.releasing {
		oldest = earlier(oldest, at)
	}
	return oldest
}

// earlier returns the earlier of two times. The zero time means that there is none yet.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
