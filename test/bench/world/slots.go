// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const (
	// slotAddress is the last byte of the address of a slot. Addresses of FixedIPs are above it, those of other pods below.
	slotAddress = 128
	// slotDeployment is the Deployment whose pods search for slots, and slotReplicaSet its ReplicaSet. Both are in the first
	// namespace.
	slotDeployment = "surge"
	slotReplicaSet = "surge-5d4f8c7b9"
)

// lowPriorityClass is a PriorityClass whose pods a scheduler takes from its queue after all other pods.
const lowPriorityClass = "low"

func lowPriority() *schedulingv1.PriorityClass {
	return &schedulingv1.PriorityClass{
		TypeMeta:   metav1.TypeMeta{APIVersion: "scheduling.k8s.io/v1", Kind: "PriorityClass"},
		ObjectMeta: metav1.ObjectMeta{Name: lowPriorityClass, UID: uid('l', 0), Generation: 1},
		Value:      -1, PreemptionPolicy: ptr.To(corev1.PreemptLowerPriority),
	}
}

// LowPriority makes a scheduler try the pod after all pods that search for a slot, so that these pods already wait when the
// scheduler places the pod.
func LowPriority(pod *corev1.Pod) {
	pod.Spec.PriorityClassName, pod.Spec.Priority = lowPriorityClass, ptr.To[int32](-1)
}

// SearchingPod returns the i-th pod that searches for a slot, as a client creates it.
func (w *World) SearchingPod(i int) *corev1.Pod {
	p := w.OrdinaryPod(i)
	p.Namespace, p.Name, p.Workload, p.workloadUID = NamespaceName(0), fmt.Sprintf("%s-%05d", slotReplicaSet, i), slotReplicaSet, uid('q', 0)
	pod := w.NewPod(p)
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "fixedip.io/enabled", "true")
	return pod
}

func (w *World) slotDeployment() *appsv1.Deployment {
	pod := w.SearchingPod(0)
	return &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Namespace: NamespaceName(0), Name: slotDeployment, UID: uid('d', 0), CreationTimestamp: w.since, Generation: 1},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(w.Searching)), Selector: &metav1.LabelSelector{MatchLabels: pod.Labels},
			Template: template(pod),
		},
	}
}

func (w *World) slotReplicaSet() *appsv1.ReplicaSet {
	d := w.slotDeployment()
	return &appsv1.ReplicaSet{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSet"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.Namespace, Name: slotReplicaSet, UID: uid('q', 0), CreationTimestamp: w.since, Generation: 1,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: d.Name, UID: d.UID, Controller: ptr.To(true)}},
		},
		Spec: appsv1.ReplicaSetSpec{Replicas: d.Spec.Replicas, Selector: d.Spec.Selector, Template: d.Spec.Template},
	}
}
