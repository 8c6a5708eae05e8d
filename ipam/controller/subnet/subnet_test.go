// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/test/gen"
)

func rules(policy subnetplan.OrphanPolicy, maskSize int) subnetplan.Rules {
	return subnetplan.Rules{Pools: []address.ClusterPool{{CIDR: netip.MustParsePrefix("10.0.0.0/24"), MaskSize: maskSize}}, Policy: policy, GracePeriod: time.Minute}
}

func (s *scene) record(name, nodeName, ip string) *v1alpha1.FixedIP {
	return gen.FixedIP(name, gen.Owner("mysql"), func(r *v1alpha1.FixedIP) { r.Spec.IPs, r.Spec.NodeName = []string{ip}, nodeName })
}

func runningPod(name, nodeName, ip string, owner *metav1.OwnerReference) *corev1.Pod {
	return gen.Pod(name, gen.Running, func(p *corev1.Pod) {
		p.Spec.NodeName, p.Spec.SchedulerName = nodeName, "fixedip-scheduler"
		if ip != "" {
			gen.On(nodeName, ip)(p)
		}
		if owner != nil {
			p.OwnerReferences = []metav1.OwnerReference{*owner}
		}
	})
}

// TestDeletedCiliumNode checks that a CiliumNode that is deleted while its Node exists gets the same subnet when it
// is created again. No other node gets the subnet in between (finding C1).
func TestDeletedCiliumNode(t *testing.T) {
	s := newScene(t)
	s.create(node("node-1"), gen.CiliumNode("node-1"))
	c := s.controller(s.counting(nil), s.api, rules(subnetplan.Inherit, 28))
	c.pass(s)
	had := s.pools()["node-1"].PodCIDRs
	if len(had) != 1 {
		t.Fatalf("node-1: got subnets %v, want one", had)
	}

	s.delete(gen.CiliumNode("node-1"))
	s.create(node("node-2"), gen.CiliumNode("node-2"))
	c.pass(s)
	s.clock.SetTime(s.clock.Now().Add(time.Hour))
	c.pass(s)
	if got := s.pools()["node-2"].PodCIDRs; len(got) != 1 || got[0] == had[0] {
		t.Errorf("node-2: got subnets %v, want one other than %v of node-1, whose Node exists", got, had)
	}
	if got := s.claims()[had[0]]; got != "node-1" {
		t.Errorf("NodeSubnet of %s: got node %q, want node-1", had[0], got)
	}

	s.create(gen.CiliumNode("node-1"))
	c.pass(s)
	if got := s.pools()["node-1"].PodCIDRs; !slices.Equal(got, had) {
		t.Errorf("node-1: got subnets %v, want %v as before", got, had)
	}
	s.disjoint()
}

// TestMovedAddressOfBoundPod checks the first pool of node-1 after an address of its subnet has moved to node-2. The
// pod that moved was deleted by force, both CiliumNodes were deleted, and the next pod with the same name is bound
// already. The scheduler that bound this pod may have seen the former pool of node-2 (seed 1 of the model).
func TestMovedAddressOfBoundPod(t *testing.T) {
	owned, moved := pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"), pool.MovedEntry("node-2", "db/mysql-0")
	for name, c := range map[string]struct {
		// node is the node of the next pod, and ip the IP in its status; empty: none.
		node, ip string
		want     pool.Entry
	}{
		"bound to the node of the moved address":                           {node: "node-2", want: moved},
		"bound to a third node":                                            {node: "node-3", want: moved},
		"bound to the node of the moved address, and runs with another IP": {node: "node-2", ip: "10.0.9.9", want: owned},
		"bound to a third node, and runs with another IP":                  {node: "node-3", ip: "10.0.9.9", want: owned},
		"bound to the home":                                                {node: "node-1", want: owned},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.create(node("node-1"), gen.CiliumNode("node-1"), node("node-2"))
			controller := s.controller(s.counting(nil), s.api, rules(subnetplan.Inherit, 28))
			controller.pass(s)
			record := s.record("mysql-0", "node-2", "10.0.0.9")
			record.Status.MovableFor = "the former mysql-0"
			set := &metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql", UID: "1", Controller: ptr.To(true)}
			s.create(record, runningPod("mysql-0", c.node, c.ip, set))
			s.delete(gen.CiliumNode("node-1"))
			controller.pass(s)
			s.create(gen.CiliumNode("node-1"))
			controller.pass(s)
			if got := s.pools()["node-1"].Entries[netip.MustParseAddr("10.0.0.9")]; got != c.want {
				t.Errorf("entry of 10.0.0.9 in the pool of node-1: got %+v, want %+v", got, c.want)
			}
		})
	}
}

// TestReservedAddressStaysAtHome checks the first pool of a node that joins and has a pod with a reserved address of
// another node. The pod was allowed to take the address with it and has no IP yet. The first pool must have no entry
// for the address, because the pod may have been bound without it: in the model (seed 322488056) the pod had opted
// out, and both pools offered the address.
func TestReservedAddressStaysAtHome(t *testing.T) {
	s := newScene(t)
	s.create(node("node-1"), gen.CiliumNode("node-1"))
	controller := s.controller(s.counting(nil), s.api, rules(subnetplan.Inherit, 28))
	controller.pass(s)
	pod := runningPod("mysql-0", "node-2", "", &metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql", UID: "1", Controller: ptr.To(true)})
	s.create(pod)
	record := s.record("mysql-0", "node-1", "10.0.0.9")
	record.Status.MovableFor = pod.UID
	s.create(record, node("node-2"), gen.CiliumNode("node-2"))
	controller.pass(s)
	n := s.pools()["node-2"]
	if e, exists := n.Entries[netip.MustParseAddr("10.0.0.9")]; exists || len(n.Subnets) != 1 {
		t.Errorf("pool of node-2: got entry %+v of 10.0.0.9 and subnets %v, want no entry and one subnet", e, n.Subnets)
	}
}

// TestNodeMissingInTheCache checks that the controller records the loss of a node that is gone, and records no loss of a
// node that is missing in the cache only.
func TestNodeMissingInTheCache(t *testing.T) {
	s := newScene(t)
	s.create(node("node-1"), gen.CiliumNode("node-1"), node("node-2"), gen.CiliumNode("node-2"))
	behind := interceptor.NewClient(s.api, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		err := c.List(ctx, list, opts...)
		if nodes, ok := list.(*corev1.NodeList); ok {
			nodes.Items = nil
		}
		return err
	}})
	c := s.controller(s.api, behind, rules(subnetplan.Inherit, 28))
	c.pass(s)
	s.delete(gen.CiliumNode("node-1"), gen.CiliumNode("node-2"), node("node-2"))
	c.pass(s)
	var list v1alpha1.NodeSubnetList
	if err := s.api.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	gone := map[string]bool{}
	for _, subnet := range list.Items {
		gone[subnet.Spec.NodeName] = subnet.Status.OrphanedSince != nil
	}
	if diff := cmp.Diff(map[string]bool{"node-1": false, "node-2": true}, gone); diff != "" {
		t.Errorf("nodes whose loss is recorded (-want +got): %s", diff)
	}
}

// TestFirstPoolKeepsRunningPods checks the first pool of a CiliumNode that was created again. The pool must have an
// entry of the right kind for every address that a pod of the node runs with. It must also have entries for the
// addresses of the node itself (finding C2).
func TestFirstPoolKeepsRunningPods(t *testing.T) {
	s := newScene(t)
	s.create(node("node-1"), gen.CiliumNode("node-1"))
	c := s.controller(s.counting(nil), s.api, rules(subnetplan.Inherit, 28))
	c.pass(s)
	set := &metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql", UID: "1", Controller: ptr.To(true)}
	// The pods mysql-5 and mysql-13 were deleted by force, and the next pod mysql-13 has no node yet (seed 217105 of the model).
	// The FixedIP of mysql-13 no longer names a pod that uses the address.
	forced, waited := s.record("mysql-5", "node-4", "10.0.0.6"), s.record("mysql-13", "node-4", "10.0.0.9")
	forced.Status.PodUID, waited.Status.MovableFor = "mysql-5", "the former mysql-13"
	// mysql-7 has moved from node-1 to node-4, and mysql-9 to node-1 from another node, which is gone. These pods have not
	// reported their addresses, and the CiliumNodes of node-1 and node-4 were deleted. mysql-10 was never allowed to move its
	// address, and mysql-11 is not bound. mysql-12 has moved too, and its StatefulSet no longer controls it.
	leaving, coming, unbound := runningPod("mysql-7", "node-4", "", set), runningPod("mysql-9", "node-1", "", set), runningPod("mysql-11", "", "", set)
	s.create(leaving, coming, unbound, runningPod("mysql-12", "node-1", "10.0.8.7", nil), s.record("mysql-12", "node-1", "10.0.8.7"))
	left, came, waits := s.record("mysql-7", "node-1", "10.0.0.3"), s.record("mysql-9", "node-6", "10.0.8.8"), s.record("mysql-11", "node-1", "10.0.0.8")
	left.Status.MovableFor, came.Status.MovableFor, waits.Status.MovableFor = leaving.UID, coming.UID, unbound.UID
	s.create(
		runningPod("web", "node-1", "10.0.0.5", nil),
		runningPod("mysql-0", "node-1", "10.0.0.14", set), s.record("mysql-0", "node-1", "10.0.0.14"),
		runningPod("mysql-1", "node-1", "10.0.0.13", set),
		s.record("mysql-2", "node-1", "10.0.0.12"),
		// mysql-5 and the former mysql-13 may still run on node-4, which has no CiliumNode either. node-5, which the FixedIP of
		// mysql-6 names, is gone, and the FixedIP of mysql-8 does not show that a pod has used its address.
		node("node-4"), forced, waited, runningPod("mysql-13", "", "", set), s.record("mysql-6", "node-5", "10.0.0.4"), s.record("mysql-8", "node-4", "10.0.0.2"),
		left, came, waits,
		runningPod("mysql-10", "node-1", "", set), s.record("mysql-10", "node-6", "10.0.8.9"),
		runningPod("intruder", "node-1", "10.0.0.11", nil), s.record("mysql-3", "node-1", "10.0.0.11"),
		runningPod("host", "node-1", "10.0.0.10", nil), runningPod("done", "node-1", "10.0.0.9", nil), runningPod("other-node", "node-2", "10.0.0.8", nil),
	)
	var host, done corev1.Pod
	for name, p := range map[string]*corev1.Pod{"host": &host, "done": &done} {
		if err := s.api.Get(t.Context(), client.ObjectKey{Namespace: "db", Name: name}, p); err != nil {
			t.Fatal(err)
		}
	}
	host.Spec.HostNetwork, done.Status.Phase = true, corev1.PodSucceeded
	if err := errors.Join(s.api.Update(t.Context(), &host), s.api.Status().Update(t.Context(), &done)); err != nil {
		t.Fatal(err)
	}
	// The address of mysql-4 has moved from its home node-3 to node-1, and the pod does not exist at the moment.
	home := gen.CiliumNode("node-3")
	home.Spec.IPAM.PodCIDRs = []string{"10.0.9.0/28"}
	home.Spec.IPAM.Pool = ipamtypes.AllocationMap{"10.0.9.9": ciliumpool.EncodeEntry(pool.MovedEntry("node-1", "db/mysql-4"))}
	s.create(home, s.record("mysql-4", "node-1", "10.0.9.9"))
	s.delete(gen.CiliumNode("node-1"))
	c.pass(s)
	again := gen.CiliumNode("node-1")
	again.Spec.HealthAddressing.IPv4 = "10.0.0.7"
	s.create(again)
	made := s.clock.Now()
	c.pass(s)
	mysql := func(pod string) pool.Entry { return pool.OwnedEntry("db", pod, "StatefulSet", "mysql") }
	want := map[netip.Addr]pool.Entry{
		netip.MustParseAddr("10.0.0.1"):  {}, // added by fill
		netip.MustParseAddr("10.0.0.5"):  {},
		netip.MustParseAddr("10.0.0.7"):  {},
		netip.MustParseAddr("10.0.0.14"): mysql("mysql-0"),
		netip.MustParseAddr("10.0.0.13"): mysql("mysql-1"),
		netip.MustParseAddr("10.0.0.12"): mysql("mysql-2"),
		netip.MustParseAddr("10.0.0.11"): pool.CooldownEntry("", made),
		netip.MustParseAddr("10.0.9.9"):  mysql("mysql-4"),
		netip.MustParseAddr("10.0.0.6"):  pool.MovedEntry("node-4", "db/mysql-5"),
		netip.MustParseAddr("10.0.0.9"):  pool.MovedEntry("node-4", "db/mysql-13"),
		netip.MustParseAddr("10.0.0.4"):  mysql("mysql-6"),
		netip.MustParseAddr("10.0.0.2"):  mysql("mysql-8"),
		netip.MustParseAddr("10.0.0.3"):  pool.MovedEntry("node-4", "db/mysql-7"),
		netip.MustParseAddr("10.0.0.8"):  mysql("mysql-11"),
		netip.MustParseAddr("10.0.8.7"):  mysql("mysql-12"),
		netip.MustParseAddr("10.0.8.8"):  mysql("mysql-9"),
	}
	if diff := cmp.Diff(want, s.pools()["node-1"].Entries, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("entries of the first pool of node-1 (-want +got): %s", diff)
	}
}

// TestFirstPoolOfOtherScheduler checks that a pod that another scheduler has placed, and that has no FixedIP, has a dynamic
// entry in the first pool: it has no fixed address unless it is adopted.
func TestFirstPoolOfOtherScheduler(t *testing.T) {
	for scheduler, want := range map[string]pool.Entry{
		corev1.DefaultSchedulerName: {},
		"fixedip-scheduler":         pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"),
	} {
		s := newScene(t)
		s.create(node("node-1"), gen.CiliumNode("node-1"))
		c := s.controller(s.counting(nil), s.api, rules(subnetplan.Inherit, 28))
		c.pass(s)
		set := &metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql", UID: "1", Controller: ptr.To(true)}
		mysql := runningPod("mysql-0", "node-1", "10.0.0.14", set)
		mysql.Spec.SchedulerName = scheduler
		s.create(mysql)
		s.delete(gen.CiliumNode("node-1"))
		c.pass(s)
		s.create(gen.CiliumNode("node-1"))
		c.pass(s)
		if got, ok := s.pools()["node-1"].Entries[netip.MustParseAddr("10.0.0.14")]; !ok || got != want {
			t.Errorf("%s: the pool has the entry %+v (exists: %v) for the address of the pod, want %+v", scheduler, got, ok, want)
		}
	}
}

// TestNodeSubnetCreatedAgain checks that a NodeSubnet that never existed, or that a user deleted, is created for the node
// that has the subnet.
func TestNodeSubnetCreatedAgain(t *testing.T) {
	s := newScene(t)
	s.create(node("old"), gen.CiliumNode("old", "10.0.0.0/28", "fd00::/64"))
	c := s.controller(s.counting(nil), s.api, rules(subnetplan.Inherit, 28))
	c.pass(s)
	want := map[string]string{"10.0.0.0/28": "old", "fd00::/64": "old"}
	if diff := cmp.Diff(want, s.claims()); diff != "" {
		t.Errorf("claims at the start (-want +got): %s", diff)
	}
	s.delete(&v1alpha1.NodeSubnet{ObjectMeta: metav1.ObjectMeta{Name: "10-0-0-0-28"}})
	c.pass(s)
	if diff := cmp.Diff(want, s.claims()); diff != "" {
		t.Errorf("claims after a deletion (-want +got): %s", diff)
	}
}
