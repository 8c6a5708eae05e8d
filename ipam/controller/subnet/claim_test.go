// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/test/gen"
)

// TestPendingClaim checks the conditions of a claim whose node has no CiliumNode yet, and that the node gets the subnet later.
func TestPendingClaim(t *testing.T) {
	s := newScene(t)
	s.create(node("a"))
	ns := &v1alpha1.NodeSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: "10-0-0-16-28", CreationTimestamp: metav1.NewTime(start)},
		Spec:       v1alpha1.NodeSubnetSpec{CIDR: "10.0.0.16/28", NodeName: "a", CiliumNodeUID: "uid-before"},
	}
	s.create(ns)
	c := s.controller(s.counting(nil), s.api, rules(subnetplan.Hold, 28))
	conditions := func() (have []string) {
		if err := s.api.Get(t.Context(), client.ObjectKeyFromObject(ns), ns); err != nil {
			t.Fatal(err)
		}
		for _, c := range ns.Status.Conditions {
			have = append(have, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
		}
		return have
	}
	for _, step := range []struct {
		name string
		at   time.Duration
		do   func()
		want []string
	}{
		{"at first", 0, func() {}, nil},
		{"still without a CiliumNode", pendingAfter, func() {}, []string{"Assigned=False Pending", "Ready=False Pending"}},
		{"the agent has created the CiliumNode", time.Minute, func() { s.create(gen.CiliumNode("a")) }, []string{"Assigned=True Assigned", "Ready=True Assigned"}},
	} {
		s.clock.SetTime(start.Add(step.at))
		step.do()
		c.pass(s)
		if got := conditions(); !slices.Equal(got, step.want) {
			t.Errorf("%s: got conditions %v, want %v", step.name, got, step.want)
		}
	}
	if got := s.pool("a").PodCIDRs; !slices.Equal(got, []string{"10.0.0.16/28"}) {
		t.Errorf("got subnets %v of the node, want the claimed one", got)
	}
}

// TestReservedAddressClaimsItsSubnet checks that a FixedIP that was restored from a backup, or created beforehand, claims
// the subnet of its address.
func TestReservedAddressClaimsItsSubnet(t *testing.T) {
	s := newScene(t)
	s.create(s.record("mysql-0", "node-1", "10.0.0.17"), s.record("mysql-1", "", "10.0.0.33"))
	c := s.controller(s.counting(nil), s.api, rules(subnetplan.Hold, 28))
	c.pass(s)
	if diff := cmp.Diff(map[string]string{"10.0.0.16/28": "node-1", "10.0.0.32/28": ""}, s.claims()); diff != "" {
		t.Errorf("claims (-want +got): %s", diff)
	}
	s.create(node("node-1"), gen.CiliumNode("node-1"))
	c.pass(s)
	if n := s.pools()["node-1"]; !slices.Equal(n.PodCIDRs, []string{"10.0.0.16/28"}) || n.Entries[netip.MustParseAddr("10.0.0.17")] != pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql") {
		t.Errorf("node-1: got subnets %v and entries %v, want 10.0.0.16/28 and an owned entry of 10.0.0.17", n.PodCIDRs, n.Entries)
	}
}
