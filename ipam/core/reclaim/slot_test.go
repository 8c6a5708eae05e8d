// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/reclaim"
)

var (
	shop     = v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "shop", UID: "dep-1"}
	shopSpec = v1alpha1.FixedIPSpec{IPs: []string{"10.0.1.6"}, NodeName: "node-1", Owner: shop, Slot: true, PodName: "shop-x", Reclaim: identity.DefaultReclaim()}
	open     = reclaim.Workload{OwnerReference: shop, Exists: true}
	closed   = reclaim.Workload{OwnerReference: shop}
)

// surplus returns a workload with the reclaim policy p that does not need the slot.
func surplus(p v1alpha1.ReclaimPolicy) reclaim.Workload {
	return reclaim.Workload{OwnerReference: shop, Exists: true, Excludes: true, Reclaim: &p}
}

func slotRecord(change ...func(*v1alpha1.FixedIP)) *v1alpha1.FixedIP {
	r := &v1alpha1.FixedIP{
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "shop-10-0-1-6", Finalizers: []string{v1alpha1.Finalizer}},
		Spec:       *shopSpec.DeepCopy(),
		Status:     v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseInUse, PodUID: "uid-shop-x"},
	}
	for _, c := range change {
		c(r)
	}
	return r
}

func keptAside(r *v1alpha1.FixedIP) {
	r.Status = v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved, VacatedBy: "shop-x"}
}

func unconfirmed(r *v1alpha1.FixedIP) {
	r.Status = v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved}
}

func reclaimed(p v1alpha1.ReclaimPolicy) func(*v1alpha1.FixedIP) {
	return func(r *v1alpha1.FixedIP) { r.Spec.Reclaim = p }
}

func replica(name, node string, ips ...string) *corev1.Pod {
	p := podOn(node, ips...)
	p.Name, p.UID = name, types.UID("uid-"+name)
	return p
}

func TestDecideSlot(t *testing.T) {
	mine := []ledger.NodeAddresses{held("node-1", "10.0.1.6")}
	both := []ledger.NodeAddresses{held("node-1", "10.0.1.6", "fd00::6")}
	handedOn, other, grown := shopSpec, shopSpec, shopSpec
	handedOn.PodName = "shop-y"
	grown.IPs = []string{"10.0.1.6", "fd00::6"}
	other.Owner.UID = "dep-2"
	giveBack := policy("Delete", "Delete", 0)
	handedBack := handedOn
	handedBack.Reclaim = giveBack
	policed := shopSpec
	policed.Reclaim = giveBack
	for name, c := range map[string]struct {
		situation reclaim.State
		holder    string
		want      reclaim.Action
	}{
		"a claim whose pod runs with it becomes a slot":         {reclaim.State{Held: mine, Pod: replica("shop-x", "node-1", "10.0.1.6"), Workload: open}, "shop-x", reclaim.Action{Type: reclaim.CreateRecord, Spec: shopSpec}},
		"a claim whose pod is bound waits until it runs":        {reclaim.State{Held: mine, Pod: replica("shop-x", "node-1"), Workload: open}, "shop-x", reclaim.Action{}},
		"a claim whose pod runs with another IP is a slot":      {reclaim.State{Held: mine, Pod: replica("shop-x", "node-1", "10.0.1.2"), Workload: open}, "shop-x", reclaim.Action{Type: reclaim.CreateRecord, Spec: shopSpec}},
		"one that was asked for is a slot whatever its pod got": {reclaim.State{Held: mine, RequestsIPs: true, Pod: replica("shop-x", "node-1", "10.0.1.2"), Workload: open}, "shop-x", reclaim.Action{Type: reclaim.CreateRecord, Spec: shopSpec}},
		"a claim whose pod is on its way waits":                 {reclaim.State{Held: mine, Pod: replica("shop-x", ""), Workload: open}, "shop-x", reclaim.Action{}},
		"a claim whose pod is gone becomes a slot for the next": {reclaim.State{Held: mine, Workload: open}, "shop-x", reclaim.Action{Type: reclaim.CreateRecord, Spec: shopSpec}},
		"a claim whose pod is bound elsewhere goes back": {reclaim.State{Held: mine, Pod: replica("shop-x", "node-2"), Workload: open}, "shop-x",
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"a claim whose pod and workload are gone goes back": {reclaim.State{Held: mine, Workload: closed}, "shop-x",
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"a claim whose workload is gone keeps its pod's address": {reclaim.State{Held: mine, Pod: replica("shop-x", "node-1"), Workload: closed}, "shop-x", reclaim.Action{}},
		"a claim in surplus whose pod is gone goes back": {reclaim.State{Held: mine, Workload: surplus(giveBack)}, "shop-x",
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6")}}},

		"all is well": {reclaim.State{Record: slotRecord(), Held: mine, Pod: replica("shop-x", "node-1"), Workload: open}, "shop-x", reclaim.Action{}},
		"the pod is gone": {reclaim.State{Record: slotRecord(), Held: mine, Workload: open}, "shop-x",
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved}}},
		"that its agent has to confirm": {reclaim.State{Record: slotRecord(unconfirmed), Held: mine, Workload: open}, "shop-x",
			reclaim.Action{Type: reclaim.Vacate, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6")}, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved, VacatedBy: "shop-x"}}},
		"and is not asked for while it lists the address": {reclaim.State{Record: slotRecord(unconfirmed), Held: mine, Workload: open, Reported: []netip.Addr{addr("10.0.1.6")}}, "shop-x", reclaim.Action{}},
		"and has been for long":                           {reclaim.State{Record: slotRecord(keptAside), Held: mine, Workload: open}, "shop-x", reclaim.Action{}},
		"another one is gone than the record says": {reclaim.State{Record: slotRecord(keptAside, func(r *v1alpha1.FixedIP) { r.Spec.PodName = "shop-y" }), Held: mine, Workload: open}, "shop-y",
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved}}},
		"made beforehand, it never had a pod": {reclaim.State{Record: slotRecord(func(r *v1alpha1.FixedIP) { r.Spec.PodName, r.Status = "", v1alpha1.FixedIPStatus{} }), Workload: open}, "",
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved}}},
		"another pod has taken it over": {reclaim.State{Record: slotRecord(keptAside), Held: mine, Pod: replica("shop-y", ""), Workload: open}, "shop-y",
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: handedOn}},
		"and is there": {reclaim.State{Record: slotRecord(keptAside, func(r *v1alpha1.FixedIP) { r.Spec.PodName = "shop-y" }), Held: mine, Pod: replica("shop-y", "node-1"), Workload: open}, "shop-y",
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseInUse, PodUID: "uid-shop-y"}}},
		"the workload was created again": {reclaim.State{Record: slotRecord(), Held: mine, Pod: replica("shop-x", "node-1"), Workload: reclaim.Workload{OwnerReference: other.Owner, Exists: true}}, "shop-x",
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: other}},
		"the workload changes its mind": {reclaim.State{Record: slotRecord(keptAside), Held: mine, Workload: surplus(giveBack)}, "shop-x",
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: policed}},
		"a second family that its pod has joins the slot": {reclaim.State{Record: slotRecord(), Held: both, Pod: replica("shop-x", "node-1", "10.0.1.6", "fd00::6"), Workload: open}, "shop-x",
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: grown}},
		"one that its pod runs without": {reclaim.State{Record: slotRecord(), Held: both, Pod: replica("shop-x", "node-1", "10.0.1.6", "fd00::2"), Workload: open}, "shop-x",
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: grown}},
		"its entries are gone with their node": {reclaim.State{Record: slotRecord(keptAside), Workload: open}, "shop-x", reclaim.Action{}},

		"in surplus, and kept":              {reclaim.State{Record: slotRecord(keptAside), Held: mine, Workload: surplus(identity.DefaultReclaim())}, "shop-x", reclaim.Action{}},
		"in surplus, it goes back":          {reclaim.State{Record: slotRecord(keptAside, reclaimed(giveBack)), Held: mine, Workload: surplus(giveBack)}, "shop-x", reclaim.Action{Type: reclaim.DeleteRecord}},
		"the workload is gone":              {reclaim.State{Record: slotRecord(keptAside), Held: mine, Workload: closed}, "shop-x", reclaim.Action{Type: reclaim.DeleteRecord}},
		"the workload is gone, not it":      {reclaim.State{Record: slotRecord(keptAside, reclaimed(policy("Retain", "Retain", 0))), Held: mine, Workload: closed}, "shop-x", reclaim.Action{}},
		"the workload is gone, its pod not": {reclaim.State{Record: slotRecord(), Held: mine, Pod: replica("shop-x", "node-1"), Workload: closed}, "shop-x", reclaim.Action{}},
		"the workload is gone, and it has time to live": {reclaim.State{Record: slotRecord(keptAside, reclaimed(policy("Delete", "Retain", time.Hour))), Held: mine, Workload: closed}, "shop-x",
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved, ExpiresAt: &metav1.Time{Time: now.Add(time.Hour)}, VacatedBy: "shop-x"}, At: now.Add(time.Hour)}},

		"deleted while its pod runs": {reclaim.State{Record: slotRecord(deleting), Held: mine, Pod: replica("shop-x", "node-1"), Workload: open}, "shop-x",
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReleasing, PodUID: "uid-shop-x"}}},
		"deleted while a pod is on its way": {reclaim.State{Record: slotRecord(deleting), Held: mine, Pod: replica("shop-y", ""), Workload: open}, "shop-y",
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: handedOn}},
		"deleted when it was handed on": {reclaim.State{Record: slotRecord(deleting, func(r *v1alpha1.FixedIP) { r.Spec.Reclaim = giveBack }), Held: mine, Pod: replica("shop-y", "node-1"), Workload: closed}, "shop-y",
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: handedBack}},
		"deleted when the pod that it was handed on to is gone": {reclaim.State{Record: slotRecord(deleting), Held: mine, Workload: open}, "shop-y",
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"and its record says so": {reclaim.State{Record: slotRecord(deleting, func(r *v1alpha1.FixedIP) { r.Spec.PodName = "shop-y" }), Held: mine, Pod: replica("shop-y", ""), Workload: open}, "shop-y",
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReleasing, PodUID: "uid-shop-y"}}},
		"deleted and its pod is gone": {reclaim.State{Record: slotRecord(deleting), Held: mine, Workload: open}, "shop-x",
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"deleted and released": {reclaim.State{Record: slotRecord(deleting), Workload: open}, "shop-x", reclaim.Action{Type: reclaim.FinishRecord}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, decide(asSlot(at(c.situation), c.holder)), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got): %s", diff)
			}
		})
	}
}

func TestSurplus(t *testing.T) {
	slot := func(a string, change ...func(*reclaim.State)) reclaim.State {
		s := reclaim.State{Slot: true, Held: []ledger.NodeAddresses{held("node-1", a)}, Record: slotRecord(keptAside), Holder: "gone"}
		for _, c := range change {
			c(&s)
		}
		return s
	}
	living := func(s *reclaim.State) { s.Pod = replica("shop-x", "node-1") }
	expiring := func(s *reclaim.State) { s.Record.Status.ExpiresAt = &metav1.Time{Time: now} }
	released := func(s *reclaim.State) { deleting(s.Record) }
	claimed := func(s *reclaim.State) { s.Record = nil }
	for name, c := range map[string]struct {
		slots    []reclaim.State
		replicas *int32
		surge    int32
		want     []string
	}{
		"as many as replicas":          {[]reclaim.State{slot("10.0.1.6"), slot("10.0.1.5")}, ptr.To[int32](2), 0, nil},
		"the lowest go first":          {[]reclaim.State{slot("10.0.1.6"), slot("10.0.1.4"), slot("10.0.1.5")}, ptr.To[int32](1), 0, []string{"10.0.1.4", "10.0.1.5"}},
		"not that of a living pod":     {[]reclaim.State{slot("10.0.1.6"), slot("10.0.1.4", living), slot("10.0.1.5")}, ptr.To[int32](2), 0, []string{"10.0.1.5"}},
		"what an update adds is kept":  {[]reclaim.State{slot("10.0.1.6"), slot("10.0.1.4"), slot("10.0.1.5")}, ptr.To[int32](1), 1, []string{"10.0.1.4"}},
		"first whose time runs":        {[]reclaim.State{slot("10.0.1.6", expiring), slot("10.0.1.4"), slot("10.0.1.5")}, ptr.To[int32](2), 0, []string{"10.0.1.6"}},
		"what goes anyway is not one":  {[]reclaim.State{slot("10.0.1.6", released), slot("10.0.1.4"), slot("10.0.1.5")}, ptr.To[int32](2), 0, nil},
		"what is only claimed counts":  {[]reclaim.State{slot("10.0.1.6", claimed), slot("10.0.1.4", claimed)}, ptr.To[int32](1), 0, []string{"10.0.1.4"}},
		"all pods live, being deleted": {[]reclaim.State{slot("10.0.1.6", living), slot("10.0.1.4", living)}, ptr.To[int32](0), 0, nil},
		"without a number all count":   {[]reclaim.State{slot("10.0.1.6"), slot("10.0.1.4")}, nil, 0, nil},
	} {
		var got []string
		for i, is := range reclaim.Surplus(c.slots, identity.Workload{Replicas: c.replicas, Surge: c.surge}) {
			if is {
				got = append(got, c.slots[i].Held[0].Addrs[0].String())
			}
		}
		if diff := cmp.Diff(c.want, got, cmp.Transformer("sorted", func(s []string) map[string]bool {
			set := map[string]bool{}
			for _, a := range s {
				set[a] = true
			}
			return set
		})); diff != "" {
			t.Errorf("%s: (-want +got): %s", name, diff)
		}
	}
}

// TestSlots checks that FixedIPs and entries with a common address form one slot, and that its holder is the pod that the
// entries name.
func TestSlots(t *testing.T) {
	records := []v1alpha1.FixedIP{*slotRecord(), *slotRecord(func(r *v1alpha1.FixedIP) { r.Spec.IPs, r.Spec.PodName = []string{"10.0.1.5"}, "shop-lost" })}
	entries := []ledger.Slot{
		{Owner: "db/shop-y", NodeAddresses: held("node-1", "10.0.1.6")},
		{Owner: "db/shop-z", NodeAddresses: held("node-2", "10.0.2.6")},
	}
	want := []reclaim.State{
		{Slot: true, Record: &records[0], Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Holder: "shop-y"},
		{Slot: true, Record: &records[1], Holder: "shop-lost"},
		{Slot: true, Held: []ledger.NodeAddresses{held("node-2", "10.0.2.6")}, Holder: "shop-z"},
	}
	if diff := cmp.Diff(want, reclaim.Slots(records, entries), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got): %s", diff)
	}
}
