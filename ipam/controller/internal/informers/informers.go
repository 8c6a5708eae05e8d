// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package informers defines which objects the controller watches and which of their fields its cache holds.
//
// Controller-runtime's cache runs the informers of package packed. Before an object is stored, a transform removes the fields
// that the controller does not read, and package packed encodes pods, CiliumEndpoints and FixedIPs: a large cluster has very
// many of them. The package makes no decisions and reads no objects. If a decision needs another field, add the field to the
// transform of its kind.
package informers

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/packed"
)

// Options returns the options of the controller's cache: the kinds whose objects have a transform of their own, with that
// transform, and the transform of all other kinds, such as NodeSubnets. CiliumEndpoints are among the kinds only if endpoints
// is true.
func Options(adoption identity.Adoption, endpoints bool) cache.Options {
	o := cache.Options{
		NewInformer:      packed.NewInformer,
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&ciliumv2.CiliumNode{}: {Transform: ciliumpool.ForCache},
			&corev1.Node{}:         {Transform: nodeTransform},
			&corev1.Pod{}:          {Transform: podTransform(adoption)},
			&v1alpha1.FixedIP{}:    {Transform: fixedIPTransform},
		},
	}
	if endpoints {
		o.ByObject[&ciliumv2.CiliumEndpoint{}] = cache.ByObject{Transform: endpointTransform}
	}
	return o
}

// Synced contains a function for each resource. The function reports whether the cache has every object of the resource that
// existed at the start. Key: the plural name of the resource. A replica that is not the leader fills its caches as well, so
// that it does not have to list all objects when it becomes the leader.
type Synced map[string]func() bool

// Start starts the informers of NodeSubnets and of every kind in o, and adds a readiness check that fails until all of them
// are synced.
func Start(ctx context.Context, mgr ctrl.Manager, o cache.Options) (Synced, error) {
	s := Synced{}
	kinds := []client.Object{&v1alpha1.NodeSubnet{}}
	for kind := range o.ByObject {
		kinds = append(kinds, kind)
	}
	for _, kind := range kinds {
		gvk, err := mgr.GetClient().GroupVersionKindFor(kind)
		if err != nil {
			return nil, fmt.Errorf("look up the kind of %T in the scheme: %w", kind, err)
		}
		// Do not wait for the informer to sync: the cache has not started yet.
		informer, err := mgr.GetCache().GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, fmt.Errorf("start the informer of %ss: %w", gvk.Kind, err)
		}
		resource, _ := meta.UnsafeGuessKindToResource(gvk)
		s[resource.Resource] = informer.HasSynced
	}
	if err := mgr.AddReadyzCheck("watches", s.check); err != nil {
		return nil, fmt.Errorf("add the readiness check: %w", err)
	}
	return s, nil
}

// check returns an error that names the informers that are not synced.
func (s Synced) check(*http.Request) error {
	var behind []string
	for resource, synced := range s.States() {
		if !synced {
			behind = append(behind, resource)
		}
	}
	if len(behind) == 0 {
		return nil
	}
	slices.Sort(behind)
	return fmt.Errorf("informers not synced yet: %s", strings.Join(behind, ", "))
}

// States returns whether each informer is synced. Key: the plural name of the resource.
func (s Synced) States() map[string]bool {
	all := map[string]bool{}
	for resource, synced := range s {
		all[resource] = synced()
	}
	return all
}

// annotationDomains are the prefixes of the pod annotations that the controller reads.
var annotationDomains = []string{"fixedip.io/", "cni.projectcalico.org/", "cni.cilium.io/"}

// nodeAnnotationDomains are the prefixes of the Node annotations that the controller reads.
var nodeAnnotationDomains = []string{"fixedip.io/", "cluster-autoscaler.kubernetes.io/", "karpenter.sh/"}

// keepAnnotations copies the annotations whose keys begin with one of the domains.
func keepAnnotations(to *metav1.ObjectMeta, from map[string]string, domains []string) {
	for key, value := range from {
		if slices.ContainsFunc(domains, func(d string) bool { return strings.HasPrefix(key, d) }) {
			metav1.SetMetaDataAnnotation(to, key, value)
		}
	}
}

// transform returns a transform that applies trim to objects of type T. It returns any other object unchanged, such as the
// DeletedFinalStateUnknown of a missed deletion.
func transform[T any](trim func(T) T) func(obj any) (any, error) {
	return func(obj any) (any, error) {
		if o, ok := obj.(T); ok {
			return trim(o), nil
		}
		return obj, nil
	}
}

// podTransform returns a transform that keeps the fields of a pod that the controller reads. It keeps the labels only
// if adoption depends on labels, and the scheduler name only if adoption.Schedulers contains it.
func podTransform(adoption identity.Adoption) func(obj any) (any, error) {
	return transform(func(pod *corev1.Pod) *corev1.Pod {
		trimmed := &corev1.Pod{
			TypeMeta:   pod.TypeMeta,
			ObjectMeta: trimMeta(pod.ObjectMeta),
			Spec:       corev1.PodSpec{NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork},
			Status:     corev1.PodStatus{Phase: pod.Status.Phase, PodIPs: pod.Status.PodIPs, HostIP: pod.Status.HostIP, StartTime: pod.Status.StartTime},
		}
		keepAnnotations(&trimmed.ObjectMeta, pod.Annotations, annotationDomains)
		if podutil.IsUnschedulable(pod) {
			// These fields show which node can run the pod. If the subnet of the pod's address is orphaned, that node may
			// inherit the subnet.
			trimmed.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: metav1.NewTime(podutil.UnschedulableSince(pod)),
			}}
			trimmed.Status.NominatedNodeName = pod.Status.NominatedNodeName
			trimmed.Spec.NodeSelector, trimmed.Spec.Affinity, trimmed.Spec.Tolerations = pod.Spec.NodeSelector, pod.Spec.Affinity, pod.Spec.Tolerations
			for _, claim := range podutil.Claims(pod) {
				source := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}
				trimmed.Spec.Volumes = append(trimmed.Spec.Volumes, corev1.Volume{VolumeSource: source})
			}
		}
		if pod.Spec.NodeName == "" && identity.PodNode(pod) != "" {
			trimmed.Spec.Affinity = pod.Spec.Affinity
		}
		if adoption.Labels() {
			trimmed.Labels = pod.Labels
		}
		if i := slices.Index(adoption.Schedulers, pod.Spec.SchedulerName); i >= 0 {
			trimmed.Spec.SchedulerName = adoption.Schedulers[i]
		}
		return trimmed
	})
}

// fixedIPTransform keeps everything except the managed fields, because the controller writes whole FixedIPs.
var fixedIPTransform = transform(func(fip *v1alpha1.FixedIP) *v1alpha1.FixedIP {
	fip.ManagedFields = nil
	return fip
})

// nodeTransform keeps the fields of a Node that the controller reads.
var nodeTransform = transform(func(node *corev1.Node) *corev1.Node {
	trimmed := &corev1.Node{TypeMeta: node.TypeMeta, ObjectMeta: trimMeta(node.ObjectMeta)}
	trimmed.Labels = node.Labels
	keepAnnotations(&trimmed.ObjectMeta, node.Annotations, nodeAnnotationDomains)
	trimmed.Spec.PodCIDRs, trimmed.Spec.Unschedulable, trimmed.Spec.Taints = node.Spec.PodCIDRs, node.Spec.Unschedulable, node.Spec.Taints
	if pods, ok := node.Status.Allocatable[corev1.ResourcePods]; ok {
		trimmed.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: pods}
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			trimmed.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime}}
		}
	}
	return trimmed
})

// endpointTransform keeps the owner references, the addresses and the node IP of a CiliumEndpoint. The other fields would
// need much memory: a cluster has one CiliumEndpoint for each pod.
var endpointTransform = transform(func(e *ciliumv2.CiliumEndpoint) *ciliumv2.CiliumEndpoint {
	trimmed := &ciliumv2.CiliumEndpoint{TypeMeta: e.TypeMeta, ObjectMeta: trimMeta(e.ObjectMeta)}
	if n := e.Status.Networking; n != nil {
		trimmed.Status.Networking = &ciliumv2.EndpointNetworking{Addressing: n.Addressing, NodeIP: n.NodeIP}
	}
	return trimmed
})

// trimMeta removes the metadata that the controller does not read. The transform of each kind adds the labels and
// annotations that it keeps.
func trimMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	m.ManagedFields, m.Labels, m.Annotations, m.Finalizers = nil, nil, nil, nil
	m.GenerateName, m.DeletionGracePeriodSeconds = "", nil
	return m
}
