// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/ipam/store/workloads"
	"fixedip.io/fixedip/plugins/fixedip/cache"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// TestFromFixedIP checks that the node of a FixedIP without pool entries is the home of its addresses. If the addresses
// have no common home, the pod waits until their home changes.
func TestFromFixedIP(t *testing.T) {
	dual := func(name, v4, v6 string) pool.NodePool {
		return pool.NodePool{Name: name, Subnets: []netip.Prefix{netip.MustParsePrefix(v4), netip.MustParsePrefix(v6)}}
	}
	for name, c := range map[string]struct {
		// nodes contains further nodes.
		nodes      []pool.NodePool
		ips        []string
		nodeName   string
		wantNode   string
		wantReason string
		// anySubnet is true if the pod waits for changes of all subnets.
		anySubnet bool
		// updates contains versions of nodes after which the addresses have a common home.
		updates []pool.NodePool
	}{
		"no address":    {},
		"one address":   {ips: []string{"10.0.2.9"}, wantNode: "node-2"},
		"two addresses": {ips: []string{"10.0.1.9", "fd00:1::9"}, wantNode: "node-1"},
		"on two nodes": {ips: []string{"10.0.1.9", "fd00:2::9"}, updates: []pool.NodePool{dual("node-2", "10.0.2.0/24", "fd00:9::/64"), dual("node-1", "10.0.1.0/24", "fd00:2::/64")},
			wantReason: "addresses 10.0.1.9, fd00:2::9 of FixedIP web-0 are in the subnets of two nodes, node-1 and node-2; delete that FixedIP and request addresses of one node"},
		"in no subnet": {ips: []string{"10.0.3.9"}, updates: []pool.NodePool{dual("node-3", "10.0.3.0/24", "fd00:3::/64")},
			wantReason: "address 10.0.3.9 of FixedIP web-0 is in no node's subnet; the pod waits until a node has a subnet that contains the address"},
		"in a subnet that overlaps a subnet of another node": {ips: []string{"10.0.2.200"}, nodes: []pool.NodePool{dual("node-3", "10.0.2.0/25", "fd00:3::/64")}, updates: []pool.NodePool{dual("node-3", "10.0.3.0/24", "fd00:3::/64")}, anySubnet: true,
			wantReason: "the address of FixedIP web-0 is not available: IP 10.0.2.200 is neither assigned nor moved while the subnets of nodes node-2 and node-3 overlap; it becomes available when spec.ipam.podCIDRs of the two CiliumNodes no longer overlap"},
		"in no subnet any more": {ips: []string{"10.0.3.9"}, nodeName: "node-3", updates: []pool.NodePool{dual("node-4", "10.0.3.0/24", "fd00:3::/64")},
			wantReason: "address 10.0.3.9 of FixedIP web-0 is in no node's subnet, and was on node node-3; the pod waits until a node has a subnet that contains the address"},
	} {
		t.Run(name, func(t *testing.T) {
			c2 := &cache.Cache{Ledger: ledger.New()}
			b := &Binder{Shared: &Shared{Cache: c2}}
			c2.Ledger.SetNode(dual("node-1", "10.0.1.0/24", "fd00:1::/64"))
			c2.Ledger.SetNode(dual("node-2", "10.0.2.0/24", "fd00:2::/64"))
			for _, n := range c.nodes {
				c2.Ledger.SetNode(n)
			}
			r, err := b.fromFixedIP(&v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Name: "web-0"}, Spec: v1alpha1.FixedIPSpec{IPs: c.ips, NodeName: c.nodeName}})
			if c.wantReason == "" {
				if err != nil || r.node != c.wantNode || len(r.addrs) != len(c.ips) {
					t.Fatalf("got %+v, error %v; want addresses %v on node %q", r, err, c.ips, c.wantNode)
				}
				return
			}
			var refusal *Refusal
			if !errors.As(err, &refusal) || refusal.Reason != c.wantReason {
				t.Fatalf("got error %v, want refusal %s", err, c.wantReason)
			}
			if got := slices.Contains(refusal.WakeOn.Keys, requeue.WakeOn{}.AndAnySubnet().Keys[0]); got != c.anySubnet {
				t.Errorf("waits for changes of all subnets: got %t, want %t", got, c.anySubnet)
			}
			var homes []netip.Addr
			for _, k := range refusal.WakeOn.Keys {
				if k.Addr.IsValid() {
					homes = append(homes, k.Addr)
				}
			}
			if !slices.Equal(homes, address.ParseAll(c.ips)) {
				t.Errorf("the pod waits for the homes of %v, want %v", homes, c.ips)
			}
			for _, n := range c.updates {
				c2.Ledger.SetNode(n)
			}
			if _, err := b.fromFixedIP(&v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Name: "web-0"}, Spec: v1alpha1.FixedIPSpec{IPs: c.ips}}); err != nil {
				t.Errorf("got error %v after the subnets have changed, want none", err)
			}
		})
	}
}

// TestReleasing checks that a pod that opts out waits for addresses of its name that are being released, and not for
// addresses that stay reserved. Finding S8: that also holds for workloads of another API group than apps.
func TestReleasing(t *testing.T) {
	kinds := map[string][2]string{"apps": {"apps/v1", "StatefulSet"}, "Kruise": {"apps.kruise.io/v1", "StatefulSet.apps.kruise.io"}}
	retained := v1alpha1.ReclaimPolicy{WhenDeleted: v1alpha1.Retain, WhenScaled: v1alpha1.Retain}
	for name, c := range map[string]struct {
		held []string
		// reclaim is the policy of the FixedIP, which names 10.0.1.9; nil: there is no FixedIP.
		reclaim *v1alpha1.ReclaimPolicy
		// workload contains the annotations of the pod template of the StatefulSet; nil: there is no StatefulSet.
		workload map[string]string
		want     string
	}{
		"the workload opted out":                       {held: []string{"10.0.1.9"}, reclaim: ptr.To(identity.DefaultReclaim()), workload: map[string]string{identity.AnnotationEnabled: "false"}, want: "10.0.1.9"},
		"the workload opted in again":                  {held: []string{"10.0.1.9"}, reclaim: ptr.To(identity.DefaultReclaim()), workload: map[string]string{}},
		"the workload opted in again, no FixedIP":      {held: []string{"10.0.1.9"}, workload: map[string]string{}},
		"the workload opted in again, further address": {held: []string{"10.0.1.7", "10.0.1.9"}, reclaim: ptr.To(identity.DefaultReclaim()), workload: map[string]string{}, want: "10.0.1.7"},
		"no address":                            {},
		"no FixedIP, no workload":               {held: []string{"10.0.1.9"}, want: "10.0.1.9"},
		"default retention, no workload":        {held: []string{"10.0.1.9"}, reclaim: ptr.To(identity.DefaultReclaim()), want: "10.0.1.9"},
		"retained":                              {held: []string{"10.0.1.9"}, reclaim: &retained},
		"retained, other address in the pool":   {held: []string{"10.0.1.7"}, reclaim: &retained, want: "10.0.1.7"},
		"retained, further address in the pool": {held: []string{"10.0.1.7", "10.0.1.9"}, reclaim: &retained, want: "10.0.1.7"},
		"retained for an hour":                  {held: []string{"10.0.1.9"}, reclaim: &v1alpha1.ReclaimPolicy{WhenDeleted: v1alpha1.Delete, WhenScaled: v1alpha1.Delete, TTLSeconds: 3600}},
	} {
		for group, kind := range kinds {
			t.Run(name+", "+group, func(t *testing.T) {
				registered, err := scheme.New()
				if err != nil {
					t.Fatal(err)
				}
				records := fake.NewClientBuilder().WithScheme(registered)
				if c.reclaim != nil {
					records.WithObjects(&v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web-0"}, Spec: v1alpha1.FixedIPSpec{IPs: []string{"10.0.1.9"}, Reclaim: *c.reclaim}})
				}
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web-0", Annotations: map[string]string{identity.AnnotationEnabled: "false"},
					OwnerReferences: []metav1.OwnerReference{{APIVersion: kind[0], Kind: "StatefulSet", Name: "web", Controller: ptr.To(true)}}}}
				sets := toolscache.NewSharedIndexInformer(&toolscache.ListWatch{}, &appsv1.StatefulSet{}, 0, nil)
				b := &Binder{Shared: &Shared{Cache: &cache.Cache{Ledger: ledger.New(), FixedIPs: records.Build(), Workloads: workloads.New(nil, nil)}, Pods: podLister(t)}, snapshot: noNodes}
				if err := b.Cache.Workloads.UseInformer(b.controllerOf(pod).GroupKind(), sets); err != nil {
					t.Fatal(err)
				}
				if c.workload != nil {
					set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web"}}
					set.Spec.Template.Annotations = c.workload
					if err := sets.GetStore().Add(set); err != nil {
						t.Fatal(err)
					}
				}
				n := pool.NodePool{Name: "node-1", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}, Entries: map[netip.Addr]pool.Entry{}}
				for _, a := range address.ParseAll(c.held) {
					n.Entries[a] = pool.OwnedEntry("db", "web-0", kind[1], "web")
				}
				b.Cache.Ledger.SetNode(n)
				got := ""
				if _, err := b.Find(t.Context(), pod); err != nil {
					got = err.Error()
				}
				want := ""
				if c.want != "" {
					want = "its former address " + c.want + " on node node-1 is being released, and the pod has opted out of fixed addresses (annotation fixedip.io/enabled); the pod is placed after the release"
				}
				if got != want {
					t.Errorf("Find returned error %q, want %q", got, want)
				}
			})
		}
	}
}

// noNodes is a snapshot of a cluster without nodes.
func noNodes(string) fwk.NodeInfo { return nil }

// TestHostNetworkIsExempt checks that no node is blocked for a pod on the host network, even if a pool has an entry for its
// name. Finding S11.
func TestHostNetworkIsExempt(t *testing.T) {
	b := &Binder{Shared: &Shared{Cache: &cache.Cache{Ledger: ledger.New(), Workloads: workloads.New(nil, nil)}, Pods: podLister(t)}, snapshot: noNodes}
	b.Cache.Ledger.SetNode(pool.NodePool{Name: "n", Entries: map[netip.Addr]pool.Entry{netip.MustParseAddr("10.0.1.9"): pool.OwnedEntry("db", "web-0", "StatefulSet", "web")}})
	for host, blocked := range map[bool]int{true: 0, false: 1} {
		pod := namedPod("web-0")
		pod.Spec.HostNetwork = host
		p, err := b.Find(t.Context(), pod)
		if err != nil || len(p.blocked) != blocked {
			t.Errorf("hostNetwork %t: got blocked nodes %v, error %v; want %d blocked nodes", host, p.blocked, err, blocked)
		}
	}
}

// TestPolicyOfBarePod checks that the annotations of a bare pod define its failover policy until its FixedIP exists.
func TestPolicyOfBarePod(t *testing.T) {
	b := &Binder{Shared: &Shared{Cache: &cache.Cache{Workloads: workloads.New(nil, nil)}}, failover: v1alpha1.Reassign}
	for annotation, want := range map[string]v1alpha1.Failover{"": v1alpha1.Reassign, "Migrate": v1alpha1.Migrate, "Wait": v1alpha1.Wait, "Elsewhere": v1alpha1.Wait} {
		pod := namedPod("tool")
		if annotation != "" {
			pod.Annotations = map[string]string{identity.AnnotationFailover: annotation}
		}
		p := &Plan{id: identity.Identity{Namespace: pod.Namespace, PodName: pod.Name, Owner: identity.Owner{APIVersion: "v1", Kind: identity.PodKind, Name: pod.Name}}}
		if got := b.policyOf(pod, p); got != want {
			t.Errorf("annotation %q: got policy %s, want %s", annotation, got, want)
		}
	}
}
