// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/plugins/fixedip/cache"
)

// TestFreeSlots checks that a slot is free if its pod does not exist any more or is being deleted. The slot is not free while
// its FixedIP is being deleted or the slot is being claimed. A free slot whose address is in use cannot be taken over yet.
// Finding S4: a slot can be taken over only if the controller has reported in the status of the FixedIP that the pod has
// vacated the slot.
func TestFreeSlots(t *testing.T) {
	const addr = "10.0.1.6"
	entry := func(pod string) pool.Entry { return pool.OwnedEntry("db", pod, "Deployment", "web") }
	record := func(change ...func(*v1alpha1.FixedIP)) *v1alpha1.FixedIP {
		r := &v1alpha1.FixedIP{
			ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web-10-0-1-6", Finalizers: []string{v1alpha1.Finalizer}},
			Spec: v1alpha1.FixedIPSpec{IPs: []string{addr}, NodeName: "n", AssignedTo: v1alpha1.Slot, PodName: "web-x",
				Owner: v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}},
		}
		for _, c := range change {
			c(r)
		}
		return r
	}
	running := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web-x"}}
	terminating := running.DeepCopy()
	terminating.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	free := func(blocked string) []freeSlot {
		return []freeSlot{{from: "db/web-x", node: "n", addrs: []netip.Addr{netip.MustParseAddr(addr)}, blocked: blocked}}
	}
	vacated := func(r *v1alpha1.FixedIP) { r.Status.VacatedBy = "web-x" }
	const unconfirmed, unwritten = "the controller and the agent there have not confirmed yet that pod db/web-x has stopped", "the controller has not written the entry of the address into the pool there yet"
	for name, c := range map[string]struct {
		entry   pool.Entry
		user    string
		pod     *corev1.Pod
		record  *v1alpha1.FixedIP
		claimed bool
		// nextPod is the pod that needs a slot; empty: web-y.
		nextPod string
		want    []freeSlot
	}{
		"the pod is gone": {entry: entry("web-x"), record: record(vacated), want: free("")},
		"the agent has not confirmed that the pod has stopped": {entry: entry("web-x"), record: record(), want: free(unconfirmed)},
		"the agent has confirmed that another pod has stopped": {entry: entry("web-z"), record: record(vacated), want: []freeSlot{{from: "db/web-z", node: "n", addrs: free("")[0].addrs, blocked: "the controller and the agent there have not confirmed yet that pod db/web-z has stopped"}}},
		"the pod is gone, there is no FixedIP yet":             {entry: entry("web-x"), want: free(unconfirmed)},
		"the pod runs":                          {entry: entry("web-x"), record: record(vacated), pod: running},
		"the pod is being deleted":              {entry: entry("web-x"), record: record(), pod: terminating, want: free("pod db/web-x, which is being deleted, still has the address")},
		"the agent reports the address as used": {entry: entry("web-x"), record: record(), user: "db/web-x", want: free("the agent there still reports the address as used by db/web-x")},
		"in use by another namespace":           {entry: entry("web-x"), record: record(), user: "shop/a", want: free("the agent there still reports the address as used by a pod of another namespace")},
		"a claim of the slot is in flight":      {entry: entry("web-x"), record: record(vacated), claimed: true},
		"the FixedIP is being deleted":          {entry: entry("web-x"), record: record(vacated, func(r *v1alpha1.FixedIP) { r.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} })},
		"the slot of the pod itself":            {entry: entry("web-x"), record: record(), nextPod: "web-x", pod: running},
		"an entry of another workload":          {entry: pool.OwnedEntry("db", "web-x", "StatefulSet", "web")},

		"the entry is lost":                                          {record: record(vacated), want: free(unwritten)},
		"the entry is lost, the pod runs":                            {record: record(), pod: running},
		"the entry is lost, the pod itself needs a slot":             {record: record(), pod: running, nextPod: "web-x", want: free(unwritten)},
		"the entry is lost, the agent reports the address as used":   {record: record(), user: "db/web-x", want: free("IP 10.0.1.6 on node n is still in use by the former pod db/web-x")},
		"the entry is lost, the address has an entry of another pod": {entry: pool.OwnedEntry("db", "shop-x", "Deployment", "shop"), record: record(), want: free("IP 10.0.1.6 on node n belongs to pod db/shop-x")},
		"the node is gone":                                           {record: record(func(r *v1alpha1.FixedIP) { r.Spec.IPs = []string{"10.0.9.6"} }), want: []freeSlot{{from: "db/web-x", blocked: "address 10.0.9.6 of FixedIP web-10-0-1-6 is in no node's subnet, and was on node n; the pod waits until a node has a subnet that contains the address"}}},
		"a FixedIP that is not of a slot":                            {record: record(func(r *v1alpha1.FixedIP) { r.Spec.AssignedTo = v1alpha1.PodName })},
		"a FixedIP without a node":                                   {record: record(func(r *v1alpha1.FixedIP) { r.Spec.NodeName = "" }), want: free(unwritten)},
		"a FixedIP of another workload":                              {record: record(func(r *v1alpha1.FixedIP) { r.Spec.Owner.APIVersion = "apps.kruise.io/v1" })},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := v1alpha1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			records := fake.NewClientBuilder().WithScheme(scheme).WithIndex(&v1alpha1.FixedIP{}, cache.WorkloadIndex, cache.WorkloadOf)
			if c.record != nil {
				records = records.WithObjects(c.record)
			}
			b := &Binder{Shared: &Shared{Cache: &cache.Cache{Ledger: ledger.New(), FixedIPs: records.Build()}, Pods: podLister(t, c.pod)}}
			n := pool.NodePool{Name: "n", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}, Entries: map[netip.Addr]pool.Entry{}, Used: map[netip.Addr]string{}}
			if c.entry != (pool.Entry{}) {
				n.Entries[netip.MustParseAddr(addr)] = c.entry
			}
			if c.user != "" {
				n.Used[netip.MustParseAddr(addr)] = c.user
			}
			b.Cache.Ledger.SetNode(n)
			if c.claimed {
				if _, err := b.Cache.Ledger.Assume("uid", ledger.ClaimRequest{Claim: ledger.Claim{Owner: "db/web-z", Node: "n", Addrs: []netip.Addr{netip.MustParseAddr(addr)}, From: "db/web-x"}}); err != nil {
					t.Fatal(err)
				}
			}
			id := identity.Identity{Namespace: "db", PodName: "web-y", Slot: true, Owner: identity.Owner{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}}
			if c.nextPod != "" {
				id.PodName = c.nextPod
			}
			got, err := b.freeSlots(id.Resource(), id.Key())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(freeSlot{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("free slots (-want +got): %s", diff)
			}
		})
	}
}
