// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

const (
	namespace     = "db"
	schedulerName = "fixedip-scheduler"
	// nodeMonitorGrace is the time without contact to the API server after which a node becomes not ready.
	nodeMonitorGrace = 40 * time.Second
	// evictAfter is the time after which the pods of a node that is not ready are deleted. It begins after nodeMonitorGrace.
	evictAfter = 5 * time.Minute
	// templateHash is the label of a pod that identifies the version of its template.
	templateHash = "template"
)

// clusterActions returns the possible actions of the controllers of Kubernetes, the default scheduler, Cilium's operator and
// another program. All of these programs act on the current objects, because their lag would add nothing to the lag of the
// nodes. clusterActions also updates lastContact of each node that reaches the API server, as markUnreachable does.
func (w *world) clusterActions(now time.Time) []action {
	var d []action
	add := func(name string, do func()) { d = append(d, action{name, do}) }
	sets := all[*appsv1.StatefulSet](w.server, statefulSets)
	for _, s := range sets {
		for i := range *s.Spec.Replicas {
			name := fmt.Sprintf("%s-%d", s.Name, i)
			switch pod, ok := one[*corev1.Pod](w.server, pods, namespace+"/"+name); {
			case !ok:
				add("statefulset makes "+name, func() { w.makePod(s, name) })
			case metav1.GetControllerOfNoCopy(pod) == nil && pod.DeletionTimestamp == nil:
				add("statefulset adopts "+name, func() {
					change(w.server, pods, keyOf(pod), "statefulset", func(p *corev1.Pod) { p.OwnerReferences = ownedBy(s) })
				})
			case ended(pod) && pod.DeletionTimestamp == nil && controls(s, pod):
				add("statefulset replaces "+name, func() { w.deletePod(pod, "statefulset") })
			}
		}
		if pod := w.outdated(s); pod != nil {
			add("statefulset rolls "+pod.Name, func() { w.deletePod(pod, "statefulset") })
		}
	}
	d = append(d, w.replicaSetActions()...)
	d = append(d, w.endpointCollectors(now)...)
	for _, pod := range all[*corev1.Pod](w.server, pods) {
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner != nil {
			s, ok := one[*appsv1.StatefulSet](w.server, statefulSets, namespace+"/"+owner.Name)
			switch {
			case !w.controllerExists(owner):
				if pod.DeletionTimestamp == nil {
					add("garbage collector deletes "+pod.Name, func() { w.deletePod(pod, "gc") })
				}
			case ok && ordinal(pod.Name) >= int(*s.Spec.Replicas) && pod.DeletionTimestamp == nil:
				add("statefulset deletes "+pod.Name, func() { w.deletePod(pod, "statefulset") })
			}
		}
		if pod.Spec.NodeName == "" {
			if pod.Spec.SchedulerName != schedulerName && pod.DeletionTimestamp == nil {
				if ready := w.readyNodes(); len(ready) > 0 {
					add("default scheduler binds "+pod.Name, func() {
						target := ready[w.choose(len(ready))]
						if w.isStrict(target) {
							w.stats["default scheduler bound to a strict node"]++
						}
						_ = w.server.bind(keyOf(pod), &corev1.Binding{Target: corev1.ObjectReference{Name: target}}, "default-scheduler")
					})
				}
			}
			continue
		}
		node, ok := one[*corev1.Node](w.server, nodes, pod.Spec.NodeName)
		switch {
		case !ok, pod.DeletionTimestamp != nil && outOfService(node):
			// The pod garbage collector deletes without a grace period.
			add("pod gc removes "+pod.Name, func() { _ = w.server.remove(pods, keyOf(pod), nil, true, "podgc") })
		case pod.DeletionTimestamp == nil && outOfService(node):
			add("taint eviction deletes "+pod.Name, func() { w.deletePod(pod, "taint-eviction") })
		case pod.DeletionTimestamp == nil && !isReady(node) && now.Sub(w.machine(node.Name).lastContact) > nodeMonitorGrace+evictAfter:
			add("taint eviction deletes "+pod.Name, func() { w.deletePod(pod, "taint-eviction") })
		}
	}
	for _, m := range w.machines {
		node, ok := one[*corev1.Node](w.server, nodes, m.name)
		if m.reaches() {
			m.lastContact = now
		}
		switch {
		case !ok:
		case isReady(node) && now.Sub(m.lastContact) > nodeMonitorGrace:
			add("node lifecycle: "+m.name+" is not ready", func() { w.setReady(m.name, false) })
		case !isReady(node) && m.reaches():
			add("node lifecycle: "+m.name+" is ready", func() { w.setReady(m.name, true) })
		}
	}
	for _, cn := range all[*ciliumv2.CiliumNode](w.server, ciliumNodes) {
		if len(cn.OwnerReferences) == 0 {
			continue
		}
		if node, ok := one[*corev1.Node](w.server, nodes, cn.Name); !ok || node.UID != cn.OwnerReferences[0].UID {
			add("garbage collector deletes CiliumNode "+cn.Name, func() { _ = w.server.remove(ciliumNodes, cn.Name, nil, true, "gc") })
		}
	}
	for _, r := range all[*v1alpha1.FixedIP](w.server, fixedIPs) {
		if r.DeletionTimestamp != nil && slices.Contains(r.Finalizers, otherFinalizer) {
			add("another program removes its finalizer from FixedIP "+r.Name, func() {
				next := r.DeepCopy()
				controllerutil.RemoveFinalizer(next, otherFinalizer)
				_, err := w.server.update(fixedIPs, next, "", "other-program")
				must(err)
			})
		}
	}
	return d
}

func controls(s *appsv1.StatefulSet, pod *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner != nil && owner.UID == s.UID
}

// ordinal returns the number after the last hyphen in the name of a pod; -1 if there is no such number.
func ordinal(name string) int {
	n, err := strconv.Atoi(name[strings.LastIndex(name, "-")+1:])
	if err != nil {
		return -1
	}
	return n
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func outOfService(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

func (w *world) setReady(name string, ready bool) {
	change(w.server, nodes, name, "node-lifecycle", func(n *corev1.Node) {
		status := corev1.ConditionUnknown
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnreachable })
		if ready {
			status = corev1.ConditionTrue
		} else {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute})
		}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.Now()}}
	})
}

func (w *world) readyNodes() []string {
	var names []string
	for _, n := range all[*corev1.Node](w.server, nodes) {
		if isReady(n) && !n.Spec.Unschedulable && len(n.Spec.Taints) == 0 {
			names = append(names, n.Name)
		}
	}
	return names
}

func (w *world) machine(name string) *machine {
	for _, m := range w.machines {
		if m.name == name {
			return m
		}
	}
	return nil
}

// outdated returns the pod with the highest ordinal that has an older template: the StatefulSet controller deletes that pod
// next. It returns nil if there is no such pod, or while a pod of s is missing or terminating.
func (w *world) outdated(s *appsv1.StatefulSet) *corev1.Pod {
	var old *corev1.Pod
	for i := range *s.Spec.Replicas {
		pod, ok := one[*corev1.Pod](w.server, pods, fmt.Sprintf("%s/%s-%d", namespace, s.Name, i))
		switch {
		case !ok || pod.DeletionTimestamp != nil:
			return nil
		case !controls(s, pod):
		case pod.Labels[templateHash] != s.Spec.Template.Labels[templateHash]:
			old = pod
		}
	}
	return old
}

func (w *world) makePod(s *appsv1.StatefulSet, name string) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name,
		Labels:          s.Spec.Template.Labels,
		Annotations:     s.Spec.Template.Annotations,
		OwnerReferences: ownedBy(s),
	}}
	pod.Spec.SchedulerName = schedulerName
	if w.hasVolume(pod) {
		source := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
		pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: source}}
	}
	w.server.mustCreate(pods, pod, "statefulset")
}

func ownedBy(s *appsv1.StatefulSet) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: s.Name, UID: s.UID, Controller: ptr.To(true)}}
}

func (w *world) deletePod(pod *corev1.Pod, by string) {
	uid := pod.UID
	_ = w.server.remove(pods, keyOf(pod), &metav1.Preconditions{UID: &uid}, false, by)
}
