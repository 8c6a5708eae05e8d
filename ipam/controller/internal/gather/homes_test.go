// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package gather

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
	"fixedip.io/fixedip/test/controllertest"
	"fixedip.io/fixedip/test/gen"
)

// TestReports checks that the release of an address is blocked if the agent reports that another pod, or the node itself, uses
// the address. The reason does not name a pod of another namespace.
func TestReports(t *testing.T) {
	const owner = "db/mysql-0"
	a := netip.MustParseAddr("10.0.1.6")
	claimed := pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")
	for name, c := range map[string]struct {
		entry pool.Entry
		// user is the owner for which the agent reports the address as used; empty: the agent does not report the address.
		user string
		// why and blocks are the reason and the user of the blocker; empty: there is none.
		why    string
		blocks string
	}{
		"not used":                           {entry: claimed},
		"used by the owner of the entry":     {entry: claimed, user: owner},
		"used by another pod":                {entry: claimed, user: "db/other-0", blocks: "db/other-0", why: "IP 10.0.1.6 is still in use by pod db/other-0 on node n; release is blocked until the agent no longer reports that use; delete that pod if it still runs with the IP"},
		"used by a pod of another namespace": {entry: claimed, user: "web/other-0", blocks: "web/other-0", why: "IP 10.0.1.6 is still in use by a pod of another namespace on node n; release is blocked until the agent no longer reports that use; delete that pod if it still runs with the IP"},
		"used by the node itself":            {entry: claimed, user: "router", blocks: "router", why: `IP 10.0.1.6 is still in use by owner "router" on node n; release is blocked until the agent no longer reports that use`},
	} {
		t.Run(name, func(t *testing.T) {
			g := &Gatherer{Ledger: ledger.New()}
			n := pool.NodePool{Name: "n", UID: "n", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}, Entries: map[netip.Addr]pool.Entry{a: c.entry}, Used: map[netip.Addr]string{}}
			want := reclaim.State{Held: []ledger.NodeAddresses{{Node: "n", Addrs: []netip.Addr{a}}}}
			if c.user != "" {
				n.Used[a] = c.user
				want.Reported = []netip.Addr{a}
			}
			if c.why != "" {
				want.Blockers = []reclaim.ReleaseBlocker{{Addr: a, User: c.blocks, Why: c.why}}
			}
			g.Ledger.SetNode(n)
			got := reclaim.State{Held: g.Ledger.Held(owner)}
			g.reports(owner, &got)
			if diff := cmp.Diff(want, got, cmp.Comparer(func(x, y netip.Addr) bool { return x == y })); diff != "" {
				t.Errorf("state (-want +got): %s", diff)
			}
		})
	}
}

// TestHomeMissing checks that homeMissing returns the home node of a FixedIP that is being deleted and whose address may be on
// another node, if the home Node exists and has no CiliumNode with the subnet. Seed 217105 of the model.
func TestHomeMissing(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.FixedIP)
		// node is true if the home Node exists, and hasPool if its CiliumNode has the subnet.
		node, hasPool bool
		want          string
	}{
		"the home has no CiliumNode":       {node: true, want: "home"},
		"the home has its CiliumNode":      {node: true, hasPool: true},
		"the home Node is gone too":        {},
		"the address could never move":     {func(r *v1alpha1.FixedIP) { r.Status.MovableFor = "" }, true, false, ""},
		"the FixedIP is not deleted":       {func(r *v1alpha1.FixedIP) { r.DeletionTimestamp = nil }, true, false, ""},
		"the address is in another subnet": {func(r *v1alpha1.FixedIP) { r.Spec.IPs = []string{"10.0.9.9"} }, true, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
				t.Fatal(err)
			}
			objects := []client.Object{&v1alpha1.NodeSubnet{ObjectMeta: metav1.ObjectMeta{Name: "10-0-1-0-24"}, Spec: v1alpha1.NodeSubnetSpec{CIDR: "10.0.1.0/24", NodeName: "home"}}}
			if c.node {
				objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "home"}})
			}
			g := &Gatherer{Ledger: ledger.New(), Cached: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()}
			if c.hasPool {
				g.Ledger.SetNode(pool.NodePool{Name: "home", UID: "home", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}})
			}
			record := &v1alpha1.FixedIP{
				ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0", DeletionTimestamp: &metav1.Time{}},
				Spec:       v1alpha1.FixedIPSpec{IPs: []string{"10.0.1.6"}, NodeName: "other"},
				Status:     v1alpha1.FixedIPStatus{MovableFor: "pod-1"},
			}
			if c.change != nil {
				c.change(record)
			}
			got, err := g.homeMissing(t.Context(), record)
			if got != c.want || err != nil {
				t.Errorf("got %q and error %v, want %q", got, err, c.want)
			}
		})
	}
}

// TestOtherFixedIP checks that otherFixedIP returns the FixedIP of another pod that names an address of a claim without a
// FixedIP. It returns no FixedIP that is being deleted or that names the pod of the claim. Seed 2926550768 of the model.
func TestOtherFixedIP(t *testing.T) {
	const owner = "db/mysql-0"
	a := netip.MustParseAddr("10.0.1.6")
	record := gen.FixedIP("mysql-0", func(r *v1alpha1.FixedIP) { r.Spec.IPs = []string{a.String()} })
	names := func(pod string, ips ...string) *v1alpha1.FixedIP {
		return gen.FixedIP("web-0", func(r *v1alpha1.FixedIP) { r.Spec.PodName, r.Spec.IPs = pod, ips })
	}
	for name, c := range map[string]struct {
		record, other *v1alpha1.FixedIP
		want          string
	}{
		"another pod":                       {other: names("web-0", a.String()), want: "db/web-0"},
		"a slot without a pod":              {other: names("", a.String()), want: "db/web-0"},
		"another address":                   {other: names("web-0", "10.0.1.7")},
		"the pod of the claim":              {other: names("mysql-0", a.String())},
		"the pod of the claim has a record": {record: record, other: names("web-0", a.String())},
		"the FixedIP is being deleted": {other: gen.FixedIP("web-0", func(r *v1alpha1.FixedIP) {
			r.Spec.PodName, r.Spec.IPs, r.DeletionTimestamp, r.Finalizers = "web-0", []string{a.String()}, &metav1.Time{Time: time.Unix(1, 0)}, []string{v1alpha1.Finalizer}
		})},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
				t.Fatal(err)
			}
			b := fake.NewClientBuilder().WithScheme(scheme).WithObjects(c.other)
			if err := index.Each(func(of client.Object, name string, fn client.IndexerFunc) error {
				b.WithIndex(of, name, fn)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			g := &Gatherer{Cached: b.Build()}
			s := &reclaim.State{Record: c.record, Held: []ledger.NodeAddresses{{Node: "n", Addrs: []netip.Addr{a}}}}
			if got, err := g.otherFixedIP(t.Context(), owner, s); got != c.want || err != nil {
				t.Errorf("otherFixedIP returns %q and error %v, want %q", got, err, c.want)
			}
		})
	}
}

// TestBarePodsPolicy checks that the annotation of a bare pod sets the failover policy, and that the FixedIP keeps its policy
// if the pod has no annotation or an invalid one: kubectl fixedip move sets the policy in the FixedIP.
func TestBarePodsPolicy(t *testing.T) {
	migrate := v1alpha1.Migrate
	for name, c := range map[string]struct {
		annotations map[string]string
		want        *v1alpha1.Failover
		event       bool
	}{
		"no annotation":      {},
		"Migrate":            {annotations: map[string]string{identity.AnnotationFailover: "Migrate"}, want: &migrate},
		"invalid annotation": {annotations: map[string]string{identity.AnnotationFailover: "Move"}, event: true},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := events.NewFakeRecorder(1)
			g := &Gatherer{Events: recorder}
			s := &reclaim.State{Pod: gen.Pod("single", func(p *corev1.Pod) { p.Annotations = c.annotations })}
			g.ownWorkload(s)
			if diff := cmp.Diff(c.want, s.Workload.Failover); diff != "" {
				t.Errorf("failover policy of the workload (-want +got): %s", diff)
			}
			if (len(recorder.Events) > 0) != c.event {
				t.Errorf("got %d events, want one: %t", len(recorder.Events), c.event)
			}
		})
	}
}

// TestInvalidAnnotations checks that each invalid policy of a bare pod is seen in an event. The events of one pod must not be
// merged.
func TestInvalidAnnotations(t *testing.T) {
	var recorded controllertest.MergedEvents
	pod := gen.Pod("web", func(p *corev1.Pod) {
		p.Annotations = map[string]string{identity.AnnotationFailover: "Move", identity.AnnotationTTL: "soon"}
	})
	(&Gatherer{Events: &recorded}).ownWorkload(&reclaim.State{Pod: pod})
	if len(recorded.Notes) != 2 {
		t.Errorf("got events %q, want one about each annotation", recorded.Notes)
	}
}
