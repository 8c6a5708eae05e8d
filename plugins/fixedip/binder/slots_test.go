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

// TestFreeSlots checks that slots are free if their pods are gone or being deleted, that a slot in use cannot be taken over
// yet, and that a slot whose FixedIP is being deleted is not free. Finding S4: a slot can be taken over only if the
// controller has published that it is vacated.
func TestFreeSlots(t *testing.T) {
	const addr = "10.0.1.6"
	entry := func(pod string) pool.Entry { return pool.OwnedEntry("db", pod, "Deployment", "web") }
	record := func(change ...func(*v1alpha1.FixedIP)) *v1alpha1.FixedIP {
		r := &v1alpha1.FixedIP{
			ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web-10-0-1-6", Finalizers: []string{v1alpha1.Finalizer}},
			Spec: v1alpha1.FixedIPSpec{IPs: []string{addr}, NodeName: "n", Slot: true, PodName: "web-x",
				Owner: v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}},
		}
		for _, c := range change {
			c(r)
		}
		return r
	}
	living := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web-x"}}
	leaving := living.DeepCopy()
	leaving.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	free := func(blocked string) []freeSlot {
		return []freeSlot{{from: "db/web-x", node: "n", addrs: []netip.Addr{netip.MustParseAddr(addr)}, blocked: blocked}}
	}
	vacated := func(r *v1alpha1.FixedIP) { r.Status.VacatedBy = "web-x" }
	const unconfirmed, unwritten = "the controller waits for the agent there to confirm that db/web-x has stopped", "the controller has not written the entry of the address into the pool there yet"
	for name, c := range map[string]struct {
		entry   pool.Entry
		user    string
		pod     *corev1.Pod
		record  *v1alpha1.FixedIP
		claimed bool
		// asks is the pod that needs a slot; web-y if empty.
		asks string
		want []freeSlot
	}{
		"its pod is gone":                         {entry: entry("web-x"), record: record(vacated), want: free("")},
		"its agent has not confirmed it":          {entry: entry("web-x"), record: record(), want: free(unconfirmed)},
		"its agent has confirmed it of another":   {entry: entry("web-z"), record: record(vacated), want: []freeSlot{{from: "db/web-z", node: "n", addrs: free("")[0].addrs, blocked: "the controller waits for the agent there to confirm that db/web-z has stopped"}}},
		"its pod is gone, there is no record yet": {entry: entry("web-x"), want: free(unconfirmed)},
		"its pod lives":                           {entry: entry("web-x"), record: record(vacated), pod: living},
		"its pod is being deleted":                {entry: entry("web-x"), record: record(), pod: leaving, want: free("pod db/web-x, which is being deleted, still has the address")},
		"the agent lists it":                      {entry: entry("web-x"), record: record(), user: "db/web-x", want: free("the agent there still reports the address as used by db/web-x")},
		"a claim for it is in flight":             {entry: entry("web-x"), record: record(vacated), claimed: true},
		"it is being given back":                  {entry: entry("web-x"), record: record(vacated, func(r *v1alpha1.FixedIP) { r.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} })},
		"it is the pod's own":                     {entry: entry("web-x"), record: record(), asks: "web-x", pod: living},
		"another workload's":                      {entry: pool.OwnedEntry("db", "web-x", "StatefulSet", "web")},

		"its entry is lost":                         {record: record(vacated), want: free(unwritten)},
		"its entry is lost, its pod lives":          {record: record(), pod: living},
		"its entry is lost, and its pod looks":      {record: record(), pod: living, asks: "web-x", want: free(unwritten)},
		"its entry is lost, the agent lists it":     {record: record(), user: "db/web-x", want: free("IP 10.0.1.6 on node n is still in use by pod db/web-x")},
		"its entry is lost, another's is there":     {entry: pool.OwnedEntry("db", "shop-x", "Deployment", "shop"), record: record(), want: free("IP 10.0.1.6 on node n belongs to pod db/shop-x")},
		"its node is gone":                          {record: record(func(r *v1alpha1.FixedIP) { r.Spec.IPs = []string{"10.0.9.6"} }), want: []freeSlot{{from: "db/web-x", blocked: "its address 10.0.9.6 (FixedIP web-10-0-1-6) is in no node's subnet, and was on node n; the pod waits for a node with that subnet"}}},
		"a record that is no slot is no business":   {record: record(func(r *v1alpha1.FixedIP) { r.Spec.Slot = false })},
		"made beforehand, since the start":          {record: record(func(r *v1alpha1.FixedIP) { r.Spec.NodeName = "" }), want: free(unwritten)},
		"a record made beforehand, for no pod yet":  {record: record(func(r *v1alpha1.FixedIP) { r.Spec.NodeName = "" }), want: free(unwritten)},
		"a record that is another workload's slots": {record: record(func(r *v1alpha1.FixedIP) { r.Spec.Owner.APIVersion = "apps.kruise.io/v1" })},
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
			if c.asks != "" {
				id.PodName = c.asks
			}
			got, err := b.freeSlots(id.Resource(), id.Key())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(freeSlot{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got): %s", diff)
			}
		})
	}
}
