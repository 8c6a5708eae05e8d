// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// TestReportsMakeEvents checks that reports of an agent about dynamic addresses cause no event, and that a report about a
// fixed address causes an event that names the workload. Finding S1.
func TestReportsMakeEvents(t *testing.T) {
	fixed, dynamic := netip.MustParseAddr("10.0.1.14"), netip.MustParseAddr("10.0.1.1")
	version := func(generation int64, change func(*pool.NodePool)) pool.NodePool {
		n := pool.NodePool{Name: "n", UID: "n", Generation: generation, ResourceVersion: fmt.Sprint(generation), Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/28")},
			Entries: map[netip.Addr]pool.Entry{fixed: pool.OwnedEntry("db", "web-x", "Deployment", "web"), dynamic: {}}, Used: map[netip.Addr]string{}, HasUsed: true}
		change(&n)
		return n
	}
	c := &Cache{Ledger: ledger.New()}
	var events []requeue.Event
	c.Subscribe(func(e requeue.Event) { events = append(events, e) })
	set := func(n pool.NodePool) { c.PoolChanged(n.Name, c.Ledger.SetNode(n)) }
	set(version(1, func(*pool.NodePool) {}))
	events = nil
	for i := range 300 {
		set(version(1, func(n *pool.NodePool) { n.Used[dynamic] = fmt.Sprintf("shop/pod-%d", i) }))
	}
	if len(events) != 0 {
		t.Errorf("reports about a dynamic address caused events %v, want none", events)
	}
	set(version(1, func(n *pool.NodePool) { n.Used[fixed] = "db/web-x" }))
	set(version(2, func(n *pool.NodePool) { delete(n.Entries, fixed) }))
	want := []requeue.Event{
		{Node: "n", Keys: requeue.Keys(metrics.Slot, "db/Deployment/web")},
		{Node: "n", Freed: 1, Keys: append(requeue.Keys(metrics.Owner, "db/web-x"), requeue.Keys(metrics.Slot, "db/Deployment/web")...)},
	}
	if diff := cmp.Diff(want, events, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b requeue.Key) bool { return a == b })); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestTrim checks that trim keeps the fields of a FixedIP that the scheduler reads, and removes all others.
func TestTrim(t *testing.T) {
	pending := metav1.Condition{Type: v1alpha1.ConditionSubnetAvailable, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonInheritancePending}
	want := &v1alpha1.FixedIP{
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web-0", UID: "1", ResourceVersion: "7", Generation: 2, DeletionTimestamp: &metav1.Time{Time: time.Unix(3, 0)}},
		Spec: v1alpha1.FixedIPSpec{
			IPs: []string{"10.0.1.14"}, NodeName: "n", PodName: "web-0", AssignedTo: v1alpha1.Slot, Failover: v1alpha1.Migrate,
			Owner:   v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "2"},
			Reclaim: v1alpha1.ReclaimPolicy{WhenDeleted: v1alpha1.Retain, WhenScaled: v1alpha1.Delete, TTLSeconds: 3600},
		},
		Status: v1alpha1.FixedIPStatus{VacatedBy: "web-1", MovableFor: "4", Conditions: []metav1.Condition{pending}},
	}
	fip := want.DeepCopy()
	fip.Labels, fip.Annotations, fip.Finalizers, fip.ManagedFields = map[string]string{"a": "b"}, map[string]string{"c": "d"}, []string{v1alpha1.Finalizer}, []metav1.ManagedFieldsEntry{{Manager: "e"}}
	fip.Status.PodUID = "5"
	fip.Status.Conditions[0].Message = "f"
	fip.Status.Conditions = append(fip.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue})
	got, err := trim(fip)
	if diff := cmp.Diff(any(want), got); err != nil || diff != "" {
		t.Errorf("error %v, trimmed FixedIP (-want +got):\n%s", err, diff)
	}
	if got, err := trim(pending); err != nil || got != any(pending) {
		t.Errorf("another object: got %v, error %v, want the same object", got, err)
	}
}

// TestWorkloadChangesMakeEvents checks that a workload causes an event if it appears, or if the requested addresses or the
// failover policy in its annotations change, and none if it is deleted or another annotation changes. Finding S7.
func TestWorkloadChangesMakeEvents(t *testing.T) {
	annotated := func(key, value string) *identity.Workload {
		return &identity.Workload{Namespace: "db", Name: "web", Annotations: map[string]string{key: value}}
	}
	for name, tc := range map[string]struct {
		before, after *identity.Workload
		events        int
	}{
		"the workload appears":       {nil, annotated("", ""), 1},
		"the workload is deleted":    {annotated("", ""), nil, 0},
		"another failover policy":    {annotated("", ""), annotated("fixedip.io/failover", "Reassign"), 1},
		"an invalid failover policy": {annotated("fixedip.io/failover", "Reassign"), annotated("fixedip.io/failover", "Go"), 1},
		"other requested addresses":  {annotated("", ""), annotated("fixedip.io/ips", "10.0.0.1"), 1},
		"another annotation":         {annotated("", ""), annotated("example.com/x", "y"), 0},
	} {
		c := &Cache{}
		events := 0
		c.Subscribe(func(requeue.Event) { events++ })
		c.workloadChanged(tc.before, tc.after)
		if events != tc.events {
			t.Errorf("%s: got %d events, want %d", name, events, tc.events)
		}
	}
}
