// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// TestStatefulSetDeleted checks that the addresses of a deleted StatefulSet are released, and that the pods of another
// StatefulSet are not affected.
func TestStatefulSetDeleted(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: threeNodes, controllerArgs: defaultPool})
	e.create(statefulSet("web", 6), statefulSet("stays", 2))
	e.awaitRunning(nil, names("web", 6)...)
	stays := e.awaitRunning(nil, names("stays", 2)...)

	e.delete(statefulSet("web", 6), client.PropagationPolicy(metav1.DeletePropagationBackground))
	e.await("wait for the pods, FixedIPs and entries of web to be deleted", func(rows []witness.Row) bool { return len(rows) == 2 })
	e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Other == 0 }))
	for name, r := range e.awaitRunning(nil, names("stays", 2)...) {
		if r.UID != stays[name].UID || r.Address != stays[name].Address {
			t.Errorf("pod %s of the other StatefulSet was %+v and is %+v, want the same UID and address", name, stays[name], r)
		}
	}
}

// TestStatefulSetReplacedAroundItsPods replaces a StatefulSet while its pods keep running, as users do to change
// immutable fields. It checks that the pods keep their addresses, and that the FixedIPs get the new owner.
func TestStatefulSetReplacedAroundItsPods(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: threeNodes, controllerArgs: defaultPool})
	e.create(statefulSet("web", 3))
	before := e.awaitRunning(nil, names("web", 3)...)
	e.delete(statefulSet("web", 3), client.PropagationPolicy(metav1.DeletePropagationOrphan))
	again := statefulSet("web", 3)
	// The garbage collector orphans the pods first, and then deletes the StatefulSet.
	e.createAgain(again)
	for _, name := range names("web", 3) {
		e.awaitRecord(name, func(f *v1alpha1.FixedIP) bool { return f.Spec.Owner.UID == again.UID })
	}
	for name, r := range e.awaitRunning(nil, names("web", 3)...) {
		if r.UID != before[name].UID {
			t.Errorf("pod %s was replaced, want the same UID", name)
		}
	}
	e.deletePods(names("web", 3)...)
	e.sameAddresses(before, e.awaitRunning(before, names("web", 3)...))
}

// TestScaleDownAndUp checks that addresses stay reserved after a scale-down, and that the pods get them again after a
// scale-up.
func TestScaleDownAndUp(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: threeNodes, controllerArgs: defaultPool})
	e.create(statefulSet("web", 4))
	before := e.awaitRunning(nil, names("web", 4)...)
	scale := func(n string) {
		e.must(e.api.Patch(within(t), statefulSet("web", 0), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":`+n+`}}`))))
	}
	scale("1")
	e.await("wait for the FixedIPs of the three deleted pods to be Reserved", func(rows []witness.Row) bool {
		reserved := 0
		for _, r := range rows {
			if r.UID == "" && r.State == "Reserved" && len(r.Entries) == 1 {
				reserved++
			}
		}
		return reserved == 3
	})
	scale("4")
	delete(before, "web-0")
	e.sameAddresses(before, e.awaitRunning(before, "web-1", "web-2", "web-3"))
}

// TestFixedIPDeletedByHand checks that after a FixedIP is deleted its pod keeps running, and the next pod gets another
// address.
func TestFixedIPDeletedByHand(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1"}, controllerArgs: []string{"--cluster-pool-ipv4-cidr=10.240.0.0/16", "--address-cooldown=1h"}})
	e.create(statefulSet("web", 2))
	before := e.awaitRunning(nil, names("web", 2)...)
	e.delete(&v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web-0"}})
	e.awaitRecord("web-0", func(f *v1alpha1.FixedIP) bool { return reservation.StateOf(f) == reservation.Releasing })
	if p := e.witness.Pod(namespace, "web-0"); p == nil || string(p.UID) != before["web-0"].UID {
		t.Error("pod web-0 was replaced when its FixedIP was deleted, want it to keep running")
	}
	e.deletePods("web-0")
	after := e.awaitRunning(before, "web-0")["web-0"]
	if after.Address == before["web-0"].Address || after.Address == before["web-1"].Address {
		t.Errorf("web-0 had %s and has %s after its FixedIP was deleted, want an address that no pod had", before["web-0"].Address, after.Address)
	}
	if owner, ok := e.witness.Owner("node-1", before["web-0"].Address); !ok || owner != "fixedip.io/cooldown" {
		t.Errorf("the former address %s has the owner %q (entry exists: %t), want the owner of a cooldown entry", before["web-0"].Address, owner, ok)
	}
}

// awaitRecord waits until a condition holds for one FixedIP.
func (e *env) awaitRecord(name string, condition func(*v1alpha1.FixedIP) bool) {
	e.t.Helper()
	e.await("wait for FixedIP "+name+" to exist and have the expected state", func([]witness.Row) bool {
		fip := e.witness.Record(namespace, name)
		return fip != nil && condition(fip)
	})
}

// TestG22RetentionTTL checks that the retention policy in annotations of a StatefulSet is recorded and applied. With a
// TTL the address of a deleted pod stays reserved for that time, and the next pod with the name gets it. After that
// time the address is released (G22).
func TestG22RetentionTTL(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: threeNodes, controllerArgs: defaultPool})
	annotated := func(annotations map[string]string) func(*appsv1.StatefulSet) {
		return func(s *appsv1.StatefulSet) { s.Annotations = annotations }
	}
	workload := func(name string) *appsv1.StatefulSet {
		return statefulSet(name, 2, annotated(map[string]map[string]string{
			"retained": {"fixedip.io/when-deleted": "Retain"},
			"shrinks":  {"fixedip.io/when-scaled": "Delete"},
			"returns":  {"fixedip.io/retention-ttl": "1h"},
			"rescaled": {"fixedip.io/retention-ttl": "1h", "fixedip.io/when-scaled": "Delete"},
			"scaled":   {"fixedip.io/retention-ttl": "2s", "fixedip.io/when-scaled": "Delete"},
			"expires":  {"fixedip.io/retention-ttl": "2s"},
			"wrong":    {"fixedip.io/when-deleted": "Never"},
		}[name]))
	}
	workloads := []string{"retained", "shrinks", "returns", "rescaled", "scaled", "expires", "wrong"}
	var all []string
	for _, w := range workloads {
		e.create(workload(w))
		all = append(all, names(w, 2)...)
	}
	before := e.awaitRunning(nil, all...)
	for name, want := range map[string]v1alpha1.ReclaimPolicy{
		"retained-0": {WhenDeleted: v1alpha1.Retain, WhenScaled: v1alpha1.Retain},
		"shrinks-1":  {WhenDeleted: v1alpha1.Delete, WhenScaled: v1alpha1.Delete},
		"returns-0":  {WhenDeleted: v1alpha1.Delete, WhenScaled: v1alpha1.Retain, TTLSeconds: 3600},
		"wrong-0":    {WhenDeleted: v1alpha1.Delete, WhenScaled: v1alpha1.Retain},
	} {
		e.awaitRecord(name, func(f *v1alpha1.FixedIP) bool { return f.Spec.Reclaim == want })
	}

	for _, w := range []string{"shrinks", "rescaled", "scaled"} {
		e.scale(w, 1)
	}
	for _, w := range []string{"retained", "returns", "expires", "wrong"} {
		e.delete(workload(w))
	}
	rows := e.await("wait for the addresses that are not retained to be released", func(rows []witness.Row) bool { return len(rows) == 8 })
	for _, r := range rows {
		if want := []string{"rescaled-0", "rescaled-1", "retained-0", "retained-1", "returns-0", "returns-1", "scaled-0", "shrinks-0"}; !slices.Contains(want, r.Pod) {
			t.Errorf("row %+v is left, want only the pods %v", r, want)
		}
		if r.Entries[0] != before[r.Pod].Entries[0] {
			t.Errorf("pod %s had the entries %v and has %v, want the same", r.Pod, before[r.Pod].Entries, r.Entries)
		}
	}
	for _, name := range []string{"returns-0", "rescaled-1"} {
		e.awaitRecord(name, func(f *v1alpha1.FixedIP) bool { return f.Status.ExpiresAt != nil })
	}

	again := append(names("retained", 2), "returns-0", "returns-1", "rescaled-1")
	e.create(workload("retained"), workload("returns"))
	e.scale("rescaled", 2)
	after := e.awaitRunning(before, again...)
	for _, name := range again {
		if after[name].Address != before[name].Address {
			t.Errorf("pod %s had %s and has %s now, want the same address", name, before[name].Address, after[name].Address)
		}
	}
	for _, name := range []string{"returns-0", "rescaled-1"} {
		e.awaitRecord(name, func(f *v1alpha1.FixedIP) bool { return f.Status.ExpiresAt == nil })
	}

	// An invalid policy is reported on the StatefulSet.
	var events eventsv1.EventList
	e.must(e.api.List(within(t), &events, client.InNamespace(namespace)))
	if !slices.ContainsFunc(events.Items, func(ev eventsv1.Event) bool {
		return ev.Regarding.Name == "wrong" && ev.Reason == "InvalidAnnotation" && strings.Contains(ev.Note, `annotation fixedip.io/when-deleted is "Never"; write Delete or Retain`)
	}) {
		t.Error("StatefulSet wrong has no event InvalidAnnotation about its annotation fixedip.io/when-deleted")
	}
}
