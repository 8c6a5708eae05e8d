// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package gen

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Namespace is the namespace of the pods and FixedIPs of this package, and so the first part of the owners of their entries.
const Namespace = "db"

// Scheduler is the schedulerName of the pods of each StatefulSet that this package returns.
const Scheduler = "fixedip-scheduler"

// Pod returns a pod of Namespace. Its UID is "uid-" followed by its name.
func Pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	return changed(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, UID: types.UID("uid-" + name)}}, change)
}

// On returns a change that binds a pod to a node and adds ips to the addresses in its status.
func On(node string, ips ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.NodeName = node
		for _, ip := range ips {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
		}
	}
}

// Running sets the phase of a pod to Running.
func Running(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }

// Controlled returns a change that makes a StatefulSet the controller of a pod.
func Controlled(statefulSet string, uid types.UID) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: statefulSet, UID: uid, Controller: ptr.To(true)}}
	}
}

// Node returns a node that is ready.
func Node(name string, change ...func(*corev1.Node)) *corev1.Node {
	return changed(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}, change)
}

// StatefulSet returns a StatefulSet with parallel pod management. Its pods have the label app, whose value is the name of the
// StatefulSet, Scheduler as their scheduler, and a container whose image does not exist.
func StatefulSet(namespace, name string, replicas int32, change ...func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
	labels := map[string]string{"app": name}
	return changed(&appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.StatefulSetSpec{
			Replicas:            ptr.To(replicas),
			ServiceName:         name,
			PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector:            &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					SchedulerName:                 Scheduler,
					TerminationGracePeriodSeconds: ptr.To[int64](1),
					Containers:                    []corev1.Container{{Name: "main", Image: "none"}},
				},
			},
		},
	}, change)
}

// changed applies the changes to an object and returns it.
func changed[T any](o *T, change []func(*T)) *T {
	for _, c := range change {
		c(o)
	}
	return o
}
