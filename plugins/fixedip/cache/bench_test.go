// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"fmt"
	"net/netip"
	"testing"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// benchNodes is the number of nodes in the ledger of the benchmarks. Each node has 40 entries, 10 of which have an owner.
const benchNodes = 1000

// benchNode returns the CiliumNode of node i. All its entries are used.
func benchNode(i int) *ciliumv2.CiliumNode {
	name := fmt.Sprintf("node-%d", i)
	cn := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid", Generation: 1, ResourceVersion: "1"}}
	cn.Spec.IPAM.PodCIDRs = []string{fmt.Sprintf("10.%d.%d.0/24", i>>8, i&255)}
	cn.Spec.IPAM.Pool, cn.Status.IPAM.Used = ipamtypes.AllocationMap{}, ipamtypes.AllocationMap{}
	for j := range 40 {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(j + 1)}).String()
		e := ipamtypes.AllocationIP{}
		if j >= 30 {
			e.Owner, e.Resource = fmt.Sprintf("db/mysql-%d-%d", i, j), "db/StatefulSet/mysql"
		}
		cn.Spec.IPAM.Pool[a] = e
		cn.Status.IPAM.Used[a] = ipamtypes.AllocationIP{Owner: "db/pod"}
	}
	return cn
}

// BenchmarkCiliumNodeEvent measures the handling of one watch event of a CiliumNode after it was decoded: the conversion,
// the update of the ledger, and the event for the queue of waiting pods.
func BenchmarkCiliumNodeEvent(b *testing.B) {
	first := benchNode(7)
	reported := first.DeepCopy()
	// The address has a dynamic entry.
	reported.Status.IPAM.Used["10.0.7.1"] = ipamtypes.AllocationIP{Owner: "db/short-lived"}
	claimed := first.DeepCopy()
	claimed.Generation = 2
	claimed.Spec.IPAM.Pool["10.0.7.100"] = ipamtypes.AllocationIP{Owner: "db/web-0", Resource: "db/StatefulSet/web"}
	for _, event := range []struct {
		name string
		next *ciliumv2.CiliumNode
		// notified is true if the change concerns waiting pods.
		notified bool
	}{{"report of an agent", reported, false}, {"claim", claimed, true}} {
		b.Run(event.name, func(b *testing.B) {
			c := &Cache{Ledger: ledger.New()}
			for i := range benchNodes {
				c.Ledger.SetNode(ciliumpool.FromCiliumNode(benchNode(i)))
			}
			events := 0
			c.Subscribe(func(requeue.Event) { events++ })
			nodes := []*ciliumv2.CiliumNode{event.next, first}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				n := ciliumpool.FromCiliumNode(nodes[i%len(nodes)])
				c.PoolChanged(n.Name, c.Ledger.SetNode(n))
			}
			if (events > 0) != event.notified {
				b.Errorf("got %d events for the queue; events wanted: %t", events, event.notified)
			}
		})
	}
}

// BenchmarkTrim measures the transform of one FixedIP before it is stored.
func BenchmarkTrim(b *testing.B) {
	fip := &v1alpha1.FixedIP{
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0", UID: "1", ResourceVersion: "7", Labels: map[string]string{"app": "mysql"}},
		Spec: v1alpha1.FixedIPSpec{
			IPs: []string{"10.0.1.14"}, NodeName: "node-1", PodName: "mysql-0", AssignedTo: v1alpha1.Slot,
			Owner: v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql", UID: "2"},
		},
		Status: v1alpha1.FixedIPStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionSubnetAvailable, Status: metav1.ConditionTrue}, {Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}},
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := trim(fip); err != nil {
			b.Fatal(err)
		}
	}
}
