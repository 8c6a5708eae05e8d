// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/ipam/store/workloads"
)

// A record without entries is placed at the home of its addresses. Where they have none in common,
// the pod waits until they do, and news that change nothing about that are no help.
func TestFromRecord(t *testing.T) {
	dual := func(name, v4, v6 string) pool.Node {
		return pool.Node{Name: name, Subnets: []netip.Prefix{netip.MustParsePrefix(v4), netip.MustParsePrefix(v6)}}
	}
	for name, c := range map[string]struct {
		ips        []string
		keptOn     string
		wantNode   string
		wantReason string
		// mends are versions of nodes after which the record can be placed.
		mends []pool.Node
	}{
		"any":  {},
		"one":  {ips: []string{"10.0.2.9"}, wantNode: "node-2"},
		"both": {ips: []string{"10.0.1.9", "fd00:1::9"}, wantNode: "node-1"},
		"on two nodes": {ips: []string{"10.0.1.9", "fd00:2::9"}, mends: []pool.Node{dual("node-2", "10.0.2.0/24", "fd00:9::/64"), dual("node-1", "10.0.1.0/24", "fd00:2::/64")},
			wantReason: "its addresses [10.0.1.9 fd00:2::9] (FixedIP web-0) are in the subnets of two nodes, node-1 and node-2; delete the FixedIP and ask for addresses of one node"},
		"nowhere": {ips: []string{"10.0.3.9"}, mends: []pool.Node{dual("node-3", "10.0.3.0/24", "fd00:3::/64")},
			wantReason: "its address 10.0.3.9 (FixedIP web-0) is in no node's subnet; it waits for a node that has it"},
		"nowhere any more": {ips: []string{"10.0.3.9"}, keptOn: "node-3", mends: []pool.Node{dual("node-4", "10.0.3.0/24", "fd00:3::/64")},
			wantReason: "its address 10.0.3.9 (FixedIP web-0) is in no node's subnet, and was kept on node node-3; it waits for a node that has it"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{ledger: ledger.New()}
			w.ledger.SetNode(dual("node-1", "10.0.1.0/24", "fd00:1::/64"))
			w.ledger.SetNode(dual("node-2", "10.0.2.0/24", "fd00:2::/64"))
			r, err := w.fromRecord(&v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Name: "web-0"}, Spec: v1alpha1.FixedIPSpec{IPs: c.ips, NodeName: c.keptOn}})
			if c.wantReason == "" {
				if err != nil || r.node != c.wantNode || len(r.addrs) != len(c.ips) {
					t.Fatalf("%+v, %v; want node %q", r, err, c.wantNode)
				}
				return
			}
			var no *unreservable
			if !errors.As(err, &no) || no.reason != c.wantReason {
				t.Fatalf("error %v, want %s", err, c.wantReason)
			}
			if no.until("node-1") {
				t.Error("news that change nothing help")
			}
			for _, n := range c.mends {
				w.ledger.SetNode(n)
			}
			if !no.until(c.mends[len(c.mends)-1].Name) {
				t.Error("the node that has them all does not help")
			}
		})
	}
}

// A name that opts out waits for what is taken from it, and not for what is kept.
func TestOptsOutWaits(t *testing.T) {
	retained := v1alpha1.ReclaimPolicy{WhenDeleted: v1alpha1.Retain, WhenScaled: v1alpha1.Retain}
	for name, c := range map[string]struct {
		held []string
		// reclaim is the policy of the FixedIP, which keeps 10.0.1.9; nil: there is none.
		reclaim *v1alpha1.ReclaimPolicy
		// workload is the template of its StatefulSet; nil: there is none.
		workload map[string]string
		want     string
	}{
		"its workload opted out":                  {held: []string{"10.0.1.9"}, reclaim: ptr.To(identity.DefaultReclaim()), workload: map[string]string{identity.AnnotationEnabled: "false"}, want: "10.0.1.9"},
		"its workload opted in again":             {held: []string{"10.0.1.9"}, reclaim: ptr.To(identity.DefaultReclaim()), workload: map[string]string{}},
		"its workload opted in again, no FixedIP": {held: []string{"10.0.1.9"}, workload: map[string]string{}},
		"its workload opted in again, beside it":  {held: []string{"10.0.1.7", "10.0.1.9"}, reclaim: ptr.To(identity.DefaultReclaim()), workload: map[string]string{}, want: "10.0.1.7"},
		"nothing is left":                         {},
		"nobody keeps it":                         {held: []string{"10.0.1.9"}, want: "10.0.1.9"},
		"it is to be released":                    {held: []string{"10.0.1.9"}, reclaim: ptr.To(identity.DefaultReclaim()), want: "10.0.1.9"},
		"it is kept for good":                     {held: []string{"10.0.1.9"}, reclaim: &retained},
		"another in its place":                    {held: []string{"10.0.1.7"}, reclaim: &retained, want: "10.0.1.7"},
		"another beside it":                       {held: []string{"10.0.1.7", "10.0.1.9"}, reclaim: &retained, want: "10.0.1.7"},
		"it is kept for an hour":                  {held: []string{"10.0.1.9"}, reclaim: &v1alpha1.ReclaimPolicy{WhenDeleted: v1alpha1.Delete, WhenScaled: v1alpha1.Delete, TTL: metav1.Duration{Duration: time.Hour}}},
	} {
		t.Run(name, func(t *testing.T) {
			registered, err := scheme.New()
			if err != nil {
				t.Fatal(err)
			}
			records := fake.NewClientBuilder().WithScheme(registered)
			if c.reclaim != nil {
				records.WithObjects(&v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web-0"}, Spec: v1alpha1.FixedIPSpec{IPs: []string{"10.0.1.9"}, Reclaim: *c.reclaim}})
			}
			sets := toolscache.NewSharedIndexInformer(&toolscache.ListWatch{}, &appsv1.StatefulSet{}, 0, nil)
			w := &world{ledger: ledger.New(), fixedIPs: records.Build(), workloads: workloads.New(nil, nil)}
			if err := w.workloads.Lend(identity.StatefulSets, sets); err != nil {
				t.Fatal(err)
			}
			if c.workload != nil {
				set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web"}}
				set.Spec.Template.Annotations = c.workload
				if err := sets.GetStore().Add(set); err != nil {
					t.Fatal(err)
				}
			}
			n := pool.Node{Name: "node-1", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}, Entries: map[netip.Addr]pool.Entry{}}
			for _, a := range addressesOf(c.held) {
				n.Entries[a] = pool.OwnedEntry("db", "web-0", "StatefulSet", "web")
			}
			w.ledger.SetNode(n)
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web-0", Annotations: map[string]string{identity.AnnotationEnabled: "false"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", Controller: ptr.To(true)}}}}
			got := w.optsOut(t.Context(), pod)
			want := ""
			if c.want != "" {
				want = "its former address (" + c.want + " on node node-1) is being released, since it opted out (annotation fixedip.io/enabled); it is placed when that is done"
			}
			if got != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
}
