// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

// TestListCache checks how often the list is read: once between two events, again after a read that failed or during which an
// event arrived, and each time if no events are followed.
func TestListCache(t *testing.T) {
	for name, tc := range map[string]struct {
		following bool
		// steps are calls: "get", "clear", "fail" for a get whose read fails, and "race" for a get during whose read an event
		// arrives.
		steps []string
		want  int
	}{
		"no event":                    {following: true, steps: []string{"get", "get", "get"}, want: 1},
		"an event":                    {following: true, steps: []string{"get", "clear", "get", "get"}, want: 2},
		"an event during a read":      {following: true, steps: []string{"race", "get", "get"}, want: 2},
		"an error":                    {following: true, steps: []string{"fail", "get", "get"}, want: 2},
		"the events are not followed": {steps: []string{"get", "get"}, want: 2},
	} {
		t.Run(name, func(t *testing.T) {
			l, reads := &listCache{following: tc.following}, 0
			failed := errors.New("failed")
			for _, step := range tc.steps {
				if step == "clear" {
					l.clear()
					continue
				}
				list, err := l.get(func() ([]subnetplan.Subnet, error) {
					reads++
					switch step {
					case "fail":
						return nil, failed
					case "race":
						l.clear()
					}
					return []subnetplan.Subnet{{Node: fmt.Sprint(reads)}}, nil
				})
				if (step == "fail") != errors.Is(err, failed) {
					t.Fatalf("step %s: got error %v, want an error only in step fail", step, err)
				}
				if err == nil && (len(list) != 1 || cap(list) != 1 || list[0].Node != fmt.Sprint(reads)) {
					t.Errorf("step %s: got %v with capacity %d, want the list of read %d", step, list, cap(list), reads)
				}
			}
			if reads != tc.want {
				t.Errorf("got %d reads, want %d", reads, tc.want)
			}
		})
	}
}

// TestReconcileSeesChange checks that a reconcile that the event of a NodeSubnet starts does not get the list from before
// the event. With two event handlers the reconcile could begin before the list was cleared. A node that had inherited a
// subnet then never got it, because no other event enqueued the node.
func TestReconcileSeesChange(t *testing.T) {
	l := &listCache{following: true}
	stored := []subnetplan.Subnet{{Node: "node-1"}}
	list := func() string {
		got, err := l.get(func() ([]subnetplan.Subnet, error) { return stored, nil })
		if err != nil || len(got) != 1 {
			t.Fatalf("got the list %v and error %v, want one subnet", got, err)
		}
		return got[0].Node
	}
	list()
	seen := ""
	stored = []subnetplan.Subnet{{Node: "node-2"}}
	l.clearing(func(_, _ *v1alpha1.NodeSubnet) { seen = list() })(nil, nil)
	if seen != "node-2" {
		t.Errorf("the reconcile saw a list with the subnet of node %q, want that of node-2, as after the event", seen)
	}
}

// BenchmarkList measures how long one node needs for the list of all NodeSubnets: with the stored list, and if the list has to be
// decoded.
func BenchmarkList(b *testing.B) {
	const subnets = 5000
	var all []v1alpha1.NodeSubnet
	for i := range subnets {
		cidr := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
		ns := v1alpha1.NodeSubnet{Spec: v1alpha1.NodeSubnetSpec{CIDR: cidr.String(), NodeName: fmt.Sprintf("node-%d", i)}}
		ns.Name = address.SubnetName(cidr)
		all = append(all, ns)
	}
	for name, following := range map[string]bool{"stored": true, "decoded": false} {
		b.Run(name, func(b *testing.B) {
			l := &listCache{following: following}
			b.ReportAllocs()
			for b.Loop() {
				list, err := l.get(func() ([]subnetplan.Subnet, error) { return subnetplan.FromNodeSubnets(all), nil })
				if err != nil || len(list) != subnets {
					b.Fatalf("got %d subnets and error %v, want %d", len(list), err, subnets)
				}
			}
		})
	}
}
