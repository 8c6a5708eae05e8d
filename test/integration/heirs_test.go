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

// homeless creates a FixedIP with the policy Migrate whose address is in an orphaned subnet: the node went an hour ago.
func (e *env) homeless(t *testing.T, pod, node, addr string) {
	t.Helper()
	record := &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: pod}, Spec: v1alpha1.FixedIPSpec{
		IPs: []string{addr}, NodeName: node, PodName: pod, Failover: v1alpha1.Migrate,
		Owner: v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql", UID: types.UID("1")},
	}}
	if err := e.api.Create(within(t), record); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(e.api.Delete(context.Background(), record)); err != nil {
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

// adopt lets nodes inherit the orphaned subnets, as the controller does. living are the nodes that may inherit; given are
// those that did.
func (e *env) adopt(t *testing.T, a *subnet.Controller, living ...string) (given []string, err error) {
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
		heir, _ := a.Rules.PickExistingNode(o, heirs(living...), time.Now())
		if heir == "" {
			continue
		}
		n := e.published(t, heir)
		if _, err := a.Take(within(t), o, subnetplan.Holder{Node: heir, CiliumNodeUID: types.UID(n.UID)}); err != nil {
			return given, err
		}
		if _, err := a.Assign(within(t), n, nil); err != nil {
			return given, err
		}
		given = append(given, heir)
	}
	return given, nil
}

// published returns the pool of a node, read from the API server.
func (e *env) published(t *testing.T, name string) pool.NodePool {
	t.Helper()
	n, err := ciliumpool.New(e.api).Get(within(t), name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func heirs(names ...string) []subnetplan.CandidateNode {
	var out []subnetplan.CandidateNode
	for _, n := range names {
		out = append(out, subnetplan.CandidateNode{Name: n, Subnets: 1, Ready: true})
	}
	return out
}

// racingHeirs checks that two controllers, both of which believe that they lead and never update their view, give the
// orphaned subnets of six nodes, with three addresses each, to three joining and three existing nodes, each subnet to one
// node.
func (e *env) racingHeirs(t *testing.T) {
	e.database(t)
	e.withoutClaims(t)
	for i := range 6 {
		for j := range 3 {
			e.homeless(t, fmt.Sprintf("mysql-%d", 3*i+j), fmt.Sprintf("lost-%d", i), fmt.Sprintf("10.6.0.%d", 16*i+1+j))
		}
	}
	var living []string
	for i := range 3 {
		living = append(living, e.ciliumNode(t, fmt.Sprintf("living-%d", i), fmt.Sprintf("10.66.%d.0/28", i)).Name)
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
					t.Error("the orphans are not all given away")
					return
				}
				done := true
				if tries < len(joining) {
					if _, err := a.Assign(within(t), joining[tries], nil); err != nil && !busy(err) {
						t.Logf("joining: %v", err)
					}
					done = false
				}
				if given, err := e.adopt(t, a, living...); len(given) > 0 || err != nil {
					done = false
				}
				// The other controller may have taken subnets that it has not published yet, or published some of them only.
				for _, name := range append(slices.Clone(living), "joins-0", "joins-1", "joins-2") {
					if given, err := a.Assign(within(t), e.published(t, name), nil); len(given.Subnets) > 0 || err != nil {
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
	homes := 0
	for _, name := range append(living, "joins-0", "joins-1", "joins-2") {
		n := e.published(t, name)
		for _, s := range n.Subnets {
			for other, by := range seen {
				if s.Overlaps(other) {
					t.Errorf("%s of %s overlaps %s of %s", s, name, other, by)
				}
			}
			seen[s] = name
		}
		for a, entry := range n.Entries {
			if want := owned(fmt.Sprintf("mysql-%d", int(a.As4()[3])/16*3+int(a.As4()[3])%16-1)); entry != want || !n.Home(a) {
				t.Errorf("%s has %+v on %s, want %+v", name, entry, a, want)
			}
			homes++
		}
	}
	for i := range 6 {
		if s := netip.MustParsePrefix(fmt.Sprintf("10.6.0.%d/28", 16*i)); seen[s] == "" {
			t.Errorf("no node has %s", s)
		}
	}
	if homes != 18 {
		t.Errorf("%d addresses are reserved, want 18", homes)
	}
}

// pausedAdoption checks that if a controller stops between taking a subnet for a node and publishing it, the next controller
// publishes it for the same node, although only another node is a candidate by now.
func (e *env) pausedAdoption(t *testing.T) {
	e.database(t)
	e.withoutClaims(t)
	e.homeless(t, "mysql-0", "lost", "10.6.0.1")
	e.ciliumNode(t, "heir-1", "10.66.1.0/28")
	e.ciliumNode(t, "heir-2", "10.66.2.0/28")
	stopped := e.assigner(t, unpublished{e.api}, subnetplan.Hold)
	if _, err := e.adopt(t, stopped, "heir-1", "heir-2"); !errors.Is(err, errStopped) {
		t.Fatal(err)
	}
	next := e.assigner(t, e.api, subnetplan.Hold)
	if given, err := e.adopt(t, next, "heir-2"); len(given) > 0 || err != nil {
		t.Errorf("given to %v, %v", given, err)
	}
	if _, err := next.Assign(within(t), e.published(t, "heir-1"), nil); err != nil {
		t.Fatal(err)
	}
	if n := e.published(t, "heir-1"); len(n.Subnets) != 2 || n.Entries[netip.MustParseAddr("10.6.0.1")] != owned("mysql-0") {
		t.Errorf("heir-1 has %v and %v", n.PodCIDRs, n.Entries)
	}
}

// inheritedMarks checks the entries of an inherited subnet: one of its three addresses lives on another node, and one was
// about to move there. No two pools offer the same address.
func (e *env) inheritedMarks(t *testing.T) {
	e.database(t)
	e.withoutClaims(t)
	for i := range 3 {
		e.homeless(t, fmt.Sprintf("mysql-%d", i), "lost", fmt.Sprintf("10.6.0.%d", i+1))
	}
	pools := ciliumpool.New(e.api)
	foreign := e.ciliumNode(t, "foreign", "10.66.1.0/28")
	lives, moves := netip.MustParseAddr("10.6.0.2"), netip.MustParseAddr("10.6.0.3")
	if _, err := pools.ChangeEntries(within(t), foreign, []pool.EntryChange{foreign.Set(lives, owned("mysql-1")), foreign.Set(moves, pool.MoveTargetEntry("db/mysql-2"))}, false); err != nil {
		t.Fatal(err)
	}
	heir := e.ciliumNode(t, "heir", "10.66.2.0/28")
	a := e.assigner(t, e.api, subnetplan.Hold)
	if given, err := e.adopt(t, a, heir.Name); err != nil || len(given) != 1 {
		t.Fatalf("given: %+v, %v", given, err)
	}
	heir, foreign = e.published(t, "heir"), e.published(t, "foreign")
	for addr, want := range map[string]pool.Entry{"10.6.0.1": owned("mysql-0"), "10.6.0.2": pool.MovedEntry("foreign", "db/mysql-1"), "10.6.0.3": owned("mysql-2")} {
		if got := heir.Entries[netip.MustParseAddr(addr)]; got != want {
			t.Errorf("the heir has %+v on %s, want %+v", got, addr, want)
		}
	}
	if foreign.Entries[lives] != owned("mysql-1") || foreign.Entries[moves].Kind != pool.Cooldown {
		t.Errorf("the other node has %v", foreign.Entries)
	}
	// The program that was about to complete the move is refused.
	if _, err := pools.ChangeEntries(within(t), foreign, []pool.EntryChange{{Addr: moves, From: ptr.To(pool.MoveTargetEntry("db/mysql-2")), To: ptr.To(owned("mysql-2"))}}, false); !errors.Is(err, ciliumpool.ErrChanged) {
		t.Errorf("the move went on: %v", err)
	}
}

// unrecordedMarks covers an address that was moved before its pod ran, so that no FixedIP reserves it, and whose home
// CiliumNode is gone. The subnet stays with its node, and when the node has it again, its pool has a moved entry.
func (e *env) unrecordedMarks(t *testing.T) {
	e.withoutClaims(t)
	lives := netip.MustParseAddr("10.6.0.2")
	pools := ciliumpool.New(e.api)
	foreign := e.ciliumNode(t, "foreign", "10.66.1.0/28")
	if _, err := pools.ChangeEntries(within(t), foreign, []pool.EntryChange{foreign.Set(lives, owned("mysql-1"))}, false); err != nil {
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
	if given, err := a.Assign(within(t), e.ciliumNode(t, "next"), nil); err != nil || slices.Equal(given.Subnets, home.Subnets) {
		t.Fatalf("given: %+v, %v", given, err)
	}
	if given, err := a.Assign(within(t), e.ciliumNode(t, "home"), nil); err != nil || !slices.Equal(given.Subnets, home.Subnets) {
		t.Fatalf("given: %+v, %v", given, err)
	}
	if got := e.published(t, "home").Entries; len(got) != 1 || got[lives] != pool.MovedEntry("foreign", "db/mysql-1") {
		t.Errorf("the home has %v", got)
	}
}

// database creates the namespace of the FixedIPs.
func (e *env) database(t *testing.T) {
	t.Helper()
	err := e.api.Create(within(t), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "db"}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}
