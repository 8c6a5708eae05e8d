// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/scheme"
)

// replicaSetName is the name of the ReplicaSet in runs with slots.
const replicaSetName = "w"

// maxReplicas is the maximum number of pods of the ReplicaSet.
const maxReplicas = 3

// replicaSet returns the ReplicaSet; ok is false if it does not exist.
func (w *world) replicaSet() (s *appsv1.ReplicaSet, ok bool) {
	return one[*appsv1.ReplicaSet](w.server, replicaSets, namespace+"/"+replicaSetName)
}

func (w *world) makeReplicaSet() {
	s := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: replicaSetName, Annotations: w.policy()}}
	s.Spec.Replicas = ptr.To(int32(1 + w.choose(maxReplicas)))
	w.server.mustCreate(replicaSets, s, "user")
}

// controllerExists reports whether the StatefulSet or ReplicaSet in the owner reference of a pod exists.
func (w *world) controllerExists(owner *metav1.OwnerReference) bool {
	if owner.Kind == replicaSets.gvk.Kind {
		s, ok := w.replicaSet()
		return ok && s.UID == owner.UID
	}
	s, ok := one[*appsv1.StatefulSet](w.server, statefulSets, namespace+"/"+owner.Name)
	return ok && s.UID == owner.UID
}

// replicas returns the pods of the ReplicaSet that are not being deleted and have not ended.
func (w *world) replicas(s *appsv1.ReplicaSet) []*corev1.Pod {
	return slices.DeleteFunc(all[*corev1.Pod](w.server, pods), func(pod *corev1.Pod) bool {
		owner := metav1.GetControllerOfNoCopy(pod)
		return owner == nil || owner.UID != s.UID || pod.DeletionTimestamp != nil || ended(pod)
	})
}

// replicaSetActions returns the possible actions of the ReplicaSet controller.
func (w *world) replicaSetActions() []action {
	s, ok := w.replicaSet()
	if !ok {
		return nil
	}
	live := w.replicas(s)
	switch {
	case len(live) < int(*s.Spec.Replicas):
		// The ReplicaSet controller does not wait until a terminating pod has stopped. The new pod takes over the slot
		// of that pod.
		return []action{{"replicaset makes a pod", func() { w.makeReplica(s) }}}
	case len(live) > int(*s.Spec.Replicas):
		return []action{{"replicaset deletes a pod", func() { w.deletePod(live[w.choose(len(live))], "replicaset") }}}
	}
	for _, pod := range live {
		if pod.Annotations[identity.AnnotationEnabled] != s.Spec.Template.Annotations[identity.AnnotationEnabled] {
			// The model replaces the pods of a former template, as a Deployment would.
			return []action{{"replicaset rolls " + pod.Name, func() { w.deletePod(pod, "replicaset") }}}
		}
	}
	return nil
}

func (w *world) makeReplica(s *appsv1.ReplicaSet) {
	w.replicaPods++
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: fmt.Sprintf("%s-x%d", s.Name, w.replicaPods), Annotations: s.Spec.Template.Annotations,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: replicaSets.gvk.Kind, Name: s.Name, UID: s.UID, Controller: ptr.To(true)}},
	}}
	pod.Spec.SchedulerName = schedulerName
	w.server.mustCreate(pods, pod, "replicaset")
}

// replicaSetUserActions returns the possible actions of users on the ReplicaSet.
func (w *world) replicaSetUserActions() []action {
	if !w.setup.slots {
		return nil
	}
	s, ok := w.replicaSet()
	if !ok {
		return []action{{"create ReplicaSet: " + replicaSetName, w.makeReplicaSet}}
	}
	edit := func(f func(*appsv1.ReplicaSet)) func() {
		return func() { change(w.server, replicaSets, keyOf(s), "user", f) }
	}
	return []action{
		{"delete ReplicaSet: " + s.Name, func() { _ = w.server.remove(replicaSets, keyOf(s), nil, true, "user") }},
		{"scale ReplicaSet: " + s.Name, edit(func(s *appsv1.ReplicaSet) { s.Spec.Replicas = ptr.To(int32(w.choose(1 + maxReplicas))) })},
		{"edit ReplicaSet: policy of " + s.Name, edit(func(s *appsv1.ReplicaSet) { s.Annotations = w.policy() })},
		{"opt out ReplicaSet: " + s.Name, edit(func(s *appsv1.ReplicaSet) {
			if s.Spec.Template.Annotations == nil {
				s.Spec.Template.Annotations = map[string]string{identity.AnnotationEnabled: "false"}
			} else {
				s.Spec.Template.Annotations = nil
			}
		})},
		{"restart ReplicaSet: all pods of " + s.Name, func() {
			for _, pod := range w.replicas(s) {
				w.deletePod(pod, "user")
			}
		}},
	}
}

// noteLostSlots counts the pods of the ReplicaSet that are bound to a node and have no FixedIP. Their slots are lost with the
// CiliumNode of the node.
func (c *checks) noteLostSlots(m *machine) {
	for _, pod := range all[*corev1.Pod](c.w.server, pods) {
		key := keyOf(pod)
		recorded := slices.ContainsFunc(all[*v1alpha1.FixedIP](c.w.server, fixedIPs), func(r *v1alpha1.FixedIP) bool {
			return keyOfHolder(r) == key
		})
		if pod.Spec.NodeName == m.name && c.isSlot(key) && !recorded {
			c.w.stats["slot lost with its CiliumNode"]++
		}
	}
}

// slots returns the number of FixedIPs of slots that are not being deleted. A FixedIP that a user deletes is removed
// with its pod, and the next pod needs another slot.
func (c *checks) slots() (count int) {
	for _, r := range all[*v1alpha1.FixedIP](c.w.server, fixedIPs) {
		if r.Spec.AssignedTo == v1alpha1.Slot && r.DeletionTimestamp == nil {
			count++
		}
	}
	return count
}

// keyOfHolder returns the pod of a FixedIP as namespace/name.
func keyOfHolder(r *v1alpha1.FixedIP) string { return r.Namespace + "/" + r.Spec.PodName }

// slotScripts returns scripts about the takeover of slots.
func (w *world) slotScripts() []action {
	s, ok := w.replicaSet()
	if !ok {
		return nil
	}
	var d []action
	for _, pod := range w.replicas(s) {
		m := w.machine(pod.Spec.NodeName)
		if m == nil || m.sandboxes[pod.UID] == nil {
			continue
		}
		// The former pod keeps running while the next pod needs its slot.
		d = append(d, action{"force-delete slot pod: " + pod.Name, func() {
			w.forceDelete(pod)
			w.mute(m)
		}})
		// The scheduler does not see which pods have the slots now.
		d = append(d, action{"restart slot pods behind the scheduler: " + pod.Name, func() {
			for _, other := range w.schedulers {
				w.stall(other.process, ciliumNodes)
			}
			w.deletePod(pod, "user")
			w.calm(2 * actLasts)
			for _, next := range w.replicas(s) {
				w.deletePod(next, "user")
			}
			w.mute(nil)
		}})
	}
	return d
}

// noteReplicaSet updates workloadChanged for the ReplicaSet.
func (c *checks) noteReplicaSet(e event) {
	if e.after == nil {
		delete(c.workloadChanged, keyOf(e.object()))
		return
	}
	c.workloadChanged[keyOf(e.after)] = time.Now()
}

// isSlot reports whether the owner of an entry is a pod of the ReplicaSet.
func (c *checks) isSlot(owner string) bool {
	return strings.HasPrefix(owner, namespace+"/"+replicaSetName+"-x")
}

// checkSlotDeletion checks that the product has a reason for each FixedIP of a slot whose deletion it requests.
func (c *checks) checkSlotDeletion(r *v1alpha1.FixedIP, by string) {
	s, exists := c.w.replicaSet()
	readAt := c.w.server.serving.begun.Add(-absenceCounts)
	if !exists || !c.workloadChanged[keyOf(s)].Before(readAt) || optsOut(s.Spec.Template) {
		return
	}
	failover := s.Annotations[identity.AnnotationFailover]
	if s.Annotations[identity.AnnotationWhenScaled] != string(v1alpha1.Delete) && failover != string(v1alpha1.Reassign) {
		c.violate("durable: FixedIP %s of a slot is deleted by %s although its ReplicaSet retains it", r.Name, by)
	}
	pod, ok := one[*corev1.Pod](c.w.server, pods, r.Namespace+"/"+r.Spec.PodName)
	if ok && pod.DeletionTimestamp == nil && runsWithAny(pod, r.Spec.IPs) && failover != string(v1alpha1.Reassign) {
		c.violate("durable: FixedIP %s of a slot is deleted by %s while pod %s runs with its IPs", r.Name, by, keyOf(pod))
	}
}

// mayBeSlot reports whether an entry without a FixedIP may be a slot that the next pod of the ReplicaSet takes over. resource
// is the resource of the entry.
func (c *checks) mayBeSlot(resource string) bool {
	s, ok := c.w.replicaSet()
	return ok && resource == namespace+"/ReplicaSet/"+replicaSetName && !optsOut(s.Spec.Template) && s.Annotations[identity.AnnotationWhenScaled] != string(v1alpha1.Delete)
}

// slotAtRest checks that the FixedIP of a slot without a pod was released if its policy demands it. whenDeleted applies
// if its ReplicaSet has opted out or does not exist, and whenScaled applies if the ReplicaSet has more slots than replicas.
func (c *checks) slotAtRest(r *v1alpha1.FixedIP, hasPod bool) {
	s, exists := c.w.replicaSet()
	switch {
	case hasPod:
	case exists && optsOut(s.Spec.Template):
		if r.Spec.Reclaim.WhenDeleted == v1alpha1.Delete {
			c.violate("no leak: FixedIP %s of a slot still exists although its ReplicaSet has opted out", r.Name)
		}
	case !exists && r.Spec.Reclaim.WhenDeleted == v1alpha1.Delete:
		c.violate("no leak: FixedIP %s of a slot still exists although its ReplicaSet was deleted", r.Name)
	case exists && s.Annotations[identity.AnnotationWhenScaled] == string(v1alpha1.Delete) && c.slots() > int(*s.Spec.Replicas):
		c.violate("no leak: FixedIP %s of a slot still exists although its ReplicaSet has more slots than replicas", r.Name)
	}
}

// mayWaitForSlot reports whether a pod may wait for a slot that only a user can free.
func (w *world) mayWaitForSlot(owner *metav1.OwnerReference) bool {
	return slices.ContainsFunc(all[*v1alpha1.FixedIP](w.server, fixedIPs), func(r *v1alpha1.FixedIP) bool {
		return r.Spec.AssignedTo == v1alpha1.Slot && r.Spec.Owner.Name == owner.Name && (w.byUser[r.UID] || w.stranded(r))
	})
}

// TestOptedOutSlots checks that the FixedIPs and entries of slots are released if the pods of the ReplicaSet opt out,
// as if the ReplicaSet were deleted. A run of the model once found that they were never released.
func TestOptedOutSlots(t *testing.T) {
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		w := newWorld(ctx, kinds, setup{slots: true}, map[string]int{})
		w.startWorkloads(1)
		if !slices.ContainsFunc(all[*v1alpha1.FixedIP](w.server, fixedIPs), func(r *v1alpha1.FixedIP) bool { return r.Spec.AssignedTo == v1alpha1.Slot }) {
			t.Fatal("no FixedIP of a slot exists before the pods opt out, want at least one")
		}
		change(w.server, replicaSets, namespace+"/"+replicaSetName, "user", func(s *appsv1.ReplicaSet) {
			s.Annotations = nil
			s.Spec.Template.Annotations = map[string]string{identity.AnnotationEnabled: "false"}
		})
		s, _ := w.replicaSet()
		for _, pod := range w.replicas(s) {
			w.deletePod(pod, "user")
		}
		if err := w.rest(); err != nil {
			t.Error(err)
		}
		cancel()
		synctest.Wait()
	})
}

// optsOut reports whether the pods of a template opt out of fixed addresses.
func optsOut(t corev1.PodTemplateSpec) bool {
	return identity.OptsOut(&corev1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec})
}
