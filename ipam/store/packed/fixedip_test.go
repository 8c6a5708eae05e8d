// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package packed

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// fixedIP returns a FixedIP as the controller writes it.
func fixedIP(name, node, ip string) *v1alpha1.FixedIP {
	f := &v1alpha1.FixedIP{
		ObjectMeta: metadata(name),
		Spec: v1alpha1.FixedIPSpec{
			IPs: []string{ip}, NodeName: node, PodName: name, AssignedTo: v1alpha1.PodName,
			Owner:   v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "0b2f1c58-9f0e-4f6a-8a55-3f1a7d6c2e91"},
			Reclaim: v1alpha1.ReclaimPolicy{WhenDeleted: v1alpha1.Delete, WhenScaled: v1alpha1.Retain},
		},
		Status: v1alpha1.FixedIPStatus{ObservedGeneration: 1, PodUID: "6f1d3a3e-1f0a-4b77-9c2e-0a3b5b8c7d11"},
	}
	f.OwnerReferences, f.Annotations = nil, map[string]string{v1alpha1.AnnotationUID: string(f.UID)}
	f.Finalizers, f.Generation = []string{v1alpha1.Finalizer}, 1
	f.LabelFromSpec()
	for kind, message := range map[string]string{
		v1alpha1.ConditionSubnetAvailable: "No problem with the subnet of the addresses is known",
		v1alpha1.ConditionExclusive:       "No other pod, FixedIP or pool is known to have the addresses",
		v1alpha1.ConditionAsReserved:      "The pod is not known to run with other addresses",
		v1alpha1.ConditionAllocated:       "Every address has its entry in the pool of a node",
		v1alpha1.ConditionReady:           "A pod uses the addresses, and no problem is known",
	} {
		f.Status.Conditions = append(f.Status.Conditions, metav1.Condition{
			Type: kind, Status: metav1.ConditionTrue, Reason: "InUse", Message: message, ObservedGeneration: 1, LastTransitionTime: created,
		})
	}
	return f
}

// TestFixedIPRecord checks that a record contains a complete FixedIP: the controller writes whole FixedIPs, and would delete a
// field that is missing.
func TestFixedIPRecord(t *testing.T) {
	complete := fixedIP("web-0", "node-1", "10.0.1.10")
	complete.ResourceVersion, complete.DeletionTimestamp = "17", &created
	complete.Spec.Failover, complete.Spec.Reclaim.TTLSeconds = v1alpha1.Migrate, 300
	complete.Status.ExpiresAt, complete.Status.VacatedBy, complete.Status.MovableFor, complete.Status.MismatchPodUID = &created, "web-1", "uid-1", "uid-2"
	for _, part := range []any{complete.Spec, complete.Spec.Owner, complete.Spec.Reclaim, complete.Status, complete.Status.Conditions[0]} {
		v := reflect.ValueOf(part)
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				t.Errorf("field %s.%s has no value, so the test does not see whether a record contains it", v.Type().Name(), v.Type().Field(i).Name)
			}
		}
	}
	empty := complete.DeepCopy()
	empty.ObjectMeta, empty.Spec.IPs, empty.Status = metav1.ObjectMeta{Namespace: "shop", Name: "web-1"}, nil, v1alpha1.FixedIPStatus{}
	without := complete.DeepCopy()
	without.Status.Conditions[2].LastTransitionTime = metav1.Time{}
	for name, f := range map[string]*v1alpha1.FixedIP{"complete": complete, "new": empty, "a condition without a time": without} {
		t.Run(name, func(t *testing.T) {
			before := f.DeepCopy()
			r, err := pack(f)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, f); diff != "" {
				t.Errorf("pack changed the FixedIP (-before +after):\n%s", diff)
			}
			if diff := cmp.Diff(any(f), unpack(r)); diff != "" {
				t.Errorf("unpacked (-want +got):\n%s", diff)
			}
			want := &metav1.ObjectMeta{Namespace: f.Namespace, Name: f.Name, ResourceVersion: f.ResourceVersion}
			if diff := cmp.Diff(want, r.(Record).GetObjectMeta()); diff != "" {
				t.Errorf("metadata that client-go reads (-want +got):\n%s", diff)
			}
		})
	}
}

// decodedFixedIP returns FixedIP number i of a benchmark, decoded as from a watch: it shares no text with other objects.
func decodedFixedIP(i int) *v1alpha1.FixedIP {
	data, _ := json.Marshal(fixedIP(fmt.Sprintf("web-%05d", i), fmt.Sprintf("node-%d", i/10), fmt.Sprintf("10.1.%d.%d", i/250, i%250)))
	var f v1alpha1.FixedIP
	_ = json.Unmarshal(data, &f)
	return &f
}

// BenchmarkUnpackFixedIP measures a read of a FixedIP from the cache.
func BenchmarkUnpackFixedIP(b *testing.B) {
	r, err := pack(decodedFixedIP(1))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		unpack(r)
	}
}
