// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"slices"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/cache"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/ipam/store/watch"
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

// follow makes the events of NodeSubnets clear the stored list, and then call changed with the versions before and after the
// event; one of them is nil if the NodeSubnet was created or deleted. The events must start a reconcile through changed only:
// a separate event handler could start the reconcile before the list is cleared, and the reconcile would decide from the old
// list that there is nothing to do.
func (l *listCache) follow(ctx context.Context, c cache.Cache, changed func(before, after *v1alpha1.NodeSubnet)) error {
	if _, err := watch.Objects(ctx, c, &v1alpha1.NodeSubnet{}, l.clearing(changed)); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.following = true
	return nil
}

// clearing returns a function that clears the stored list and then calls changed.
func (l *listCache) clearing(changed func(before, after *v1alpha1.NodeSubnet)) func(before, after *v1alpha1.NodeSubnet) {
	return func(before, after *v1alpha1.NodeSubnet) {
		l.clear()
		changed(before, after)
	}
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
