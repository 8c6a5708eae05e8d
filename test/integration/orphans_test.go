// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/subnet"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// orphanedFixedIP creates a FixedIP with the policy Migrate whose address is in a subnet that has been orphaned for an hour.
// It creates the NodeSubnet, too, if that does not exist.
func (e *env) orphanedFixedIP(t *testing.T, pod, node, addr string) {
	t.Helper()
	fip := &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: pod}, Spec: v1alpha1.FixedIPSpec{
		IPs: []string{addr}, NodeName: node, PodName: pod, Failover: v1alpha1.Migrate,
		Owner: v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql", UID: types.UID("1")},
	}}
	if err := e.api.Create(within(t), fip); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(e.api.Delete(context.Background(), fip)); err != nil {
			t.Error(err)
		}
	})
	subnet := netip.PrefixFrom(netip.MustParseAddr(addr), 28).Masked()
	claim := &v1alpha1.NodeSubnet{ObjectMeta: metav1.ObjectMeta{Name: address.SubnetName(subnet)}, Spec: v1alpha1.NodeSubnetSpec{CIDR: subnet.String(), NodeName: node}}
	switch err := e.api.Create(within(t), claim); {
	case apierrors.IsAlreadyExists(err):
		return
	case err != nil:
		t.Fatal(err)
	}
	claim.Status.OrphanedSince = ptr.To(metav1.NewTime(time.Now().Add(-time.Hour)))
	if err := e.api.Status().Update(within(t), claim); err != nil {
		t.Fatal(err)
	}
}

// inherit lets nodes inherit the orphaned subnets, as the controller does. candidates are the nodes that may inherit,
// and inheriting are the nodes that have inherited a subnet. It may be called in any goroutine.
func (e *env) inherit(t *testing.T, a *subnet.Controller, candidates ...string) (inheriting []string, err error) {
	t.Helper()
	list, err := a.List(within(t))
	if err != nil {
		return nil, err
	}
	orphans, err := a.Lost(within(t), list)
	if err != nil {
		return nil, err
	}
	for _, o := range orphans {
		node, _ := a.Rules.PickExistingNode(o, candidateNodes(candidates...), time.Now())
		if node == "" {
			continue
		}
		n, err := ciliumpool.New(e.api).Get(within(t), node)
		if err != nil {
			return inheriting, err
		}
		if _, err := a.Take(within(t), o, candidateNodes(node)[0], subnetplan.Assignee{Node: node, CiliumNodeUID: types.UID(n.UID)}); err != nil {
			return inheriting, err
		}
		if _, err := a.Assign(within(t), n, nil); err != nil {
			return inheriting, err
		}
		inheriting = append(inheriting, node)
	}
	return inheriting, nil
}

// readPool returns the pool of a node, read from the API server.
func (e *env) readPool(t *testing.T, name string) pool.NodePool {
	t.Helper()
	n, err := ciliumpool.New(e.api).Get(within(t), name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func candidateNodes(names ...string) []subnetplan.CandidateNode {
	var out []subnetplan.CandidateNode
	for _, n := range names {
		out = append(out, subnetplan.CandidateNode{Name: n, Subnets: 1, Ready: true})
	}
	return out
}

// racingInheritance runs two controllers that are both active and whose ledgers are never updated. Three joining and
// three existing nodes inherit the orphaned subnets of six nodes, with three addresses each. It checks that exactly one
// node inherits each subnet.
func (e *env) racingInheritance(t *testing.T) {
	e.createNamespace(t)
	e.cleanUpNodeSubnets(t)
	for i := range 6 {
		for j := range 3 {
			e.orphanedFixedIP(t, fmt.Sprintf("mysql-%d", 3*i+j), fmt.Sprintf("lost-%d", i), fmt.Sprintf("10.6.0.%d", 16*i+1+j))
		}
	}
	var existing []string
	for i := range 3 {
		existing = append(existing, e.ciliumNode(t, fmt.Sprintf("existing-%d", i), fmt.Sprintf("10.66.%d.0/28", i)).Name)
	}
	var joining []pool.NodePool
	for i := range 3 {
		joining = append(joining, e.ciliumNode(t, fmt.Sprintf("joins-%d", i)))
	}
	var wg sync.WaitGroup
	for range 2 {
		a := e.assigner(t, e.api, subnetplan.Inherit)
		wg.Go(func() {
			for tries := 0; ; tries++ {
				if tries > 500 {
					t.Error("nodes have not inherited all orphaned subnets after 500 attempts")
					return
				}
				done := true
				if tries < len(joining) {
					if _, err := a.Assign(within(t), joining[tries], nil); err != nil && !busy(err) {
						t.Logf("assign subnets to a joining node: %v", err)
					}
					done = false
				}
				if inheriting, err := e.inherit(t, a, existing...); len(inheriting) > 0 || err != nil {
					done = false
				}
				// The other controller may not have written all inherited subnets to CiliumNodes yet.
				for _, name := range append(slices.Clone(existing), "joins-0", "joins-1", "joins-2") {
					n, err := ciliumpool.New(e.api).Get(within(t), name)
					if err != nil {
						t.Error(err)
						return
					}
					if assigned, err := a.Assign(within(t), n, nil); len(assigned.Subnets) > 0 || err != nil {
						done = false
					}
				}
				if done {
					return
				}
			}
		})
	}
	wg.Wait()
	// seen contains the subnets of all nodes. Key: the subnet. Value: the node.
	seen := map[netip.Prefix]string{}
	reserved := 0
	for _, name := range append(existing, "joins-0", "joins-1", "joins-2") {
		n := e.readPool(t, name)
		for _, s := range n.Subnets {
			for other, by := range seen {
				if s.Overlaps(other) {
					t.Errorf("subnet %s of node %s overlaps subnet %s of node %s", s, name, other, by)
				}
			}
			seen[s] = name
		}
		for a, entry := range n.Entries {
			if want := owned(fmt.Sprintf("mysql-%d", int(a.As4()[3])/16*3+int(a.As4()[3])%16-1)); entry != want || !n.Home(a) {
				t.Errorf("node %s has the entry %+v for %s, want %+v in one of its subnets", name, entry, a, want)
			}
			reserved++
		}
	}
	for i := range 6 {
		if s := netip.MustParsePrefix(fmt.Sprintf("10.6.0.%d/28", 16*i)); seen[s] == "" {
			t.Errorf("no node has the subnet %s", s)
		}
	}
	if reserved != 18 {
		t.Errorf("%d addresses are reserved, want 18", reserved)
	}
}

// pausedInheritance covers a controller that stops after it has written the inheriting node to the NodeSubnet, and before it
// has written the subnet to the CiliumNode. The next controller has to write the subnet to the CiliumNode of that node,
// although only another node is a candidate then.
func (e *env) pausedInheritance(t *testing.T) {
	e.createNamespace(t)
	e.cleanUpNodeSubnets(t)
	e.orphanedFixedIP(t, "mysql-0", "lost", "10.6.0.1")
	e.ciliumNode(t, "node-1", "10.66.1.0/28")
	e.ciliumNode(t, "node-2", "10.66.2.0/28")
	stopped := e.assigner(t, unpublished{e.api}, subnetplan.Hold)
	if _, err := e.inherit(t, stopped, "node-1", "node-2"); !errors.Is(err, errStopped) {
		t.Fatalf("inherit with a controller that stops: got the error %v, want errStopped", err)
	}
	next := e.assigner(t, e.api, subnetplan.Hold)
	if inheriting, err := e.inherit(t, next, "node-2"); len(inheriting) > 0 || err != nil {
		t.Errorf("got the inheriting nodes %v and the error %v, want neither", inheriting, err)
	}
	if _, err := next.Assign(within(t), e.readPool(t, "node-1"), nil); err != nil {
		t.Fatal(err)
	}
	if n := e.readPool(t, "node-1"); len(n.Subnets) != 2 || n.Entries[netip.MustParseAddr("10.6.0.1")] != owned("mysql-0") {
		t.Errorf("node node-1 has the subnets %v and the entries %v, want two subnets and the entry of mysql-0", n.PodCIDRs, n.Entries)
	}
}

// inheritedEntries checks the entries of an inherited subnet with three reserved addresses. Another node carries the second
// address and has a move-target entry for the third. After the inheritance, no two pools offer the same address.
func (e *env) inheritedEntries(t *testing.T) {
	e.createNamespace(t)
	e.cleanUpNodeSubnets(t)
	for i := range 3 {
		e.orphanedFixedIP(t, fmt.Sprintf("mysql-%d", i), "lost", fmt.Sprintf("10.6.0.%d", i+1))
	}
	pools := ciliumpool.New(e.api)
	carrier := e.ciliumNode(t, "carrier", "10.66.1.0/28")
	carried, moving := netip.MustParseAddr("10.6.0.2"), netip.MustParseAddr("10.6.0.3")
	if _, err := pools.ChangeEntries(within(t), carrier, []pool.EntryChange{carrier.Set(carried, owned("mysql-1")), carrier.Set(moving, pool.MoveTargetEntry("db/mysql-2"))}, false); err != nil {
		t.Fatal(err)
	}
	next := e.ciliumNode(t, "next", "10.66.2.0/28")
	a := e.assigner(t, e.api, subnetplan.Hold)
	if inheriting, err := e.inherit(t, a, next.Name); err != nil || len(inheriting) != 1 {
		t.Fatalf("got the inheriting nodes %v and the error %v, want node next", inheriting, err)
	}
	next, carrier = e.readPool(t, "next"), e.readPool(t, "carrier")
	for addr, want := range map[string]pool.Entry{"10.6.0.1": owned("mysql-0"), "10.6.0.2": pool.MovedEntry("carrier", "db/mysql-1"), "10.6.0.3": owned("mysql-2")} {
		if got := next.Entries[netip.MustParseAddr(addr)]; got != want {
			t.Errorf("node next has the entry %+v for %s, want %+v", got, addr, want)
		}
	}
	if carrier.Entries[carried] != owned("mysql-1") || carrier.Entries[moving].Kind != pool.Cooldown {
		t.Errorf("node carrier has the entries %v, want the owned entry of mysql-1 and a cooldown entry for %s", carrier.Entries, moving)
	}
	// A program that expects the move-target entry can no longer complete the move.
	if _, err := pools.ChangeEntries(within(t), carrier, []pool.EntryChange{{Addr: moving, From: ptr.To(pool.MoveTargetEntry("db/mysql-2")), To: ptr.To(owned("mysql-2"))}}, false); !errors.Is(err, ciliumpool.ErrChanged) {
		t.Errorf("complete the move: got %v, want ErrChanged", err)
	}
}

// unreservedMovedAddress covers an address that was moved before its pod ran, so that no FixedIP reserves it, and whose home
// CiliumNode was deleted. No other node gets the subnet, and when the home node joins again, its pool has a moved entry for
// the address.
func (e *env) unreservedMovedAddress(t *testing.T) {
	e.cleanUpNodeSubnets(t)
	carried := netip.MustParseAddr("10.6.0.2")
	pools := ciliumpool.New(e.api)
	carrier := e.ciliumNode(t, "carrier", "10.66.1.0/28")
	if _, err := pools.ChangeEntries(within(t), carrier, []pool.EntryChange{carrier.Set(carried, owned("mysql-1"))}, false); err != nil {
		t.Fatal(err)
	}
	home := e.ciliumNode(t, "home", "10.6.0.0/28")
	a := e.assigner(t, e.api, subnetplan.Inherit)
	if _, err := a.Assign(within(t), home, nil); err != nil {
		t.Fatal(err)
	}
	if err := e.api.Delete(within(t), &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: home.Name}}); err != nil {
		t.Fatal(err)
	}
	if assigned, err := a.Assign(within(t), e.ciliumNode(t, "next"), nil); err != nil || slices.Equal(assigned.Subnets, home.Subnets) {
		t.Fatalf("assign a subnet to node next: got %+v and the error %v, want another subnet than that of node home", assigned, err)
	}
	if assigned, err := a.Assign(within(t), e.ciliumNode(t, "home"), nil); err != nil || !slices.Equal(assigned.Subnets, home.Subnets) {
		t.Fatalf("assign a subnet to node home: got %+v and the error %v, want its former subnet", assigned, err)
	}
	if got := e.readPool(t, "home").Entries; len(got) != 1 || got[carried] != pool.MovedEntry("carrier", "db/mysql-1") {
		t.Errorf("node home has the entries %v, want a moved entry for %s", got, carried)
	}
}

// createNamespace creates the namespace of the FixedIPs.
func (e *env) createNamespace(t *testing.T) {
	t.Helper()
	err := e.api.Create(within(t), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "db"}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}
