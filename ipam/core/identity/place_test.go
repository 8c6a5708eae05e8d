// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package identity_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/core/identity"
)

func TestPodNode(t *testing.T) {
	withAffinity := func(kind, node string) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: kind, Controller: ptr.To(true)}}}}
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}},
		}}}
		return pod
	}
	bound := withAffinity("DaemonSet", "node-1")
	bound.Spec.NodeName = "node-2"
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"a pod that is not bound":                     {&corev1.Pod{}, ""},
		"a bound pod":                                 {bound, "node-2"},
		"a DaemonSet pod that is not bound":           {withAffinity("DaemonSet", "node-1"), "node-1"},
		"a ReplicaSet pod with affinity for one node": {withAffinity("ReplicaSet", "node-1"), ""},
	} {
		if got := identity.PodNode(c.pod); got != c.want {
			t.Errorf("%s: PodNode returns %q, want %q", name, got, c.want)
		}
	}
}
