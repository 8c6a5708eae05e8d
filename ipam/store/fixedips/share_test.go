// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedips

import (
	"encoding/json"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// TestShareText checks that ShareText changes no value, and that two FixedIPs refer to the same text afterwards.
func TestShareText(t *testing.T) {
	stored := func(name string, uid types.UID) *v1alpha1.FixedIP {
		return &v1alpha1.FixedIP{
			TypeMeta: metav1.TypeMeta{APIVersion: "fixedip.io/v1alpha1", Kind: "FixedIP"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "db", Name: name, UID: uid, Finalizers: []string{v1alpha1.Finalizer},
				Annotations: map[string]string{v1alpha1.AnnotationUID: string(uid)}, Labels: map[string]string{v1alpha1.LabelWorkload: "mysql"},
			},
			Spec: v1alpha1.FixedIPSpec{
				IPs: []string{"10.0.1.6"}, NodeName: "node-1", PodName: name, Failover: v1alpha1.Migrate,
				Owner:   v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql", UID: "uid-of-the-workload"},
				Reclaim: v1alpha1.ReclaimPolicy{WhenDeleted: v1alpha1.Delete, WhenScaled: v1alpha1.Retain},
			},
			Status: v1alpha1.FixedIPStatus{PodUID: "uid-of-the-pod", Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "InUse", Message: "The addresses are in use"}}},
		}
	}
	// As in a watch, each text is decoded separately.
	decoded := func(of *v1alpha1.FixedIP) *v1alpha1.FixedIP {
		data, err := json.Marshal(of)
		if err != nil {
			t.Fatal(err)
		}
		var fip v1alpha1.FixedIP
		if err := json.Unmarshal(data, &fip); err != nil {
			t.Fatal(err)
		}
		ShareText(&fip)
		return &fip
	}
	first, second := decoded(stored("mysql-0", "uid-0")), decoded(stored("mysql-1", "uid-1"))
	restored := stored("mysql-2", "uid-2")
	restored.Annotations[v1alpha1.AnnotationUID] = "uid-before"
	for want, got := range map[*v1alpha1.FixedIP]*v1alpha1.FixedIP{stored("mysql-0", "uid-0"): first, stored("mysql-1", "uid-1"): second, restored: decoded(restored)} {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("FixedIP %s (-want +got):\n%s", want.Name, diff)
		}
	}
	for field, texts := range map[string][2]string{
		"kind":                {first.Kind, second.Kind},
		"namespace":           {first.Namespace, second.Namespace},
		"finalizer":           {first.Finalizers[0], second.Finalizers[0]},
		"spec.nodeName":       {first.Spec.NodeName, second.Spec.NodeName},
		"spec.owner.uid":      {string(first.Spec.Owner.UID), string(second.Spec.Owner.UID)},
		"condition":           {first.Status.Conditions[0].Reason, second.Status.Conditions[0].Reason},
		"spec.podName":        {first.Spec.PodName, first.Name},
		"label":               {first.Labels[v1alpha1.LabelWorkload], second.Labels[v1alpha1.LabelWorkload]},
		"annotation of a UID": {first.Annotations[v1alpha1.AnnotationUID], string(first.UID)},
	} {
		if unsafe.StringData(texts[0]) != unsafe.StringData(texts[1]) {
			t.Errorf("%s: two copies of the text %q exist", field, texts[0])
		}
	}
}
