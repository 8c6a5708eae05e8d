// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/store/packed"
)

// benchFixedIP returns the FixedIP with number i, as the API server returns it. The FixedIPs 3n, 3n+1 and 3n+2 belong to the
// pods of one StatefulSet.
func benchFixedIP(i int) *v1alpha1.FixedIP {
	workload, now := fmt.Sprintf("mysql-%d", i/3), metav1.Unix(1_750_000_000, 0)
	name := fmt.Sprintf("%s-%d", workload, i%3)
	uid := func(of string) types.UID { return types.UID(fmt.Sprintf("%s-%036d", of, i))[:36] }
	return &v1alpha1.FixedIP{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "db", Name: name, UID: uid("f"), ResourceVersion: fmt.Sprint(1_000_000 + i), Generation: 1, CreationTimestamp: now,
			Labels: map[string]string{"app": workload}, Finalizers: []string{v1alpha1.Finalizer},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "fixedip-controller", FieldsV1: &metav1.FieldsV1{Raw: make([]byte, 500)}}},
		},
		Spec: v1alpha1.FixedIPSpec{
			IPs: []string{fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)}, NodeName: fmt.Sprintf("node-%d", i%1000), PodName: name, AssignedTo: v1alpha1.PodName,
			Owner: v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: workload, UID: types.UID(fmt.Sprintf("w-%034d", i/3))},
		},
		Status: v1alpha1.FixedIPStatus{PodUID: uid("p"), Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionSubnetAvailable, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSubnetAssigned, LastTransitionTime: now},
			{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, LastTransitionTime: now},
		}},
	}
}

// TestRecord checks that a FixedIP is the same after it was packed and unpacked, and that a caller that changes an unpacked
// FixedIP does not change the record.
func TestRecord(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.FixedIP){
		"IPv4":                    func(*v1alpha1.FixedIP) {},
		"both families":           func(f *v1alpha1.FixedIP) { f.Spec.IPs = append(f.Spec.IPs, "fd00::1") },
		"no addresses":            func(f *v1alpha1.FixedIP) { f.Spec.IPs = nil },
		"a pod with another name": func(f *v1alpha1.FixedIP) { f.Spec.PodName = "other-0" },
		"a slot that is free":     func(f *v1alpha1.FixedIP) { f.Spec.AssignedTo, f.Status.VacatedBy = v1alpha1.Slot, "web-x7d9" },
		"movable":                 func(f *v1alpha1.FixedIP) { f.Status.MovableFor = "uid-of-a-pod" },
		"a policy": func(f *v1alpha1.FixedIP) {
			f.Spec.Failover, f.Spec.Reclaim = v1alpha1.Migrate, v1alpha1.ReclaimPolicy{WhenDeleted: v1alpha1.Retain, TTLSeconds: 60}
		},
		"being deleted": func(f *v1alpha1.FixedIP) { f.DeletionTimestamp = &metav1.Time{Time: time.Unix(1_760_000_000, 0)} },
		"no conditions": func(f *v1alpha1.FixedIP) { f.Status.Conditions = nil },
		"the longest names": func(f *v1alpha1.FixedIP) {
			f.Name, f.Spec.NodeName = strings.Repeat("n", 253), strings.Repeat("m", 253)
		},
		"no node, not assigned": func(f *v1alpha1.FixedIP) { f.Spec.NodeName, f.Spec.AssignedTo = "", "" },
	} {
		fip := benchFixedIP(7)
		change(fip)
		trimmed, err := trim(fip)
		if err != nil {
			t.Fatal(err)
		}
		r, err := pack(trimmed)
		if err != nil {
			t.Fatal(err)
		}
		first := r.(packed.Record).Unpack().(*v1alpha1.FixedIP)
		if diff := cmp.Diff(trimmed, any(first)); diff != "" {
			t.Errorf("%s: unpacked FixedIP (-want +got):\n%s", name, diff)
		}
		for i := range first.Spec.IPs {
			first.Spec.IPs[i] = "changed"
		}
		if diff := cmp.Diff(trimmed, any(r.(packed.Record).Unpack())); diff != "" {
			t.Errorf("%s: FixedIP that was unpacked after a caller had changed another copy (-want +got):\n%s", name, diff)
		}
	}
	if got, err := pack(&metav1.Status{}); err != nil || cmp.Diff(any(&metav1.Status{}), got) != "" {
		t.Errorf("another object: got %v, error %v, want the same object", got, err)
	}
}

// TestSlotsOf checks that the index by workload contains the FixedIPs of kinds whose pods have slots, and no others.
func TestSlotsOf(t *testing.T) {
	deployments := identity.Kind{APIGroup: "apps", Kind: "Deployment", Identity: identity.Slot}
	for name, tc := range map[string]struct {
		kinds identity.Kinds
		kind  string
		want  []string
	}{
		"a StatefulSet":                {identity.NewKinds(deployments), "StatefulSet", nil},
		"a Deployment":                 {identity.NewKinds(deployments), "Deployment", []string{"db/Deployment/mysql-2"}},
		"a kind without a setting":     {identity.NewKinds(), "Deployment", nil},
		"a StatefulSet that has slots": {identity.NewKinds(identity.Kind{APIGroup: "apps", Kind: "StatefulSet", Identity: identity.Slot}), "StatefulSet", []string{"db/StatefulSet/mysql-2"}},
	} {
		fip := benchFixedIP(7)
		fip.Spec.Owner.Kind = tc.kind
		if diff := cmp.Diff(tc.want, slotsOf(tc.kinds)(fip)); diff != "" {
			t.Errorf("%s: values of the index (-want +got):\n%s", name, diff)
		}
	}
}

// BenchmarkStore measures how much of the live heap one FixedIP in the cache takes, with its indexes and without the ledger.
func BenchmarkStore(b *testing.B) {
	const objects = 20_000
	same := func(obj any) (any, error) { return obj, nil }
	// controller-runtime adds indexes with such values.
	indexers := func(of client.IndexerFunc) toolscache.Indexers {
		return toolscache.Indexers{
			toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc,
			"field:" + WorkloadIndex: func(obj any) (values []string, err error) {
				for _, value := range of(obj.(client.Object)) {
					values = append(values, "db/"+value, "__all_namespaces/"+value)
				}
				return values, nil
			},
		}
	}
	for _, way := range []struct {
		name string
		make toolscache.SharedIndexInformer
		pack toolscache.TransformFunc
	}{
		{"packed", packed.NewInformerWith(pack)(&toolscache.ListWatch{}, &v1alpha1.FixedIP{}, 0, indexers(slotsOf(identity.NewKinds()))), pack},
		{"as objects", toolscache.NewSharedIndexInformer(&toolscache.ListWatch{}, &v1alpha1.FixedIP{}, 0, indexers(WorkloadOf)), same},
	} {
		b.Run(way.name, func(b *testing.B) {
			store := way.make.GetStore()
			for b.Loop() {
				if err := store.Replace(nil, ""); err != nil {
					b.Fatal(err)
				}
				before := live()
				for i := range objects {
					trimmed, _ := trim(benchFixedIP(i))
					obj, err := way.pack(trimmed)
					if err != nil {
						b.Fatal(err)
					}
					if err := store.Add(obj); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(live()-before)/objects, "B/object")
			}
			runtime.KeepAlive(way.make)
		})
	}
}

// live returns the size of the live heap in bytes.
func live() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkUnpack measures the decoding of one FixedIP, which each read needs.
func BenchmarkUnpack(b *testing.B) {
	trimmed, _ := trim(benchFixedIP(7))
	r, err := pack(trimmed)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if r.(packed.Record).Unpack().GetName() == "" {
			b.Fatal("the unpacked FixedIP has no name")
		}
	}
}
