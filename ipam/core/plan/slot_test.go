package plan_test

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
	"fixedip.io/fixedip/ipam/core/plan"
)

var (
	shop     = v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "shop", UID: "dep-1"}
	shopSpec = v1alpha1.FixedIPSpec{IPs: []string{"10.0.1.6"}, NodeName: "node-1", Owner: shop, Slot: true, PodName: "shop-x", Reclaim: identity.DefaultReclaim()}
	open     = plan.Workload{OwnerReference: shop, Exists: true}
	closed   = plan.Workload{OwnerReference: shop}
)

// surplus is a workload that does not need the slot.
func surplus(p v1alpha1.ReclaimPolicy) plan.Workload {
	return plan.Workload{OwnerReference: shop, Exists: true, Excludes: true, Reclaim: &p}
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
	r.Status = v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved, Departed: plan.Departed("shop-x", now.Add(-time.Hour))}
}

func reclaimed(p v1alpha1.ReclaimPolicy) func(*v1alpha1.FixedIP) {
	return func(r *v1alpha1.FixedIP) { r.Spec.Reclaim = p }
}

// Whole seconds are what the API keeps: a pod is never said to be gone before it is.
func TestDeparted(t *testing.T) {
	for by, want := range map[time.Time]time.Time{time.Unix(7, 0): time.Unix(7, 0), time.Unix(7, 1): time.Unix(8, 0)} {
		if at := plan.Departed("shop-x", by).At; !at.Time.Equal(want) {
			t.Errorf("%v for %v, want %v", at, by, want)
		}
	}
	said := slotRecord(keptAside)
	for name, c := range map[string]struct {
		next plan.Next
		want bool
	}{
		"for the first time": {plan.Next{Step: plan.UpdateStatus, Status: v1alpha1.FixedIPStatus{Departed: plan.Departed("shop-y", now)}}, true},
		"as it says":         {plan.Next{Step: plan.UpdateStatus, Status: said.Status}, false},
		"of none":            {plan.Next{Step: plan.UpdateStatus}, false},
		"another step":       {plan.Next{Step: plan.DeleteRecord}, false},
	} {
		if got := c.next.Departs(said); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func replica(name, node string, ips ...string) *corev1.Pod {
	p := podOn(node, ips...)
	p.Name, p.UID = name, types.UID("uid-"+name)
	return p
}

func TestDecideSlot(t *testing.T) {
	mine := []ledger.Holding{held("node-1", "10.0.1.6")}
	both := []ledger.Holding{held("node-1", "10.0.1.6", "fd00::6")}
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
		situation plan.Situation
		holder    string
		want      plan.Next
	}{
		"a claim whose pod runs with it becomes a slot":         {plan.Situation{Held: mine, Pod: replica("shop-x", "node-1", "10.0.1.6"), Workload: open}, "shop-x", plan.Next{Step: plan.CreateRecord, Spec: shopSpec}},
		"a claim whose pod is bound waits until it runs":        {plan.Situation{Held: mine, Pod: replica("shop-x", "node-1"), Workload: open}, "shop-x", plan.Next{}},
		"a claim whose pod runs with another IP is a slot":      {plan.Situation{Held: mine, Pod: replica("shop-x", "node-1", "10.0.1.2"), Workload: open}, "shop-x", plan.Next{Step: plan.CreateRecord, Spec: shopSpec}},
		"one that was asked for is a slot whatever its pod got": {plan.Situation{Held: mine, Asked: true, Pod: replica("shop-x", "node-1", "10.0.1.2"), Workload: open}, "shop-x", plan.Next{Step: plan.CreateRecord, Spec: shopSpec}},
		"a claim whose pod is on its way waits":                 {plan.Situation{Held: mine, Pod: replica("shop-x", ""), Workload: open}, "shop-x", plan.Next{}},
		"a claim whose pod is gone is for the next":             {plan.Situation{Held: mine, Workload: open}, "shop-x", plan.Next{}},
		"a claim whose pod is bound elsewhere goes back": {plan.Situation{Held: mine, Pod: replica("shop-x", "node-2"), Workload: open}, "shop-x",
			plan.Next{Step: plan.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"a claim whose pod and workload are gone goes back": {plan.Situation{Held: mine, Workload: closed}, "shop-x",
			plan.Next{Step: plan.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"a claim whose workload is gone keeps its pod's address": {plan.Situation{Held: mine, Pod: replica("shop-x", "node-1"), Workload: closed}, "shop-x", plan.Next{}},
		"a claim in surplus whose pod is gone goes back": {plan.Situation{Held: mine, Workload: surplus(giveBack)}, "shop-x",
			plan.Next{Step: plan.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6")}}},

		"all is well": {plan.Situation{Record: slotRecord(), Held: mine, Pod: replica("shop-x", "node-1"), Workload: open}, "shop-x", plan.Next{}},
		"the pod is gone": {plan.Situation{Record: slotRecord(), Held: mine, Workload: open}, "shop-x",
			plan.Next{Step: plan.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved, Departed: plan.Departed("shop-x", now)}}},
		"and has been for long": {plan.Situation{Record: slotRecord(keptAside), Held: mine, Workload: open}, "shop-x", plan.Next{}},
		"another one is gone than the record says": {plan.Situation{Record: slotRecord(keptAside, func(r *v1alpha1.FixedIP) { r.Spec.PodName = "shop-y" }), Held: mine, Workload: open}, "shop-y",
			plan.Next{Step: plan.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved, Departed: plan.Departed("shop-y", now)}}},
		"made beforehand, it never had a pod": {plan.Situation{Record: slotRecord(func(r *v1alpha1.FixedIP) { r.Spec.PodName, r.Status = "", v1alpha1.FixedIPStatus{} }), Workload: open}, "",
			plan.Next{Step: plan.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved}}},
		"another pod has taken it over": {plan.Situation{Record: slotRecord(keptAside), Held: mine, Pod: replica("shop-y", ""), Workload: open}, "shop-y",
			plan.Next{Step: plan.UpdateRecord, Spec: handedOn}},
		"and is there": {plan.Situation{Record: slotRecord(keptAside, func(r *v1alpha1.FixedIP) { r.Spec.PodName = "shop-y" }), Held: mine, Pod: replica("shop-y", "node-1"), Workload: open}, "shop-y",
			plan.Next{Step: plan.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseInUse, PodUID: "uid-shop-y"}}},
		"the workload was made anew": {plan.Situation{Record: slotRecord(), Held: mine, Pod: replica("shop-x", "node-1"), Workload: plan.Workload{OwnerReference: other.Owner, Exists: true}}, "shop-x",
			plan.Next{Step: plan.UpdateRecord, Spec: other}},
		"the workload changes its mind": {plan.Situation{Record: slotRecord(keptAside), Held: mine, Workload: surplus(giveBack)}, "shop-x",
			plan.Next{Step: plan.UpdateRecord, Spec: policed}},
		"a second family that its pod has joins the slot": {plan.Situation{Record: slotRecord(), Held: both, Pod: replica("shop-x", "node-1", "10.0.1.6", "fd00::6"), Workload: open}, "shop-x",
			plan.Next{Step: plan.UpdateRecord, Spec: grown}},
		"one that its pod runs without": {plan.Situation{Record: slotRecord(), Held: both, Pod: replica("shop-x", "node-1", "10.0.1.6", "fd00::2"), Workload: open}, "shop-x",
			plan.Next{Step: plan.UpdateRecord, Spec: grown}},
		"its entries are gone with their node": {plan.Situation{Record: slotRecord(keptAside), Workload: open}, "shop-x", plan.Next{}},

		"in surplus, and kept":              {plan.Situation{Record: slotRecord(keptAside), Held: mine, Workload: surplus(identity.DefaultReclaim())}, "shop-x", plan.Next{}},
		"in surplus, it goes back":          {plan.Situation{Record: slotRecord(keptAside, reclaimed(giveBack)), Held: mine, Workload: surplus(giveBack)}, "shop-x", plan.Next{Step: plan.DeleteRecord}},
		"the workload is gone":              {plan.Situation{Record: slotRecord(keptAside), Held: mine, Workload: closed}, "shop-x", plan.Next{Step: plan.DeleteRecord}},
		"the workload is gone, not it":      {plan.Situation{Record: slotRecord(keptAside, reclaimed(policy("Retain", "Retain", 0))), Held: mine, Workload: closed}, "shop-x", plan.Next{}},
		"the workload is gone, its pod not": {plan.Situation{Record: slotRecord(), Held: mine, Pod: replica("shop-x", "node-1"), Workload: closed}, "shop-x", plan.Next{}},
		"the workload is gone, and it has time to live": {plan.Situation{Record: slotRecord(keptAside, reclaimed(policy("Delete", "Retain", time.Hour))), Held: mine, Workload: closed}, "shop-x",
			plan.Next{Step: plan.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved, ExpiresAt: &metav1.Time{Time: now.Add(time.Hour)}, Departed: plan.Departed("shop-x", now.Add(-time.Hour))}, At: now.Add(time.Hour)}},

		"deleted while its pod runs": {plan.Situation{Record: slotRecord(deleting), Held: mine, Pod: replica("shop-x", "node-1"), Workload: open}, "shop-x",
			plan.Next{Step: plan.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReleasing, PodUID: "uid-shop-x"}}},
		"deleted while a pod is on its way": {plan.Situation{Record: slotRecord(deleting), Held: mine, Pod: replica("shop-y", ""), Workload: open}, "shop-y",
			plan.Next{Step: plan.UpdateRecord, Spec: handedOn}},
		"deleted when it was handed on": {plan.Situation{Record: slotRecord(deleting, func(r *v1alpha1.FixedIP) { r.Spec.Reclaim = giveBack }), Held: mine, Pod: replica("shop-y", "node-1"), Workload: closed}, "shop-y",
			plan.Next{Step: plan.UpdateRecord, Spec: handedBack}},
		"deleted when the pod that it was handed on to is gone": {plan.Situation{Record: slotRecord(deleting), Held: mine, Workload: open}, "shop-y",
			plan.Next{Step: plan.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"and its record says so": {plan.Situation{Record: slotRecord(deleting, func(r *v1alpha1.FixedIP) { r.Spec.PodName = "shop-y" }), Held: mine, Pod: replica("shop-y", ""), Workload: open}, "shop-y",
			plan.Next{Step: plan.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReleasing, PodUID: "uid-shop-y"}}},
		"deleted and its pod is gone": {plan.Situation{Record: slotRecord(deleting), Held: mine, Workload: open}, "shop-x",
			plan.Next{Step: plan.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6")}}},
		"deleted and released": {plan.Situation{Record: slotRecord(deleting), Workload: open}, "shop-x", plan.Next{Step: plan.FinishRecord}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, plan.DecideSlot(at(c.situation), c.holder), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got): %s", diff)
			}
		})
	}
}

func TestSurplus(t *testing.T) {
	slot := func(a string, change ...func(*plan.Slot)) plan.Slot {
		s := plan.Slot{Held: held("node-1", a), Record: slotRecord(keptAside), Holder: "gone"}
		for _, c := range change {
			c(&s)
		}
		return s
	}
	living := func(s *plan.Slot) { s.Pod = replica("shop-x", "node-1") }
	expiring := func(s *plan.Slot) { s.Record.Status.ExpiresAt = &metav1.Time{Time: now} }
	released := func(s *plan.Slot) { deleting(s.Record) }
	claimed := func(s *plan.Slot) { s.Record = nil }
	for name, c := range map[string]struct {
		slots    []plan.Slot
		replicas *int32
		surge    int32
		want     []string
	}{
		"as many as replicas":          {[]plan.Slot{slot("10.0.1.6"), slot("10.0.1.5")}, ptr.To[int32](2), 0, nil},
		"the lowest go first":          {[]plan.Slot{slot("10.0.1.6"), slot("10.0.1.4"), slot("10.0.1.5")}, ptr.To[int32](1), 0, []string{"10.0.1.4", "10.0.1.5"}},
		"not that of a living pod":     {[]plan.Slot{slot("10.0.1.6"), slot("10.0.1.4", living), slot("10.0.1.5")}, ptr.To[int32](2), 0, []string{"10.0.1.5"}},
		"what an update adds is kept":  {[]plan.Slot{slot("10.0.1.6"), slot("10.0.1.4"), slot("10.0.1.5")}, ptr.To[int32](1), 1, []string{"10.0.1.4"}},
		"first whose time runs":        {[]plan.Slot{slot("10.0.1.6", expiring), slot("10.0.1.4"), slot("10.0.1.5")}, ptr.To[int32](2), 0, []string{"10.0.1.6"}},
		"what goes anyway is not one":  {[]plan.Slot{slot("10.0.1.6", released), slot("10.0.1.4"), slot("10.0.1.5")}, ptr.To[int32](2), 0, nil},
		"what is only claimed counts":  {[]plan.Slot{slot("10.0.1.6", claimed), slot("10.0.1.4", claimed)}, ptr.To[int32](1), 0, []string{"10.0.1.4"}},
		"all pods live, being deleted": {[]plan.Slot{slot("10.0.1.6", living), slot("10.0.1.4", living)}, ptr.To[int32](0), 0, nil},
		"without a number all count":   {[]plan.Slot{slot("10.0.1.6"), slot("10.0.1.4")}, nil, 0, nil},
	} {
		var got []string
		for i, is := range plan.Surplus(c.slots, identity.Workload{Replicas: c.replicas, Surge: c.surge}) {
			if is {
				got = append(got, c.slots[i].Held.Addrs[0].String())
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

// Records and entries are put together by address, and who holds a slot is whom the entries name.
func TestSlots(t *testing.T) {
	records := []v1alpha1.FixedIP{*slotRecord(), *slotRecord(func(r *v1alpha1.FixedIP) { r.Spec.IPs, r.Spec.PodName = []string{"10.0.1.5"}, "shop-lost" })}
	entries := []ledger.Slot{
		{Owner: "db/shop-y", Holding: held("node-1", "10.0.1.6")},
		{Owner: "db/shop-z", Holding: held("node-2", "10.0.2.6")},
	}
	want := []plan.Slot{
		{Record: &records[0], Held: held("node-1", "10.0.1.6"), Holder: "shop-y"},
		{Record: &records[1], Holder: "shop-lost"},
		{Held: held("node-2", "10.0.2.6"), Holder: "shop-z"},
	}
	if diff := cmp.Diff(want, plan.Slots(records, entries), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got): %s", diff)
	}
}
