// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

// nodeSubnet returns a NodeSubnet that names a node. If cidr is not valid, the NodeSubnet has the name "invalid".
func nodeSubnet(cidr, node string) *v1alpha1.NodeSubnet {
	name := "invalid"
	if p, err := netip.ParsePrefix(cidr); err == nil {
		name = address.SubnetName(p)
	}
	return &v1alpha1.NodeSubnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeSubnetSpec{CIDR: cidr, NodeName: node}}
}

func followed() *listCache { return &listCache{synced: func() bool { return true }} }

// TestListCache checks the list after each of several events.
func TestListCache(t *testing.T) {
	first, second, invalid := nodeSubnet("10.0.1.0/24", "node-1"), nodeSubnet("10.0.2.0/24", "node-2"), nodeSubnet("10.0.3.0", "node-3")
	moved := nodeSubnet("10.0.2.0/24", "node-1")
	type event struct{ before, after *v1alpha1.NodeSubnet }
	type step struct {
		event
		// want contains the CIDR and the node of each subnet in the list after the event.
		want []string
	}
	for name, steps := range map[string][]step{
		"created":                {{event{nil, second}, []string{"10.0.2.0/24 node-2"}}, {event{nil, first}, []string{"10.0.1.0/24 node-1", "10.0.2.0/24 node-2"}}},
		"changed":                {{event{nil, second}, []string{"10.0.2.0/24 node-2"}}, {event{second, moved}, []string{"10.0.2.0/24 node-1"}}},
		"deleted":                {{event{nil, first}, []string{"10.0.1.0/24 node-1"}}, {event{first, nil}, nil}},
		"without a valid CIDR":   {{event{nil, invalid}, nil}, {event{nil, first}, []string{"10.0.1.0/24 node-1"}}, {event{invalid, nil}, []string{"10.0.1.0/24 node-1"}}},
		"loses its valid CIDR":   {{event{nil, first}, []string{"10.0.1.0/24 node-1"}}, {event{first, &v1alpha1.NodeSubnet{ObjectMeta: first.ObjectMeta}}, nil}},
		"created after deletion": {{event{nil, first}, []string{"10.0.1.0/24 node-1"}}, {event{first, nil}, nil}, {event{nil, first}, []string{"10.0.1.0/24 node-1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			l := followed()
			for i, s := range steps {
				l.apply(s.before, s.after)
				list, ok := l.get()
				var got []string
				for _, sub := range list {
					got = append(got, fmt.Sprint(sub.CIDR, " ", sub.Node))
				}
				if !ok || !slices.Equal(got, s.want) {
					t.Errorf("after event %d: got %v (%v), want %v", i, got, ok, s.want)
				}
			}
		})
	}
}

// TestListCacheIsComplete checks that there is no list before the NodeSubnets of the start have arrived, or without events.
func TestListCacheIsComplete(t *testing.T) {
	synced := false
	l := &listCache{synced: func() bool { return synced }}
	l.apply(nil, nodeSubnet("10.0.1.0/24", "node-1"))
	if list, ok := l.get(); ok {
		t.Errorf("got the list %v before the NodeSubnets of the start have arrived", list)
	}
	synced = true
	if list, ok := l.get(); !ok || len(list) != 1 {
		t.Errorf("got the list %v (%v), want one subnet", list, ok)
	}
	if list, ok := new(listCache).get(); ok {
		t.Errorf("got the list %v although no events are followed", list)
	}
}

// TestListIsNotShared checks that neither an event nor a caller that appends changes a list that another caller has.
func TestListIsNotShared(t *testing.T) {
	l := followed()
	before := nodeSubnet("10.0.1.0/24", "node-1")
	l.apply(nil, before)
	mine, _ := l.get()
	other, _ := l.get()
	_ = append(mine, subnetplan.Subnet{Node: "node-3"})
	l.apply(before, nodeSubnet("10.0.1.0/24", "node-2"))
	if len(other) != 1 || other[0].Node != "node-1" || cap(mine) != 1 {
		t.Errorf("got %v and a list of capacity %d, want the list from before the event and capacity 1", other, cap(mine))
	}
}

// TestReconcileSeesChange checks that a reconcile that the event of a NodeSubnet starts does not get the list from before
// the event. With two event handlers the reconcile could begin before the list had changed. A node that had inherited a
// subnet then never got it, because no other event enqueued the node.
func TestReconcileSeesChange(t *testing.T) {
	l := followed()
	before, after := nodeSubnet("10.0.1.0/24", "node-1"), nodeSubnet("10.0.1.0/24", "node-2")
	l.apply(nil, before)
	seen := ""
	l.applying(func(_, _ *v1alpha1.NodeSubnet) {
		list, _ := l.get()
		seen = list[0].Node
	})(before, after)
	if seen != "node-2" {
		t.Errorf("the reconcile saw a list with the subnet of node %q, want that of node-2, as after the event", seen)
	}
}

// BenchmarkList measures how long one node needs for the list of all NodeSubnets: if none has changed since the last list, and
// after an event.
func BenchmarkList(b *testing.B) {
	const subnets = 5000
	l := followed()
	var all []*v1alpha1.NodeSubnet
	for i := range subnets {
		cidr := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
		ns := nodeSubnet(cidr.String(), fmt.Sprintf("node-%d", i))
		l.apply(nil, ns)
		all = append(all, ns)
	}
	for name, changed := range map[string]bool{"unchanged": false, "after an event": true} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if changed {
					ns := all[i%subnets]
					l.apply(ns, ns)
				}
				if list, ok := l.get(); !ok || len(list) != subnets {
					b.Fatalf("got %d subnets (%v), want %d", len(list), ok, subnets)
				}
			}
		})
	}
}
