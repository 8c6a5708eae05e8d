package controller

import (
	"slices"
	"strings"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/packed"
)

// CacheOptions trims what the controller watches to the fields that it uses.
func CacheOptions(cfg Config) cache.Options {
	trimPod := podTrimmer(cfg.Adoption)
	o := cache.Options{
		NewInformer:      packed.NewInformer,
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&ciliumv2.CiliumNode{}: {Transform: ciliumpool.Trim},
			&corev1.Node{}:         {Transform: trimNode},
			&corev1.Pod{}:          {Transform: trimPod},
		},
	}
	if cfg.Verify.Endpoints {
		o.ByObject[&ciliumv2.CiliumEndpoint{}] = cache.ByObject{Transform: trimEndpoint}
	}
	return o
}

// annotationDomains are those whose annotations of pods are read.
var annotationDomains = []string{"fixedip.io/", "cni.projectcalico.org/", "cni.cilium.io/"}

// podTrimmer keeps of a pod what identity.Of and plan read, and of its labels and its scheduler what
// adoption looks at.
func podTrimmer(adoption identity.Adoption) func(obj any) (any, error) {
	return func(obj any) (any, error) {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return obj, nil
		}
		trimmed := trimPod(pod)
		if adoption.Labels() {
			trimmed.Labels = pod.Labels
		}
		if i := slices.Index(adoption.Schedulers, pod.Spec.SchedulerName); i >= 0 {
			trimmed.Spec.SchedulerName = adoption.Schedulers[i]
		}
		return trimmed, nil
	}
}

func trimPod(pod *corev1.Pod) *corev1.Pod {
	trimmed := &corev1.Pod{
		TypeMeta:   pod.TypeMeta,
		ObjectMeta: trimMeta(pod.ObjectMeta),
		Spec:       corev1.PodSpec{NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork},
		Status:     corev1.PodStatus{Phase: pod.Status.Phase, PodIPs: pod.Status.PodIPs, HostIP: pod.Status.HostIP, StartTime: pod.Status.StartTime},
	}
	trimmed.Annotations = map[string]string{}
	for key, value := range pod.Annotations {
		if slices.ContainsFunc(annotationDomains, func(d string) bool { return strings.HasPrefix(key, d) }) {
			trimmed.Annotations[key] = value
		}
	}
	if len(trimmed.Annotations) == 0 {
		trimmed.Annotations = nil
	}
	if pod.Spec.NodeName == "" && identity.Place(pod) != "" {
		trimmed.Spec.Affinity = pod.Spec.Affinity
	}
	return trimmed
}

// trimNode keeps of a Node what its subnets and its pool depend on.
func trimNode(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	trimmed := &corev1.Node{TypeMeta: node.TypeMeta, ObjectMeta: trimMeta(node.ObjectMeta)}
	trimmed.CreationTimestamp, trimmed.Labels, trimmed.Annotations = node.CreationTimestamp, node.Labels, nil
	trimmed.Spec.PodCIDRs, trimmed.Spec.Unschedulable, trimmed.Spec.Taints = node.Spec.PodCIDRs, node.Spec.Unschedulable, node.Spec.Taints
	if pods, ok := node.Status.Allocatable[corev1.ResourcePods]; ok {
		trimmed.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: pods}
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			trimmed.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime}}
		}
	}
	return trimmed, nil
}

func trimMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace:         m.Namespace,
		Name:              m.Name,
		UID:               m.UID,
		ResourceVersion:   m.ResourceVersion,
		Generation:        m.Generation,
		CreationTimestamp: m.CreationTimestamp,
		DeletionTimestamp: m.DeletionTimestamp,
		Annotations:       m.Annotations,
		OwnerReferences:   m.OwnerReferences,
	}
}
