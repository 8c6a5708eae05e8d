// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/test/gen"
)

// TestOverlapIsReported checks that the condition SubnetAvailable of a FixedIP names overlapping subnets even if the other
// address of the FixedIP has no home node yet.
func TestOverlapIsReported(t *testing.T) {
	s := newScene(t)
	for _, name := range []string{"a", "b"} {
		s.create(node(name), gen.CiliumNode(name, "10.0.0.0/28"))
	}
	record := s.record("web-0", "a", "10.0.0.3")
	record.Spec.IPs = append(record.Spec.IPs, "fd00::3")
	s.create(record)
	c := s.controller(s.counting(nil), s.api, rules(subnetplan.Inherit, 28))
	c.pass(s)
	if got := s.available(client.ObjectKeyFromObject(record)); got.Reason != v1alpha1.ReasonSubnetOverlap {
		t.Errorf("got condition %+v, want reason %s", got, v1alpha1.ReasonSubnetOverlap)
	}
	var ns v1alpha1.NodeSubnet
	if err := s.api.Get(t.Context(), client.ObjectKey{Name: "10-0-0-0-28"}, &ns); err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[string]string{v1alpha1.ConditionAssigned: v1alpha1.ReasonAssigned, v1alpha1.ConditionReady: v1alpha1.ReasonSubnetOverlap} {
		if got := meta.FindStatusCondition(ns.Status.Conditions, kind); got == nil || got.Reason != want || got.ObservedGeneration != ns.Generation {
			t.Errorf("NodeSubnet: got condition %s %+v, want reason %s of generation %d", kind, got, want, ns.Generation)
		}
	}
	s.delete(gen.CiliumNode("b"), node("b"))
	c.pass(s)
	if err := s.api.Get(t.Context(), client.ObjectKey{Name: "10-0-0-0-28"}, &ns); err != nil {
		t.Fatal(err)
	}
	if !meta.IsStatusConditionTrue(ns.Status.Conditions, v1alpha1.ConditionReady) {
		t.Errorf("after the overlap: got conditions %+v, want that Ready is True", ns.Status.Conditions)
	}
}

// TestOverlapAndLoss checks that a FixedIP with one address in overlapping subnets and the other in an orphaned subnet reports
// both.
func TestOverlapAndLoss(t *testing.T) {
	s := newScene(t)
	s.create(node("a"), gen.CiliumNode("a", "10.0.0.0/28"), node("b"), gen.CiliumNode("b", "10.0.0.0/28"), node("c"), gen.CiliumNode("c", "fd00::/120"))
	record := s.record("web-0", "a", "10.0.0.3")
	record.Spec.IPs = append(record.Spec.IPs, "fd00::3")
	s.create(record)
	c := s.controller(s.counting(nil), s.api, rules(subnetplan.Hold, 28))
	c.pass(s)
	s.delete(gen.CiliumNode("c"), node("c"))
	c.pass(s)
	got := s.available(client.ObjectKeyFromObject(record))
	if got.Reason != v1alpha1.ReasonSubnetOverlap || !strings.Contains(got.Message, "including 10.0.0.3; ") || !strings.Contains(got.Message, "Node c, whose subnet contains IP fd00::3, is gone") {
		t.Errorf("got condition %+v, want reason %s and a message about both addresses", got, v1alpha1.ReasonSubnetOverlap)
	}
}
