// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"net/netip"
	"reflect"
	"testing"

	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/request"
	"fixedip.io/fixedip/plugins/fixedip/cache"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// TestWakeOnRequestedAddress checks that a pod that requests one address waits for that address and for a change of its
// home, and not for every change of the home's pool.
func TestWakeOnRequestedAddress(t *testing.T) {
	single, set := netip.MustParseAddr("10.0.1.9"), request.Exactly(netip.MustParseAddr("10.0.1.9"), netip.MustParseAddr("10.0.1.11"))
	l := ledger.New()
	l.SetNode(pool.NodePool{Name: "node-1", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}})
	b := &Binder{Shared: &Shared{Cache: &cache.Cache{Ledger: l}}}
	id := identity.Identity{Namespace: "db", PodName: "web-0", Owner: identity.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web"}}
	owner := requeue.Keys(metrics.Owner, "db/web-0")
	for name, tc := range map[string]struct {
		requested request.Addresses
		want      requeue.WakeOn
	}{
		"no request":           {want: requeue.WakeOn{Keys: owner, FreeAddress: &requeue.FreeAddress{}}},
		"one address":          {request.Exactly(single), requeue.WakeOn{Keys: owner, FreeAddress: &requeue.FreeAddress{Requested: request.Exactly(single)}}.AndHome(single).And(metrics.Workload, id.Resource())},
		"one of two addresses": {set, requeue.WakeOn{Keys: owner, FreeAddress: &requeue.FreeAddress{Requested: set}}.And(metrics.Workload, id.Resource())},
	} {
		p := &Plan{id: id, requested: request.Requested{Addresses: tc.requested}}
		if got := b.wakeOnFreeAddress(p); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, tc.want)
		}
	}
}
