// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedips

import (
	"context"
	"fmt"
	"maps"
	"sync"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
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
	informer, err := watches.GetInformer(ctx, &v1alpha1.FixedIP{}, cache.BlockUntilSynced(false))
	if err == nil {
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { p.change(nil, obj) },
			UpdateFunc: p.change,
			DeleteFunc: p.gone,
		})
	}
	if err != nil {
		return nil, fmt.Errorf("watch FixedIPs: %w", err)
	}
	return p, nil
}

func (p *Phases) change(before, after any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if fip, ok := before.(*v1alpha1.FixedIP); ok {
		p.counts[fip.Status.Phase]--
	}
	if fip, ok := after.(*v1alpha1.FixedIP); ok {
		p.counts[fip.Status.Phase]++
	}
}

func (p *Phases) gone(obj any) {
	if tombstone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	p.change(obj, nil)
}

// Counts returns the current counts.
func (p *Phases) Counts() map[v1alpha1.Phase]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}
