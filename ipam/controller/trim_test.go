package controller

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// All of a FixedIP is read somewhere, or written back.
func TestTrimRecord(t *testing.T) {
	record := &v1alpha1.FixedIP{
		TypeMeta: metav1.TypeMeta{APIVersion: "fixedip.io/v1alpha1", Kind: "FixedIP"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web-0", UID: "1", ResourceVersion: "7", Generation: 2, Finalizers: []string{"fixedip.io/release"},
			Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}},
		Spec: v1alpha1.FixedIPSpec{
			IPs: []string{"10.0.1.6"}, NodeName: "node-1", PodName: "web-0", Failover: v1alpha1.Migrate,
			Owner:   v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "2"},
			Reclaim: v1alpha1.ReclaimPolicy{WhenDeleted: v1alpha1.Delete, WhenScaled: v1alpha1.Retain},
		},
		Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseInUse, PodUID: "3", Conditions: []metav1.Condition{{Type: "Homed", Status: metav1.ConditionTrue}}},
	}
	before, want := record.DeepCopy(), record.DeepCopy()
	want.ManagedFields = nil
	trimmed, err := trimRecord(record)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, trimmed); diff != "" {
		t.Errorf("trimmed (-want +got): %s", diff)
	}
	if diff := cmp.Diff(before, record); diff != "" {
		t.Errorf("what was trimmed has changed: %s", diff)
	}
}
