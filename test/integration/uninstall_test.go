// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/scaledown"
)

// TestUninstall checks the subcommand uninstall of the controller with the rights of manifests/uninstall.yaml. While a
// controller is active, the subcommand fails, changes no FixedIP and no Node, and scales the Deployment back to its former
// number of replicas. After the subcommand has succeeded, no FixedIP has the finalizer of the controller and no Node is
// annotated, but FixedIPs and running pods stay. A controller that is installed later keeps the addresses, and writes the
// finalizers and annotations again.
func TestUninstall(t *testing.T) {
	t.Parallel()
	e := start(t, options{noScheduler: true})
	manifests := filepath.Join("..", "..", "manifests")
	e.must(e.Apply(within(t), filepath.Join(manifests, "controller-scale-down-rbac.yaml"), filepath.Join(manifests, "controller.yaml")))
	for _, o := range manifest(t, "uninstall.yaml") {
		switch o.(type) {
		case *rbacv1.Role, *rbacv1.RoleBinding:
			e.create(o)
		}
	}
	e.startController("controller", append([]string{"--protect-nodes-from=karpenter"}, defaultPool...)...)
	e.startNode("node-1")
	e.must(e.WaitNodeReady(e.whileAllRun(), "node-1"))
	e.create(statefulSet("web", 3))
	e.startScheduler("scheduler", product.SchedulerOptions{})
	before := e.awaitRunning(nil, names("web", 3)...)
	e.scale("web", 2)
	gone := &corev1.Pod{}
	e.eventually("pod web-2 to be deleted", func() bool {
		return apierrors.IsNotFound(e.api.Get(within(t), client.ObjectKey{Namespace: namespace, Name: "web-2"}, gone))
	})
	for _, name := range names("web", 3) {
		e.awaitRecord(name, func(f *v1alpha1.FixedIP) bool { return slices.Contains(f.Finalizers, v1alpha1.Finalizer) })
	}
	e.eventually("node-1 to be protected from Karpenter", func() bool { return e.protected("node-1") })

	out, err := e.uninstall("--timeout=5s")
	if err == nil || !strings.Contains(out, "if a controller still runs, stop it, then try again") {
		t.Errorf("uninstall beside an active controller: got error %v and output %s, want a refusal", err, out)
	}
	if n := e.replicas(); n != 2 {
		t.Errorf("the Deployment has %d replicas after the refusal, want 2", n)
	}
	if !e.finalized("web-0") || !e.protected("node-1") {
		t.Error("uninstall was refused, but FixedIP web-0 has no finalizer or node-1 no annotation, want both unchanged")
	}

	e.must(e.controller.Kill())
	if out, err := e.uninstall(); err != nil {
		t.Fatalf("uninstall: %v: %s", err, out)
	}
	if n := e.replicas(); n != 0 {
		t.Errorf("the Deployment has %d replicas, want 0", n)
	}
	if e.protected("node-1") {
		t.Error("node-1 is still annotated for Karpenter")
	}
	for _, name := range names("web", 3) {
		if e.finalized(name) {
			t.Errorf("FixedIP %s still has the finalizer", name)
		}
	}
	for _, name := range names("web", 2) {
		var pod corev1.Pod
		e.must(e.api.Get(within(t), client.ObjectKey{Namespace: namespace, Name: name}, &pod))
		if pod.DeletionTimestamp != nil || pod.Status.PodIP != before[name].Address {
			t.Errorf("pod %s: got address %s and deletion %v, want it to run with %s", name, pod.Status.PodIP, pod.DeletionTimestamp, before[name].Address)
		}
	}
	record := &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web-2"}}
	e.delete(record)
	if err := e.api.Get(within(t), client.ObjectKeyFromObject(record), record); !apierrors.IsNotFound(err) {
		t.Errorf("read FixedIP web-2 after its deletion without a controller: got %v, want NotFound", err)
	}

	e.must(e.controller.Restart(within(t)))
	e.eventually("the controller to write the finalizers and annotations again", func() bool {
		return e.finalized("web-0") && e.finalized("web-1") && e.protected("node-1")
	})
	delete(before, "web-2")
	e.deletePods(names("web", 2)...)
	e.sameAddresses(before, e.awaitRunning(before, names("web", 2)...))
}

// uninstall runs the subcommand uninstall with the rights of the controller, and returns its output.
func (e *env) uninstall(args ...string) (string, error) {
	e.t.Helper()
	args = append([]string{"uninstall", "--kubeconfig=" + e.Kubeconfig(cluster.Controller), "--leader-election-namespace=" + system}, args...)
	out, err := exec.CommandContext(within(e.t), e.program("fixedip-controller"), args...).CombinedOutput()
	return string(out), err
}

// finalized reports whether a FixedIP has the finalizer of the controller. The FixedIP must exist.
func (e *env) finalized(name string) bool {
	e.t.Helper()
	var record v1alpha1.FixedIP
	e.must(e.api.Get(within(e.t), client.ObjectKey{Namespace: namespace, Name: name}, &record))
	return slices.Contains(record.Finalizers, v1alpha1.Finalizer)
}

// protected reports whether the controller has annotated a Node for an autoscaler.
func (e *env) protected(name string) bool {
	e.t.Helper()
	var node corev1.Node
	e.must(e.api.Get(within(e.t), client.ObjectKey{Name: name}, &node))
	return node.Annotations[scaledown.ListOfOurs] != ""
}

// replicas returns the number of replicas of the Deployment of the controller.
func (e *env) replicas() int32 {
	e.t.Helper()
	var d appsv1.Deployment
	e.must(e.api.Get(within(e.t), client.ObjectKey{Namespace: system, Name: "fixedip-controller"}, &d))
	return *d.Spec.Replicas
}
