// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"fmt"
	"slices"
	"sync"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

// listCache stores the decoded list of all NodeSubnets until one of them changes. Without it, the controller would decode
// 25 million NodeSubnets when it starts in a cluster of 5,000 nodes, because the decision for one node needs all of them.
//
// The zero value stores nothing: get then reads the list each time.
type listCache struct {
	mu sync.Mutex
	// following is true once the events of NodeSubnets clear the stored list.
	following bool
	// changes is the number of events so far. A list that was read before an event is not stored after it.
	changes uint64
	// list is the stored list. It is valid only if stored is true.
	list   []subnetplan.Subnet
	stored bool
}

// follow makes the events of NodeSubnets clear the stored list. An informer changes its store before it sends the event, so that
// a stored list is older than the store only while an event is under way.
func (l *listCache) follow(ctx context.Context, c cache.Cache) error {
	informer, err := c.GetInformer(ctx, &v1alpha1.NodeSubnet{})
	if err != nil {
		return fmt.Errorf("get the informer of NodeSubnets: %w", err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { l.clear() },
		UpdateFunc: func(_, _ any) { l.clear() },
		DeleteFunc: func(any) { l.clear() },
	})
	if err != nil {
		return fmt.Errorf("watch NodeSubnets: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.following = true
	return nil
}

// get returns the stored list, or the result of read.
func (l *listCache) get(read func() ([]subnetplan.Subnet, error)) ([]subnetplan.Subnet, error) {
	l.mu.Lock()
	list, stored, before := l.list, l.stored, l.changes
	l.mu.Unlock()
	if stored {
		return list, nil
	}
	list, err := read()
	if err != nil {
		return nil, err
	}
	// A caller that appends to the list gets a copy.
	list = slices.Clip(list)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.following && l.changes == before {
		l.list, l.stored = list, true
	}
	return list, nil
}

func (l *listCache) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changes++
	l.list, l.stored = nil, false
}
