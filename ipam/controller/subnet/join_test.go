// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/test/gen"
)

// TestJoiningCostsConstantRequests checks that the number of requests for a node that joins does not grow with the number
// of nodes, and that no request lists CiliumNodes or FixedIPs (finding C4).
func TestJoiningCostsConstantRequests(t *testing.T) {
	const joining = 200
	for _, existing := range []int{50, 5000} {
		s := newScene(t)
		all := &shelf{WithWatch: s.api, subnets: map[string]*v1alpha1.NodeSubnet{}}
		r := rules(subnetplan.Inherit, 28)
		r.Pools[0].CIDR = netip.MustParsePrefix("10.0.0.0/12")
		c := s.controller(s.countingOver(all, nil), all, r)
		c.started.Store(true)
		for i := range existing {
			name := fmt.Sprintf("existing-%d", i)
			subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 12), byte(i >> 4), byte(i << 4)}), 28)
			c.Ledger.SetNode(pool.NodePool{Name: name, Subnets: []netip.Prefix{subnet}, PodCIDRs: []string{subnet.String()}})
			ns := &v1alpha1.NodeSubnet{Spec: v1alpha1.NodeSubnetSpec{CIDR: subnet.String(), NodeName: name}}
			ns.Name = address.SubnetName(subnet)
			all.subnets[ns.Name] = ns
		}
		// given contains the node that got each subnet. Key: the subnet.
		given := map[netip.Prefix]string{}
		for i := range joining {
			name := fmt.Sprintf("joins-%d", i)
			s.create(node(name), gen.CiliumNode(name))
			c.Ledger.SetNode(s.pool(name))
			if _, err := c.reconcileNode(t.Context(), source.ForName(name)); err != nil {
				t.Fatal(err)
			}
			n := s.pool(name)
			c.Ledger.SetNode(n)
			if len(n.Subnets) != 1 || given[n.Subnets[0]] != "" || len(n.Entries) == 0 {
				t.Fatalf("node %s: got subnets %v and entries %v, want one subnet that no other node has, with entries", name, n.Subnets, n.Entries)
			}
			given[n.Subnets[0]] = name
		}
		want := map[string]int{
			"create *v1alpha1.NodeSubnet": joining, "list *v1alpha1.NodeSubnetList": joining,
			"list *v1.PodList": joining, "patch *v2.CiliumNode": joining, "update status *v1alpha1.NodeSubnet": joining,
		}
		if diff := cmp.Diff(want, s.requests); diff != "" {
			t.Errorf("requests for %d nodes that join %d existing nodes (-want +got): %s", joining, existing, diff)
		}
	}
}

// TestJoinsDoNotWaitForEachOther checks that a slow request for one node does not delay the subnet of another node
// (finding C4).
func TestJoinsDoNotWaitForEachOther(t *testing.T) {
	s := newScene(t)
	s.create(node("slow"), gen.CiliumNode("slow"), node("fast"), gen.CiliumNode("fast"))
	entered, leave := make(chan struct{}), make(chan struct{})
	c := s.controller(s.counting(func(verb string, o any) error {
		if ns, ok := o.(*v1alpha1.NodeSubnet); ok && verb == "create" && ns.Spec.NodeName == "slow" {
			close(entered)
			<-leave
		}
		return nil
	}), s.api, rules(subnetplan.Inherit, 28))
	c.started.Store(true)
	c.watch(s)
	done := make(chan error)
	go func() {
		_, err := c.reconcileNode(t.Context(), source.ForName("slow"))
		done <- err
	}()
	<-entered
	if _, err := c.reconcileNode(t.Context(), source.ForName("fast")); err != nil {
		t.Fatal(err)
	}
	if got := s.pool("fast").PodCIDRs; len(got) != 1 {
		t.Errorf("node fast: got subnets %v while a request for node slow is under way, want one subnet", got)
	}
	close(leave)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	s.disjoint()
}

// stoppedJoin lets a controller reconcile a node that joins. The controller stops at the first request for which stops returns
// true.
func (s *scene) stoppedJoin(name string, stops func(verb string, o any) bool) {
	s.t.Helper()
	stopped := s.controller(s.counting(func(verb string, o any) error {
		if stops(verb, o) {
			return errStopped
		}
		return nil
	}), s.api, rules(subnetplan.Inherit, 28))
	stopped.started.Store(true)
	stopped.watch(s)
	if _, err := stopped.reconcileNode(s.t.Context(), source.ForName(name)); err == nil {
		s.t.Fatal("reconcileNode succeeded, want the error of the stopped request")
	}
}

// TestResumedJoin checks that another controller completes a join if the first controller created the NodeSubnet and stopped at
// any later request of the join.
func TestResumedJoin(t *testing.T) {
	for _, stop := range []string{"list *v1alpha1.NodeSubnetList", "list *v1.PodList", "patch *v2.CiliumNode", "update status *v1alpha1.NodeSubnet"} {
		t.Run(stop, func(t *testing.T) {
			s := newScene(t)
			s.create(node("node-1"), gen.CiliumNode("node-1"))
			s.stoppedJoin("node-1", func(verb string, o any) bool { return verb+fmt.Sprintf(" %T", o) == stop })
			s.create(node("node-2"), gen.CiliumNode("node-2"))
			next := s.controller(s.counting(nil), s.api, rules(subnetplan.Inherit, 26))
			next.pass(s)
			for _, name := range []string{"node-1", "node-2"} {
				if got := s.pools()[name].PodCIDRs; len(got) != 1 {
					t.Errorf("node %s: got subnets %v, want one", name, got)
				}
			}
			if got := len(s.claims()); got != 2 {
				t.Errorf("got claims %v, want two", s.claims())
			}
			s.disjoint()
		})
	}
}

// TestEarlierClaimOfTheSameNode checks that a claim that is not published yet is published together with a new claim for the
// other family (finding C13).
func TestEarlierClaimOfTheSameNode(t *testing.T) {
	s := newScene(t)
	s.create(node("node-1"), gen.CiliumNode("node-1"))
	s.stoppedJoin("node-1", func(verb string, _ any) bool { return verb == "patch" })
	both := rules(subnetplan.Inherit, 28)
	both.Pools = append(both.Pools, address.ClusterPool{CIDR: netip.MustParsePrefix("fd00::/48"), MaskSize: 64})
	s.create(node("node-2"), gen.CiliumNode("node-2"))
	next := s.controller(s.counting(nil), s.api, both)
	next.pass(s)
	if got := s.pool("node-1").PodCIDRs; !slices.Equal(got, []string{"10.0.0.0/28", "fd00::/64"}) {
		t.Errorf("node-1: got subnets %v, want 10.0.0.0/28 of the earlier claim and fd00::/64", got)
	}
	if diff := cmp.Diff(map[string]string{"10.0.0.0/28": "node-1", "fd00::/64": "node-1", "10.0.0.16/28": "node-2", "fd00:0:0:1::/64": "node-2"}, s.claims()); diff != "" {
		t.Errorf("claims (-want +got): %s", diff)
	}
}
