// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/hack/realcluster/layout"
)

const (
	ourScheduler   = "fixedip-scheduler"
	stockScheduler = "default-scheduler"
)

// workload describes a workload for a test. Empty fields have defaults.
type workload struct {
	name     string
	replicas int32
	// nodes are the nodes on which its pods may run; the calm nodes if nil. The scheduler spreads the pods over the nodes if
	// possible.
	nodes []string
	// scheduler is the schedulerName of its pods; our scheduler if empty.
	scheduler string
	// annotations are set on a StatefulSet or Deployment, podAnnotations on its pods.
	annotations, podAnnotations map[string]string
	// labels are set on the pods.
	labels map[string]string
	// cpu is the CPU request of each pod; 10m if empty. A pod without a request has the minimum CPU share, and may not be
	// able to answer on a busy machine.
	cpu string
	// evictAtOnce is true if pods are evicted from a node as soon as the node is not ready, instead of after 5 minutes.
	evictAtOnce bool
}

func (s *scene) statefulSet(w workload) *appsv1.StatefulSet {
	meta := s.meta(w.name)
	meta.Annotations = w.annotations
	return &appsv1.StatefulSet{
		ObjectMeta: meta,
		Spec: appsv1.StatefulSetSpec{
			Replicas: &w.replicas, Selector: w.selector(), Template: w.template(),
			PodManagementPolicy: appsv1.ParallelPodManagement,
		},
	}
}

func (s *scene) deployment(w workload) *appsv1.Deployment {
	meta := s.meta(w.name)
	meta.Annotations = w.annotations
	return &appsv1.Deployment{
		ObjectMeta: meta,
		Spec:       appsv1.DeploymentSpec{Replicas: &w.replicas, Selector: w.selector(), Template: w.template()},
	}
}

func (s *scene) daemonSet(w workload) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		ObjectMeta: s.meta(w.name),
		Spec:       appsv1.DaemonSetSpec{Selector: w.selector(), Template: w.template()},
	}
}

func (w workload) selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": w.name}}
}

func (w workload) template() corev1.PodTemplateSpec {
	if w.nodes == nil {
		w.nodes = calmNodes
	}
	if w.scheduler == "" {
		w.scheduler = ourScheduler
	}
	if w.cpu == "" {
		w.cpu = "10m"
	}
	labels := map[string]string{"app": w.name}
	for k, v := range w.labels {
		labels[k] = v
	}
	no, grace := false, int64(5)
	spec := corev1.PodSpec{
		SchedulerName:                 w.scheduler,
		TerminationGracePeriodSeconds: &grace,
		AutomountServiceAccountToken:  &no,
		EnableServiceLinks:            &no,
		DNSPolicy:                     corev1.DNSDefault, // there is no DNS
		Containers: []corev1.Container{{
			Name: "web", Image: layout.WebImage, ImagePullPolicy: corev1.PullNever,
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(w.cpu)}},
		}},
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: w.nodes,
				}},
			}}},
		}},
		TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
			LabelSelector: w.selector(),
		}},
	}
	if w.evictAtOnce {
		now := int64(0)
		for _, taint := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
			spec.Tolerations = append(spec.Tolerations, corev1.Toleration{
				Key: taint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &now,
			})
		}
	}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: w.podAnnotations},
		Spec:       spec,
	}
}

// podNames returns the pod names of a StatefulSet.
func podNames(set string, replicas int) []string {
	var names []string
	for i := range replicas {
		names = append(names, fmt.Sprintf("%s-%d", set, i))
	}
	return names
}
