// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// herds is the value of --workload-kind for a custom kind whose pods have stable names. The test does the work of the
// controller of that kind.
const herds = "Herd.example.com=PodName"

// installHerds installs the kind and grants our programs the right to read it, as the manifests describe.
func (e *env) installHerds() {
	e.t.Helper()
	e.create(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "herds.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced",
			"names": map[string]any{"plural": "herds", "singular": "herd", "kind": "Herd", "listKind": "HerdList"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
		},
	}}, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "herds"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"example.com"}, Resources: []string{"herds"}, Verbs: []string{"get", "list", "watch"}}},
	}, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "herds"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "herds"},
		Subjects: []rbacv1.Subject{
			{Kind: rbacv1.ServiceAccountKind, Namespace: "fixedip-system", Name: "fixedip-scheduler"},
			{Kind: rbacv1.ServiceAccountKind, Namespace: "fixedip-system", Name: "fixedip-controller"},
		},
	})
}

func herd(name string, replicas int64, annotations map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Herd",
		"metadata": map[string]any{"namespace": namespace, "name": name, "annotations": annotations},
		"spec":     map[string]any{"replicas": replicas},
	}}
}

// createHerd creates a herd as soon as the API server serves its kind.
func (e *env) createHerd(h *unstructured.Unstructured) {
	e.t.Helper()
	e.eventually("the API server to serve the kind Herd", func() bool {
		err := e.api.Create(within(e.t), h)
		if apierrors.IsNotFound(err) || apimeta.IsNoMatchError(err) {
			return false
		}
		e.must(err)
		return true
	})
}

// herdPods returns pods with the given names. of is the herd that controls the pods. If of is nil, the pods are bare pods
// without annotations. Otherwise they have the annotation that enables fixed addresses.
func herdPods(of *unstructured.Unstructured, names ...string) []client.Object {
	var pods []client.Object
	for _, name := range names {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: corev1.PodSpec{
				SchedulerName:                 "fixedip-scheduler",
				TerminationGracePeriodSeconds: ptr.To[int64](1),
				Containers:                    []corev1.Container{{Name: "main", Image: "none"}},
			},
		}
		if of != nil {
			pod.Annotations = map[string]string{"fixedip.io/enabled": "true"}
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: of.GetAPIVersion(), Kind: of.GetKind(), Name: of.GetName(), UID: of.GetUID(), Controller: ptr.To(true)}}
		}
		pods = append(pods, pod)
	}
	return pods
}

// awaitGone waits until no pod has one of the names.
func (e *env) awaitGone(names ...string) {
	e.t.Helper()
	e.await(fmt.Sprintf("wait for pods %v to be deleted", names), func(rows []witness.Row) bool {
		for _, name := range names {
			if e.witness.Pod(namespace, name) != nil {
				return false
			}
		}
		return true
	})
}

// TestG18OtherOwners checks that pods of other configured kinds, Deployments and custom resources, have fixed addresses
// (G18).
func TestG18OtherOwners(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: threeNodes, controllerArgs: append([]string{"--workload-kind=" + herds, "--workload-kind=" + deployments}, defaultPool...),
		workloads: "[{apiGroup: example.com, kind: Herd, identity: PodName}, {apiGroup: apps, kind: Deployment, identity: Slot}]"})
	e.part("custom resource", (*env).customResource)
	e.part("Deployment, updated", (*env).deploymentUpdated)
	e.part("Deployment, scaled and deleted", (*env).deploymentScaled)
	e.part("Deployment, slot lost", (*env).deploymentLost)
	e.part("Deployment without the annotation", (*env).deploymentWithoutSlots)
}

// customResource checks a custom kind that is installed after our programs have started. Its pods keep their addresses
// by name, and a bare pod with such a name does not get them. A scale-down and the deletion release the addresses.
func (e *env) customResource() {
	e.installHerds()
	sheep := herd("sheep", 3, map[string]any{"fixedip.io/when-scaled": "Delete"})
	e.createHerd(sheep)
	all := names("sheep", 3)
	e.create(herdPods(sheep, all...)...)
	before := e.awaitRunning(nil, all...)

	e.deletePods(all...)
	e.awaitGone(all...)
	e.create(herdPods(sheep, all...)...)
	after := e.awaitRunning(before, all...)
	e.sameAddresses(before, after)

	e.deletePods("sheep-1")
	e.awaitGone("sheep-1")
	e.create(herdPods(nil, "sheep-1")...)
	e.await("wait for the bare pod sheep-1 to run on another node with another address", func(rows []witness.Row) bool {
		for _, r := range rows {
			if r.Pod == "sheep-1" && r.Running {
				return r.Address != after["sheep-1"].Address && r.Node != after["sheep-1"].Node
			}
		}
		return false
	})
	e.deletePods("sheep-1")
	e.awaitGone("sheep-1")
	e.witness.Forgive(namespace + "/sheep-1")
	e.create(herdPods(sheep, "sheep-1")...)
	e.sameAddresses(after, e.awaitRunning(before, all...))

	e.must(e.api.Patch(within(e.t), herd("sheep", 0, nil), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":2}}`))))
	e.deletePods("sheep-2")
	e.await("wait for pod sheep-2, its FixedIP and its entry to be deleted", func(rows []witness.Row) bool { return len(rows) == 2 })

	e.delete(sheep)
	e.deletePods("sheep-0", "sheep-1")
	e.await("wait for all pods, FixedIPs and entries of the herd to be deleted", func(rows []witness.Row) bool { return len(rows) == 0 })
	e.must(e.witness.AwaitPools(within(e.t), func(p witness.Pool) bool { return p.Other == 0 }))
}

// deployments is the value of --workload-kind for Deployments whose pods have slots.
const deployments = "Deployment.apps=Slot"

// deployment returns a Deployment whose pods have slots. Our scheduler places the pods. An update has one surge pod.
func deployment(name string, replicas int32, change ...func(*appsv1.Deployment)) *appsv1.Deployment {
	sts := statefulSet(name, replicas)
	d := &appsv1.Deployment{ObjectMeta: sts.ObjectMeta, Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To(replicas), Selector: sts.Spec.Selector, Template: sts.Spec.Template,
		Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{
			MaxSurge: ptr.To(intstr.FromInt32(1)), MaxUnavailable: ptr.To(intstr.FromInt32(0))}},
	}}
	d.Spec.Template.Annotations = map[string]string{"fixedip.io/enabled": "true"}
	for _, c := range change {
		c(d)
	}
	return d
}

func (e *env) patchDeployment(name, patch string) {
	e.t.Helper()
	e.must(e.api.Patch(within(e.t), deployment(name, 0), client.RawPatch("application/merge-patch+json", []byte(patch))))
}

// awaitReplicas waits until this many pods run with their slots, none of them in before, and no other pods exist. It returns
// their rows. Key: the pod name.
func (e *env) awaitReplicas(before map[string]witness.Row, replicas int) map[string]witness.Row {
	e.t.Helper()
	found := map[string]witness.Row{}
	e.await(fmt.Sprintf("wait for %d replicas", replicas), func(rows []witness.Row) bool {
		clear(found)
		for _, r := range rows {
			_, old := before[r.Pod]
			switch {
			case r.UID == "":
			case old || !r.Running || r.State != "InUse" || len(r.Entries) != 1:
				return false
			default:
				found[r.Pod] = r
			}
		}
		return len(found) == replicas
	})
	return found
}

// places returns the nodes and addresses of rows. Key: "node/address".
func places(rows map[string]witness.Row) map[string]bool {
	set := map[string]bool{}
	for _, r := range rows {
		set[r.Node+"/"+r.Address] = true
	}
	return set
}

// slots returns the nodes and addresses of the FixedIPs of slots. Key: "node/address".
func (e *env) slots() map[string]bool {
	set := map[string]bool{}
	for _, r := range e.witness.Records(namespace) {
		if r.Spec.AssignedTo == v1alpha1.Slot {
			set[r.Spec.NodeName+"/"+strings.Join(r.Spec.IPs, ",")] = true
		}
	}
	return set
}

// awaitSlots waits until there are this many slots, and returns their nodes and addresses. Key: "node/address".
func (e *env) awaitSlots(want int) map[string]bool {
	e.t.Helper()
	e.await(fmt.Sprintf("wait for %d slots", want), func([]witness.Row) bool { return len(e.slots()) == want })
	return e.slots()
}

// deploymentUpdated checks that a Deployment has one slot more than replicas after its first update, for the surge pod,
// and that later updates use these slots. There may be a second additional slot, because the ReplicaSets of an update are
// reconciled concurrently, so that a new pod may exist before an old pod is deleted.
func (e *env) deploymentUpdated() {
	e.create(deployment("shop", 3))
	pods := e.awaitReplicas(nil, 3)
	first := places(pods)

	var slots map[string]bool
	for update := range 3 {
		e.patchDeployment("shop", fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"example.com/update":"%d"}}}}}`, update))
		pods = e.awaitReplicas(pods, 3)
		if slots == nil {
			e.await("wait for 4 slots", func([]witness.Row) bool { return len(e.slots()) >= 4 })
			slots = e.slots()
			for place := range first {
				if !slots[place] {
					e.t.Errorf("the first update has lost the slot %s; got %v", place, slots)
				}
			}
		}
		before := slots
		slots = e.slots()
		for place := range before {
			if !slots[place] {
				e.t.Errorf("update %d: got the slots %v, want all of %v", update, slots, before)
			}
		}
		for place := range places(pods) {
			if !slots[place] {
				e.t.Errorf("update %d: a pod has %s, want one of the slots %v", update, place, slots)
			}
		}
		if len(slots) > 5 {
			e.t.Errorf("update %d: got the slots %v, want at most 5", update, slots)
		}
	}
	for _, r := range e.witness.Records(namespace) {
		if want := "shop-" + strings.ReplaceAll(r.Spec.IPs[0], ".", "-"); r.Name != want || r.Spec.Owner.Kind != "Deployment" || r.Spec.Owner.Name != "shop" {
			e.t.Errorf("got FixedIP %s of %s %s, want %s of Deployment shop", r.Name, r.Spec.Owner.Kind, r.Spec.Owner.Name, want)
		}
	}
	e.deploymentGone()
}

// deploymentGone deletes the Deployment and waits until nothing is left of it.
func (e *env) deploymentGone() {
	e.t.Helper()
	e.delete(deployment("shop", 0), client.PropagationPolicy(metav1.DeletePropagationBackground))
	e.await("wait for all pods, FixedIPs and entries of the Deployment to be deleted", func(rows []witness.Row) bool { return len(rows) == 0 })
	e.must(e.witness.AwaitPools(within(e.t), func(p witness.Pool) bool { return p.Other == 0 }))
}

// deploymentScaled checks that a Deployment that is scaled down keeps its slots or, with the policy Delete, releases
// the slots that it does not need. A slot whose FixedIP is deleted by hand is released when its pod is deleted. Nothing is
// left after the Deployment is deleted.
func (e *env) deploymentScaled() {
	e.create(deployment("shop", 4))
	four := places(e.awaitReplicas(nil, 4))
	scale := func(to int) map[string]witness.Row {
		e.patchDeployment("shop", fmt.Sprintf(`{"spec":{"replicas":%d}}`, to))
		return e.awaitReplicas(nil, to)
	}
	scale(1)
	e.awaitSlots(4)
	if again := places(scale(4)); !maps.Equal(again, four) {
		e.t.Errorf("got the slots %v after the Deployment was scaled down and up, want %v", again, four)
	}

	e.patchDeployment("shop", `{"metadata":{"annotations":{"fixedip.io/when-scaled":"Delete"}}}`)
	left := scale(1)
	// One slot is for the replica, and one for the surge pod of an update.
	e.awaitSlots(2)

	released := ""
	for _, r := range e.witness.Records(namespace) {
		for _, pod := range left {
			if r.Spec.PodName == pod.Pod {
				released = pod.Address
				e.delete(r.DeepCopy())
			}
		}
	}
	e.await("wait for the deleted FixedIP to have the state Releasing", func([]witness.Row) bool {
		for _, r := range e.witness.Records(namespace) {
			if reservation.StateOf(r) == reservation.Releasing {
				return true
			}
		}
		return false
	})
	for name := range left {
		e.deletePods(name)
	}
	for _, r := range e.awaitReplicas(left, 1) {
		if r.Address == released {
			e.t.Errorf("pod %s has %s, want another address than the released one", r.Pod, r.Address)
		}
	}
	e.deploymentGone()
}

// deploymentLost checks that a pod of a Deployment that runs without its entry and without a FixedIP gets a slot again: after the
// controller died between the release of a slot and its confirmation, the scheduler may have bound a pod because of the old
// entry. Only the ReplicaSet shows that the pod belongs to the Deployment.
func (e *env) deploymentLost() {
	e.create(deployment("shop", 1))
	pods := e.awaitReplicas(nil, 1)
	e.must(e.controller.Kill())
	for _, r := range e.witness.Records(namespace) {
		lost := r.DeepCopy()
		e.must(e.api.Patch(within(e.t), lost, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
		e.delete(lost)
	}
	for _, pod := range pods {
		e.patchCiliumNode(pod.Node, fmt.Sprintf(`{"spec":{"ipam":{"pool":{%q:null}}}}`, pod.Address))
	}
	e.must(e.controller.Restart(within(e.t)))
	e.awaitReplicas(nil, 1)
	e.deploymentGone()
}

// deploymentWithoutSlots checks that a Deployment without the annotation has no slots.
func (e *env) deploymentWithoutSlots() {
	e.create(deployment("plain", 2, func(d *appsv1.Deployment) { d.Spec.Template.Annotations = nil }))
	e.await("wait for the pods to run", func(rows []witness.Row) bool {
		running := 0
		for _, r := range rows {
			if r.Running && len(r.Entries) == 0 {
				running++
			}
		}
		return running == 2
	})
	if slots := e.slots(); len(slots) > 0 {
		e.t.Errorf("Deployment plain has the slots %v, want none", slots)
	}
}
