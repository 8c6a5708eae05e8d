// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"fixedip.io/fixedip/ipam/core/address"
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

// TestRequestedSubnetChanges checks that a pod waits for changes of all subnets if a change of a subnet that does not
// contain its requested address may make the address available.
func TestRequestedSubnetChanges(t *testing.T) {
	in := func(name, cidr string) pool.NodePool {
		return pool.NodePool{Name: name, Subnets: []netip.Prefix{netip.MustParsePrefix(cidr)}}
	}
	for name, c := range map[string]struct {
		ips        string
		nodes      []pool.NodePool
		wantReason string
		anySubnet  bool
	}{
		"the address has an entry of another pod": {ips: "10.0.1.9", nodes: []pool.NodePool{{Name: "node-1", Subnets: in("", "10.0.1.0/24").Subnets, Entries: map[netip.Addr]pool.Entry{netip.MustParseAddr("10.0.1.9"): pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")}}},
			wantReason: "requests 10.0.1.9 (annotation fixedip.io/ips): "},
		"one address, the subnets overlap": {ips: "10.0.1.9", nodes: []pool.NodePool{in("node-1", "10.0.1.0/24"), in("node-2", "10.0.1.128/25")}, anySubnet: true,
			wantReason: "requests 10.0.1.9 (annotation fixedip.io/ips): "},
		"two addresses, the subnets overlap": {ips: "10.0.1.9, 10.0.1.11", nodes: []pool.NodePool{in("node-1", "10.0.1.0/24"), in("node-2", "10.0.1.128/25")}, anySubnet: true,
			wantReason: "requests 10.0.1.9, 10.0.1.11 (annotation fixedip.io/ips), but no node can give a pod an address of this list"},
		"the node does not exist": {ips: "10.0.1.9", nodes: []pool.NodePool{in("node-1", "10.0.1.0/24")}, anySubnet: true,
			wantReason: "requests 10.0.1.9 (annotation fixedip.io/ips), but node node-1, which has such addresses in its subnets, does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			l := ledger.New()
			for _, n := range c.nodes {
				l.SetNode(n)
			}
			b := &Binder{Shared: &Shared{Cache: &cache.Cache{Ledger: l}}, snapshot: noNodes, families: []address.Family{address.IPv4}}
			pod := namedPod("tool")
			pod.Annotations = map[string]string{request.AnnotationIPs: c.ips}
			p := &Plan{id: identity.Identity{Namespace: pod.Namespace, PodName: pod.Name, Owner: identity.Owner{APIVersion: "v1", Kind: identity.PodKind, Name: pod.Name}}}
			_, err := b.findRequested(p, pod)
			var refusal *Refusal
			if !errors.As(err, &refusal) || !strings.HasPrefix(refusal.Reason, c.wantReason) {
				t.Fatalf("got error %v, want a refusal that begins with %s", err, c.wantReason)
			}
			if got := slices.Contains(refusal.WakeOn.Keys, requeue.WakeOn{}.AndAnySubnet().Keys[0]); got != c.anySubnet {
				t.Errorf("waits for changes of all subnets: got %t, want %t", got, c.anySubnet)
			}
		})
	}
}
