// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"slices"
	"sync"

	"github.com/google/btree"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/ipam/store/watch"
)

// listCache contains the decoded NodeSubnets as their events show them. Without it, the controller would decode 25 million
// NodeSubnets when it starts in a cluster of 5,000 nodes, because the decision for one node needs all of them.
//
// The zero value follows no events and contains nothing.
type listCache struct {
	// synced reports whether an event has arrived for each NodeSubnet that existed at the start; nil: no events are followed.
	synced func() bool

	mu sync.Mutex
	// subnets contains the NodeSubnets with a valid CIDR, sorted by name; nil: there was no event.
	subnets *btree.BTreeG[subnetplan.Subnet]
	// list contains the elements of subnets in their order; nil: they have changed since the last list was made.
	list []subnetplan.Subnet
}

// byName is the order of NodeSubnets by name.
func byName(x, y subnetplan.Subnet) bool { return x.Object.Name < y.Object.Name }

// follow makes the events of NodeSubnets change the list, and then call changed with the versions before and after the event;
// one of them is nil if the NodeSubnet was created or deleted. The events must start a reconcile through changed only: a separate
// event handler could start the reconcile before the list has changed, and the reconcile would decide from the old list that
// there is nothing to do.
func (l *listCache) follow(ctx context.Context, c cache.Cache, changed func(before, after *v1alpha1.NodeSubnet)) (err error) {
	l.synced, err = watch.Objects(ctx, c, &v1alpha1.NodeSubnet{}, l.applying(changed))
	return err
}

// applying returns a function that applies an event to the list and then calls changed.
func (l *listCache) applying(changed func(before, after *v1alpha1.NodeSubnet)) func(before, after *v1alpha1.NodeSubnet) {
	return func(before, after *v1alpha1.NodeSubnet) {
		l.apply(before, after)
		changed(before, after)
	}
}

func (l *listCache) apply(before, after *v1alpha1.NodeSubnet) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = nil
	if l.subnets == nil {
		l.subnets = btree.NewG(32, byName)
	}
	if before != nil {
		l.subnets.Delete(subnetplan.Subnet{Object: before})
	}
	if after == nil {
		return
	}
	if s, ok := subnetplan.FromNodeSubnet(after); ok {
		l.subnets.ReplaceOrInsert(s)
	}
}

// get returns all NodeSubnets, sorted by name. ok is false if no events are followed, or if not all NodeSubnets that existed at the
// start have arrived.
func (l *listCache) get() (list []subnetplan.Subnet, ok bool) {
	if l.synced == nil || !l.synced() {
		return nil, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.list == nil && l.subnets != nil {
		l.list = make([]subnetplan.Subnet, 0, l.subnets.Len())
		l.subnets.Ascend(func(s subnetplan.Subnet) bool {
			l.list = append(l.list, s)
			return true
		})
	}
	// A caller that appends to the list gets a copy.
	return slices.Clip(l.list), true
}
