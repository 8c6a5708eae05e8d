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
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/reclaim"
	"fixedip.io/fixedip/test/gen"
)

var (
	shop        = v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "shop", UID: "dep-1"}
	shopSpec    = v1alpha1.FixedIPSpec{IPs: []string{"10.0.1.6"}, NodeName: "node-1", Owner: shop, AssignedTo: v1alpha1.Slot, PodName: "shop-x", Reclaim: identity.DefaultReclaim()}
	shopExists  = reclaim.Workload{OwnerReference: shop, Exists: true}
	shopDeleted = reclaim.Workload{OwnerReference: shop}
)

// surplus returns a workload with the reclaim policy p that does not need the slot.
func surplus(p v1alpha1.ReclaimPolicy) reclaim.Workload {
	return reclaim.Workload{OwnerReference: shop, Exists: true, Excludes: true, Reclaim: &p}
}

func slotRecord(change ...func(*v1alpha1.FixedIP)) *v1alpha1.FixedIP {
	inUse := func(r *v1alpha1.FixedIP) {
		r.Finalizers, r.Spec = []string{v1alpha1.Finalizer}, *shopSpec.DeepCopy()
		r.Status = v1alpha1.FixedIPStatus{PodUID: "uid-shop-x"}
	}
	return gen.FixedIP("shop-10-0-1-6", append([]func(*v1alpha1.FixedIP){inUse}, change...)...)
}

func vacated(r *v1alpha1.FixedIP) {
	r.Status = v1alpha1.FixedIPStatus{VacatedBy: "shop-x"}
}

func unconfirmed(r *v1alpha1.FixedIP) {
	r.Status = v1alpha1.FixedIPStatus{}
}

func reclaimed(p v1alpha1.ReclaimPolicy) func(*v1alpha1.FixedIP) {
	return func(r *v1alpha1.FixedIP) { r.Spec.Reclaim = p }
}

func replica(name, node string, ips ...string) *corev1.Pod {
	return gen.Pod(name, gen.On(node, ips...))
}

func TestDecideSlot(t *testing.T) {
	mine := []ledger.NodeAddresses{held("node-1", "10.0.1.6")}
	both := []ledger.NodeAddresses{held("node-1", "10.0.1.6", "fd00::6")}
	takenOver, other, dualStack := shopSpec, shopSpec, shopSpec
	takenOver.PodName = "shop-y"
	dualStack.IPs = []string{"10.0.1.6", "fd00::6"}
	other.Owner.UID = "dep-2"
	deletePolicy := policy("Delete", "Delete", 0)
	takenOverDelete := takenOver
	takenOverDelete.Reclaim = deletePolicy
	withDelete := shopSpec
	withDelete.Reclaim = deletePolicy
	for name, c := range map[string]struct {
		state  reclaim.State
		holder string
		want   reclaim.Action
	}{
		"claim is recorded: the pod runs with the claimed IP":              {reclaim.State{Held: mine, Pod: replica("shop-x", "node-1", "10.0.1.6"), Workload: shopExists}, "shop-x", reclaim.Action{Type: reclaim.CreateRecord, Spec: shopSpec}},
		"claim waits: the pod is bound and has no IP yet":                  {reclaim.State{Held: mine, Pod: replica("shop-x", "node-1"), Workload: shopExists}, "shop-x", reclaim.Action{}},
		"claim is recorded: the pod runs with another IP":                  {reclaim.State{Held: mine, Pod: replica("shop-x", "node-1", "10.0.1.2"), Workload: shopExists}, "shop-x", reclaim.Action{Type: reclaim.CreateRecord, Spec: shopSpec}},
		"claim of requested IPs is recorded: the pod runs with another IP": {reclaim.State{Held: mine, RequestsIPs: true, Pod: replica("shop-x", "node-1", "10.0.1.2"), Workload: shopExists}, "shop-x", reclaim.Action{Type: reclaim.CreateRecord, Spec: shopSpec}},
		"claim waits: the pod is not bound":                                {reclaim.State{Held: mine, Pod: replica("shop-x", ""), Workload: shopExists}, "shop-x", reclaim.Action{}},
		"claim is recorded: the pod was deleted":                           {reclaim.State{Held: mine, Workload: shopExists}, "shop-x", reclaim.Action{Type: reclaim.CreateRecord, Spec: shopSpec}},
		"claim is released: the pod is bound to another node": {reclaim.State{Held: mine, Pod: replica("shop-x", "node-2"), Workload: shopExists}, "shop-x",
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"claim is released: pod and workload do not exist": {reclaim.State{Held: mine, Workload: shopDeleted}, "shop-x",
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"claim is not released: the workload does not exist, its pod does": {reclaim.State{Held: mine, Pod: replica("shop-x", "node-1"), Workload: shopDeleted}, "shop-x", reclaim.Action{}},
		"claim is released: another FixedIP names the address, the pod was deleted": {reclaim.State{Held: mine, OtherFixedIP: "db/web-0", Workload: shopExists}, "shop-x",
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"claim is released: another FixedIP names the address, the pod runs with another IP": {reclaim.State{Held: mine, OtherFixedIP: "db/web-0", Pod: replica("shop-x", "node-1", "10.0.1.2"), Workload: shopExists}, "shop-x",
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"claim waits: another FixedIP names the address, the pod has no IP yet": {reclaim.State{Held: mine, OtherFixedIP: "db/web-0", Pod: replica("shop-x", "node-1"), Workload: shopExists}, "shop-x", reclaim.Action{}},
		"claim is not released: another FixedIP names the address, and the pod runs with it": {reclaim.State{Held: mine, OtherFixedIP: "db/web-0", Pod: replica("shop-x", "node-1", "10.0.1.6"), Workload: shopExists}, "shop-x",
			reclaim.Action{Type: reclaim.CreateRecord, Spec: shopSpec}},
		"surplus claim is released: the pod was deleted": {reclaim.State{Held: mine, Workload: surplus(deletePolicy)}, "shop-x",
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6")}}},

		"nothing to do": {reclaim.State{Record: slotRecord(), Held: mine, Pod: replica("shop-x", "node-1"), Workload: shopExists}, "shop-x", reclaim.Action{}},
		"status.podUID is cleared: the pod was deleted": {reclaim.State{Record: slotRecord(), Held: mine, Workload: shopExists}, "shop-x",
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{}}},
		"pod deleted: the agent must confirm that the address is unused": {reclaim.State{Record: slotRecord(unconfirmed), Held: mine, Workload: shopExists}, "shop-x",
			reclaim.Action{Type: reclaim.Vacate, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6")}, Status: v1alpha1.FixedIPStatus{VacatedBy: "shop-x"}}},
		"pod deleted: no confirmation is requested, the agent reports the address": {reclaim.State{Record: slotRecord(unconfirmed), Held: mine, Workload: shopExists, Reported: []netip.Addr{addr("10.0.1.6")}}, "shop-x", reclaim.Action{}},
		"slot is vacant": {reclaim.State{Record: slotRecord(vacated), Held: mine, Workload: shopExists}, "shop-x", reclaim.Action{}},
		"status.vacatedBy is cleared: the last pod was another one": {reclaim.State{Record: slotRecord(vacated, func(r *v1alpha1.FixedIP) { r.Spec.PodName = "shop-y" }), Held: mine, Workload: shopExists}, "shop-y",
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{}}},
		"created by a user: no pod had the slot": {reclaim.State{Record: slotRecord(func(r *v1alpha1.FixedIP) { r.Spec.PodName, r.Status = "", v1alpha1.FixedIPStatus{} }), Workload: shopExists}, "",
			reclaim.Action{}},
		"takeover: the spec names the new holder": {reclaim.State{Record: slotRecord(vacated), Held: mine, Pod: replica("shop-y", ""), Workload: shopExists}, "shop-y",
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: takenOver}},
		"takeover: status.podUID is set, the new pod is bound": {reclaim.State{Record: slotRecord(vacated, func(r *v1alpha1.FixedIP) { r.Spec.PodName = "shop-y" }), Held: mine, Pod: replica("shop-y", "node-1"), Workload: shopExists}, "shop-y",
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{PodUID: "uid-shop-y"}}},
		"owner UID is updated: the workload was created again": {reclaim.State{Record: slotRecord(), Held: mine, Pod: replica("shop-x", "node-1"), Workload: reclaim.Workload{OwnerReference: other.Owner, Exists: true}}, "shop-x",
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: other}},
		"reclaim policy of the workload is recorded": {reclaim.State{Record: slotRecord(vacated), Held: mine, Workload: surplus(deletePolicy)}, "shop-x",
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: withDelete}},
		"IPv6 address is added: the pod runs with it": {reclaim.State{Record: slotRecord(), Held: both, Pod: replica("shop-x", "node-1", "10.0.1.6", "fd00::6"), Workload: shopExists}, "shop-x",
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: dualStack}},
		"IPv6 address is added: the pod runs with another one": {reclaim.State{Record: slotRecord(), Held: both, Pod: replica("shop-x", "node-1", "10.0.1.6", "fd00::2"), Workload: shopExists}, "shop-x",
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: dualStack}},
		"slot without entries is not changed": {reclaim.State{Record: slotRecord(vacated), Workload: shopExists}, "shop-x", reclaim.Action{}},

		"surplus: whenScaled is Retain":           {reclaim.State{Record: slotRecord(vacated), Held: mine, Workload: surplus(identity.DefaultReclaim())}, "shop-x", reclaim.Action{}},
		"surplus: whenScaled is Delete":           {reclaim.State{Record: slotRecord(vacated, reclaimed(deletePolicy)), Held: mine, Workload: surplus(deletePolicy)}, "shop-x", reclaim.Action{Type: reclaim.DeleteRecord}},
		"workload deleted: whenDeleted is Delete": {reclaim.State{Record: slotRecord(vacated), Held: mine, Workload: shopDeleted}, "shop-x", reclaim.Action{Type: reclaim.DeleteRecord}},
		"workload deleted: whenDeleted is Retain": {reclaim.State{Record: slotRecord(vacated, reclaimed(policy("Retain", "Retain", 0))), Held: mine, Workload: shopDeleted}, "shop-x", reclaim.Action{}},
		"workload deleted: the pod still exists":  {reclaim.State{Record: slotRecord(), Held: mine, Pod: replica("shop-x", "node-1"), Workload: shopDeleted}, "shop-x", reclaim.Action{}},
		"workload deleted: the TTL begins": {reclaim.State{Record: slotRecord(vacated, reclaimed(policy("Delete", "Retain", time.Hour))), Held: mine, Workload: shopDeleted}, "shop-x",
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{ExpiresAt: &metav1.Time{Time: now.Add(time.Hour)}, VacatedBy: "shop-x"}, At: now.Add(time.Hour)}},

		"deleted: the FixedIP waits for its pod": {reclaim.State{Record: slotRecord(deleting), Held: mine, Pod: replica("shop-x", "node-1"), Workload: shopExists}, "shop-x",
			reclaim.Action{}},
		"deleted: the spec names the new holder, which is not bound": {reclaim.State{Record: slotRecord(deleting), Held: mine, Pod: replica("shop-y", ""), Workload: shopExists}, "shop-y",
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: takenOver}},
		"deleted: the spec names the new holder, the workload does not exist": {reclaim.State{Record: slotRecord(deleting, func(r *v1alpha1.FixedIP) { r.Spec.Reclaim = deletePolicy }), Held: mine, Pod: replica("shop-y", "node-1"), Workload: shopDeleted}, "shop-y",
			reclaim.Action{Type: reclaim.UpdateRecord, Spec: takenOverDelete}},
		"deleted: the entries are released, the new holder does not exist": {reclaim.State{Record: slotRecord(deleting), Held: mine, Workload: shopExists}, "shop-y",
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"deleted: the FixedIP waits for the new holder": {reclaim.State{Record: slotRecord(deleting, func(r *v1alpha1.FixedIP) { r.Spec.PodName = "shop-y" }), Held: mine, Pod: replica("shop-y", ""), Workload: shopExists}, "shop-y",
			reclaim.Action{Type: reclaim.UpdateStatus, Status: v1alpha1.FixedIPStatus{PodUID: "uid-shop-y"}}},
		"deleted: the entries are released, no pod exists": {reclaim.State{Record: slotRecord(deleting), Held: mine, Workload: shopExists}, "shop-x",
			reclaim.Action{Type: reclaim.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"deleted: the finalizer is removed after the release": {reclaim.State{Record: slotRecord(deleting), Workload: shopExists}, "shop-x", reclaim.Action{Type: reclaim.FinishRecord}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, decide(asSlot(at(c.state), c.holder)), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("Decide (-want +got): %s", diff)
			}
		})
	}
}

func TestSurplus(t *testing.T) {
	slot := func(a string, change ...func(*reclaim.State)) reclaim.State {
		s := reclaim.State{Slot: true, Held: []ledger.NodeAddresses{held("node-1", a)}, Record: slotRecord(vacated), Holder: "gone"}
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
		"as many slots as replicas":                   {[]reclaim.State{slot("10.0.1.6"), slot("10.0.1.5")}, ptr.To[int32](2), 0, nil},
		"the lowest addresses are surplus first":      {[]reclaim.State{slot("10.0.1.6"), slot("10.0.1.4"), slot("10.0.1.5")}, ptr.To[int32](1), 0, []string{"10.0.1.4", "10.0.1.5"}},
		"a slot with a pod is not surplus":            {[]reclaim.State{slot("10.0.1.6"), slot("10.0.1.4", living), slot("10.0.1.5")}, ptr.To[int32](2), 0, []string{"10.0.1.5"}},
		"slots for the surge of an update are needed": {[]reclaim.State{slot("10.0.1.6"), slot("10.0.1.4"), slot("10.0.1.5")}, ptr.To[int32](1), 1, []string{"10.0.1.4"}},
		"an expiring slot is surplus first":           {[]reclaim.State{slot("10.0.1.6", expiring), slot("10.0.1.4"), slot("10.0.1.5")}, ptr.To[int32](2), 0, []string{"10.0.1.6"}},
		"a slot that is being deleted does not count": {[]reclaim.State{slot("10.0.1.6", released), slot("10.0.1.4"), slot("10.0.1.5")}, ptr.To[int32](2), 0, nil},
		"a slot without a FixedIP counts":             {[]reclaim.State{slot("10.0.1.6", claimed), slot("10.0.1.4", claimed)}, ptr.To[int32](1), 0, []string{"10.0.1.4"}},
		"slots with pods are not surplus, 0 replicas": {[]reclaim.State{slot("10.0.1.6", living), slot("10.0.1.4", living)}, ptr.To[int32](0), 0, nil},
		"workload without replicas needs all slots":   {[]reclaim.State{slot("10.0.1.6"), slot("10.0.1.4")}, nil, 0, nil},
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
			t.Errorf("%s: surplus slots (-want +got): %s", name, diff)
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
		t.Errorf("Slots (-want +got): %s", diff)
	}
}
