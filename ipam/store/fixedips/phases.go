// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedips

import (
	"context"
	"maps"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/cache"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/store/watch"
)

// Phases counts FixedIPs by phase.
type Phases struct {
	mu sync.Mutex
	// counts contains the number of FixedIPs, never negative. Key: a phase.
	counts map[v1alpha1.Phase]int
}

// CountPhases counts the FixedIPs of an informer. Call it before the informer is started.
func CountPhases(ctx context.Context, watches cache.Cache) (*Phases, error) {
	p := &Phases{counts: map[v1alpha1.Phase]int{}}
	_, err := watch.Objects(ctx, watches, &v1alpha1.FixedIP{}, p.change)
	return p, err
}

func (p *Phases) change(before, after *v1alpha1.FixedIP) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if before != nil {
		p.counts[before.Status.Phase]--
	}
	if after != nil {
		p.counts[after.Status.Phase]++
	}
}

// Counts returns the current counts.
func (p *Phases) Counts() map[v1alpha1.Phase]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}
