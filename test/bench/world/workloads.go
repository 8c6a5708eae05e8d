// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package world

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// record returns the FixedIP of a pod.
func (w *World) record(p Place) *v1alpha1.FixedIP {
	r := &v1alpha1.FixedIP{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "FixedIP"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: uid('f', p.serial), CreationTimestamp: w.since, Finalizers: []string{v1alpha1.Finalizer}, Generation: 1,
			Annotations:   map[string]string{"fixedip.io/uid": string(uid('f', p.serial))},
			ManagedFields: []metav1.ManagedFieldsEntry{fields("fixedip-controller", "Update", "", w.since, `"f:metadata":{"f:finalizers":{".":{},"v:\"fixedip.io/pool-entry\"":{}}},"f:spec":{".":{},"f:assignedTo":{},"f:ips":{},"f:nodeName":{},"f:owner":{".":{},"f:apiVersion":{},"f:kind":{},"f:name":{},"f:uid":{}},"f:podName":{},"f:reclaim":{".":{},"f:whenDeleted":{},"f:whenScaled":{}}}`)},
		},
		Spec: v1alpha1.FixedIPSpec{
			IPs: []string{p.Address.String()}, NodeName: NodeName(p.Node), PodName: p.Name,
			AssignedTo: v1alpha1.PodName,
			Owner:      v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: p.Kind, Name: p.Workload, UID: p.workloadUID},
			Reclaim:    v1alpha1.ReclaimPolicy{WhenDeleted: v1alpha1.Delete, WhenScaled: v1alpha1.Retain},
		},
		Status: v1alpha1.FixedIPStatus{ObservedGeneration: 1},
	}
	r.LabelFromSpec()
	condition := func(kind, reason, message string) {
		r.Status.Conditions = append(r.Status.Conditions, metav1.Condition{
			Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message,
			ObservedGeneration: 1, LastTransitionTime: w.since,
		})
	}
	// TestFixedIPs checks that the controller would write the same status.
	condition(v1alpha1.ConditionSubnetAvailable, v1alpha1.ReasonNothingKnown, "No problem with the subnet of the addresses is known")
	condition(v1alpha1.ConditionExclusive, v1alpha1.ReasonNothingKnown, "No other pod, FixedIP or pool is known to have the addresses")
	condition(v1alpha1.ConditionAsReserved, v1alpha1.ReasonNothingKnown, "The pod is not known to run with other addresses")
	condition(v1alpha1.ConditionAllocated, "Allocated", "Every address has its entry in the pool of a node")
	if p.serial < w.Fixed {
		r.Status.PodUID = uid('p', p.serial)
		condition(v1alpha1.ConditionReady, v1alpha1.ReasonInUse, "A pod uses the addresses, and no problem is known")
	} else {
		condition(v1alpha1.ConditionReady, v1alpha1.ReasonReserved, "The addresses are reserved, no pod uses them, and no problem is known")
	}
	return r
}

// statefulSet returns a StatefulSet of replicas pods.
func (w *World) statefulSet(group int) *appsv1.StatefulSet {
	p := w.FixedPod(group * replicas)
	return &appsv1.StatefulSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "StatefulSet"},
		ObjectMeta: w.workloadMeta(p),
		Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To[int32](replicas), ServiceName: p.Workload, Selector: &metav1.LabelSelector{MatchLabels: p.labels()}, PodManagementPolicy: appsv1.ParallelPodManagement,
			Template: template(w.NewPod(p)),
		},
	}
}

// template returns the template from which a controller creates a pod.
func template(pod *corev1.Pod) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec}
}

// workloadMeta returns the metadata of the workload of a pod.
func (w *World) workloadMeta(p Place) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Workload, UID: p.workloadUID, CreationTimestamp: w.since, Labels: p.labels(), Generation: 1}
}

// replicaSet returns a ReplicaSet of replicas pods. Without it, the scheduler would not spread the pods of a workload, and
// so would do less for unreserved pods than for those of StatefulSets.
func (w *World) replicaSet(group int) *appsv1.ReplicaSet {
	p := w.OrdinaryPod(group * replicas)
	return &appsv1.ReplicaSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSet"},
		ObjectMeta: w.workloadMeta(p),
		Spec: appsv1.ReplicaSetSpec{
			Replicas: ptr.To[int32](replicas), Selector: &metav1.LabelSelector{MatchLabels: p.labels()},
			Template: template(w.NewPod(p)),
		},
	}
}
