// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// The tests of this file replay publicly reported failures of similar systems, from the point of view of the controller.
// docs/project/field-bugs.md lists all of these failures, including those that other tests replay.

func annotatedWith(pairs ...string) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) { s.Annotations = annotations(pairs) }
}

func (e *env) scale(name string, replicas int) {
	e.t.Helper()
	e.must(e.api.Patch(within(e.t), statefulSet(name, 0), client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))))
}

// records returns the FixedIPs of a workload. Key: the name of the FixedIP.
func (e *env) records(workload string) map[string]*v1alpha1.FixedIP {
	e.t.Helper()
	var list v1alpha1.FixedIPList
	e.must(e.api.List(within(e.t), &list, client.InNamespace(namespace)))
	found := map[string]*v1alpha1.FixedIP{}
	for i := range list.Items {
		if f := &list.Items[i]; f.Spec.Owner.Name == workload {
			found[f.Name] = f
		}
	}
	return found
}

// rowsOf waits until a condition holds for the rows of one workload.
func (e *env) rowsOf(workload, what string, condition func([]witness.Row) bool) {
	e.t.Helper()
	e.await(workload+": "+what, func(rows []witness.Row) bool {
		return condition(slices.DeleteFunc(slices.Clone(rows), func(r witness.Row) bool { return !strings.HasPrefix(r.Pod, workload+"-") }))
	})
}

func nothingLeft(rows []witness.Row) bool { return len(rows) == 0 }

// TestFieldBugs replays failures of similar systems in one cluster, each with its own workload. If a part fails, the others
// still run.
func TestFieldBugs(t *testing.T) {
	t.Parallel()
	e, f := startFakes(t, 3, func(pod string) string { return fakeName(len(pod) % 3) }, "--force-finalize-after=3s")
	// whileDown calls do while the controller is down. It restarts the controller even if do fails the part.
	whileDown := func(e *env, do func()) {
		e.t.Helper()
		e.must(e.controller.Kill())
		defer func() { e.must(e.controller.Restart(within(e.t))) }()
		do()
	}

	e.part("F1", func(e *env) {
		// The controller starts and sees other UIDs than those recorded, because the pods were restarted and their StatefulSet
		// was created again.
		e.create(statefulSet("f1", 2, placedByFakes))
		before := e.awaitRunning(nil, names("f1", 2)...)
		whileDown(e, func() {
			e.delete(statefulSet("f1", 2), client.PropagationPolicy(metav1.DeletePropagationOrphan))
			e.createAgain(statefulSet("f1", 2, placedByFakes))
			e.deletePods(names("f1", 2)...)
			e.rowsOf("f1", "wait for the pods to run again", func(rows []witness.Row) bool {
				return len(rows) == 2 && !slices.ContainsFunc(rows, func(r witness.Row) bool { return !r.Running || r.UID == before[r.Pod].UID })
			})
		})
		e.sameAddresses(before, e.awaitRunning(before, names("f1", 2)...))
	})

	e.part("F2", func(e *env) {
		// A StatefulSet is scaled down and up before the address of the deleted pod is released. The new pod gets the former or
		// a new address. The witness checks that the pod runs with the address of its FixedIP, and that no other pod has that
		// address.
		e.create(statefulSet("f2", 2, placedByFakes, annotatedWith("fixedip.io/when-scaled", "Delete")))
		now := e.awaitRunning(nil, names("f2", 2)...)
		for range 8 {
			e.scale("f2", 1)
			e.await("wait for f2-1 to be terminating, deleted or replaced", func([]witness.Row) bool {
				p := e.witness.Pod(namespace, "f2-1")
				return p == nil || p.DeletionTimestamp != nil || string(p.UID) != now["f2-1"].UID
			})
			e.scale("f2", 2)
			now = e.awaitRunning(map[string]witness.Row{"f2-1": now["f2-1"]}, names("f2", 2)...)
		}
		for name, r := range now {
			if !slices.Equal(r.Entries, []string{r.Node + "/" + r.Address}) {
				e.t.Errorf("pod %s has %s on node %s and the entries %v, want one entry with that address", name, r.Address, r.Node, r.Entries)
			}
		}
	})

	e.part("F3", func(e *env) {
		// A terminating pod that does not stop keeps its address.
		e.create(statefulSet("f3", 1, placedByFakes))
		before := e.awaitRunning(nil, "f3-0")
		f.keepPods(true)
		defer f.keepPods(false) // if the part fails
		e.delete(statefulSet("f3", 1))
		e.await("wait for f3-0 to be terminating", func([]witness.Row) bool {
			p := e.witness.Pod(namespace, "f3-0")
			return p != nil && p.DeletionTimestamp != nil
		})
		whileDown(e, func() {})
		e.awaitProcessed()
		if got := e.witness.Entries(namespace, "f3-0"); !slices.Equal(got, before["f3-0"].Entries) || e.witness.Record(namespace, "f3-0") == nil {
			e.t.Errorf("f3-0 still runs: got the entries %v and the FixedIP %v, want the entries %v and a FixedIP", got, e.witness.Record(namespace, "f3-0"), before["f3-0"].Entries)
		}
		f.keepPods(false)
		e.rowsOf("f3", "wait for all pods, FixedIPs and entries to be deleted", nothingLeft)
	})

	e.part("F4", func(e *env) {
		// All pods and the controller restart at once. Each pod has its own address again.
		pods := names("f4", 60)
		e.create(statefulSet("f4", 60, placedByFakes))
		before := e.awaitRunning(nil, pods...)
		whileDown(e, func() { e.deletePods(pods...) })
		e.sameAddresses(before, e.awaitRunning(before, pods...))
		e.delete(statefulSet("f4", 60))
		e.rowsOf("f4", "wait for all pods, FixedIPs and entries to be deleted", nothingLeft)
	})

	e.part("F5", func(e *env) {
		// The controller is down while one StatefulSet is deleted and created again, and another is deleted.
		e.create(statefulSet("f5", 1, placedByFakes), statefulSet("f5gone", 1, placedByFakes))
		before := e.awaitRunning(nil, "f5-0", "f5gone-0")
		whileDown(e, func() {
			e.delete(statefulSet("f5", 1))
			e.delete(statefulSet("f5gone", 1))
			e.await("wait for the pods to be deleted", func([]witness.Row) bool {
				return e.witness.Pod(namespace, "f5-0") == nil && e.witness.Pod(namespace, "f5gone-0") == nil
			})
			e.createAgain(statefulSet("f5", 1, placedByFakes))
		})
		after := e.awaitRunning(before, "f5-0")
		if after["f5-0"].Address != before["f5-0"].Address {
			e.t.Errorf("f5-0 has %s, want %s", after["f5-0"].Address, before["f5-0"].Address)
		}
		e.rowsOf("f5gone", "wait for all pods, FixedIPs and entries to be deleted", nothingLeft)
	})

	e.part("F6", func(e *env) {
		// The reserved addresses of pods that do not exist are given to no other pod, although many pods need addresses.
		e.create(statefulSet("f6", 2, placedByFakes))
		before := e.awaitRunning(nil, names("f6", 2)...)
		e.scale("f6", 0)
		e.rowsOf("f6", "wait for the pods to be deleted", func(rows []witness.Row) bool {
			return len(rows) == 2 && !slices.ContainsFunc(rows, func(r witness.Row) bool { return r.UID != "" || r.State != "Reserved" })
		})
		e.create(statefulSet("f6others", 20, placedByFakes))
		for name, other := range e.awaitRunning(nil, names("f6others", 20)...) {
			for owner, r := range before {
				if other.Address == r.Address {
					e.t.Errorf("pod %s has %s, which is reserved for pod %s", name, other.Address, owner)
				}
			}
		}
		e.scale("f6", 2)
		e.sameAddresses(before, e.awaitRunning(before, names("f6", 2)...))
	})

	e.part("F8", func(e *env) {
		// A user tries to change the address in the FixedIP, which the API server refuses, and requests another address on the
		// workload. The reservation does not change.
		e.create(statefulSet("f8", 1, placedByFakes))
		before := e.awaitRunning(nil, "f8-0")
		fip := e.records("f8")["f8-0"]
		for _, ips := range []string{`["10.77.0.99"]`, `[]`, `["10.77.0.99","` + before["f8-0"].Address + `"]`, `null`} {
			if err := e.api.Patch(within(e.t), fip.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"ips":`+ips+`}}`))); !apierrors.IsInvalid(err) {
				e.t.Errorf("change the IPs of the FixedIP to %s: got %v, want Invalid", ips, err)
			}
		}
		e.annotate(statefulSet("f8", 1), "fixedip.io/ips", "10.77.0.99")
		e.deletePods("f8-0")
		after := e.awaitRunning(before, "f8-0")
		e.awaitProcessed()
		e.sameAddresses(before, after)
		if got := e.witness.Entries(namespace, "f8-0"); len(got) != 1 || len(e.records("f8")) != 1 {
			e.t.Errorf("f8-0 has the entries %v and %d FixedIPs, want one of each", got, len(e.records("f8")))
		}
	})

	e.part("F9", func(e *env) {
		// Ordinals start at 5. A pod beyond the replicas keeps its address while it runs.
		e.create(statefulSet("f9", 2, placedByFakes, annotatedWith("fixedip.io/when-scaled", "Delete"), func(s *appsv1.StatefulSet) {
			s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 5}
		}))
		before := e.awaitRunning(nil, "f9-5", "f9-6")
		f.keepPods(true)
		defer f.keepPods(false) // if the part fails
		e.scale("f9", 1)
		e.await("wait for f9-6 to be terminating", func([]witness.Row) bool { return e.witness.Pod(namespace, "f9-6").DeletionTimestamp != nil })
		e.awaitProcessed()
		if got := e.witness.Entries(namespace, "f9-6"); !slices.Equal(got, before["f9-6"].Entries) {
			e.t.Errorf("f9-6 still runs: got the entries %v, want %v", got, before["f9-6"].Entries)
		}
		f.keepPods(false)
		e.rowsOf("f9", "wait for f9-5 to be the only pod and in use", func(rows []witness.Row) bool {
			return len(rows) == 1 && rows[0].Pod == "f9-5" && rows[0].UID == before["f9-5"].UID && rows[0].State == "InUse"
		})
	})

	e.part("F10", func(e *env) {
		// A pod name has one FixedIP, even if the pod is deleted and created repeatedly, and keeps the FixedIP while the
		// workload is scaled down.
		e.create(statefulSet("f10", 3, placedByFakes))
		now := e.awaitRunning(nil, names("f10", 3)...)
		before := now
		for range 3 {
			e.deletePods(names("f10", 3)...)
			now = e.awaitRunning(now, names("f10", 3)...)
		}
		e.scale("f10", 0)
		e.rowsOf("f10", "wait for the pods to be deleted", func(rows []witness.Row) bool {
			return !slices.ContainsFunc(rows, func(r witness.Row) bool { return r.UID != "" || r.State != "Reserved" })
		})
		whileDown(e, func() {})
		e.awaitProcessed()
		if got := e.records("f10"); len(got) != 3 {
			e.t.Errorf("got %d FixedIPs of 3 pods, want 3", len(got))
		}
		e.scale("f10", 3)
		e.sameAddresses(before, e.awaitRunning(now, names("f10", 3)...))
	})

	e.part("F13", func(e *env) {
		// A pod keeps its address while it is terminating, for example during a long preStop hook, and the finalizer of another
		// program is not removed.
		e.create(statefulSet("f13", 1, placedByFakes))
		before := e.awaitRunning(nil, "f13-0")
		fip := e.records("f13")["f13-0"]
		e.must(e.api.Patch(within(e.t), fip, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"add","path":"/metadata/finalizers/-","value":"example.com/mine"}]`))))
		f.keepPods(true)
		defer f.keepPods(false) // if the part fails
		e.delete(statefulSet("f13", 1))
		e.delete(fip)
		e.awaitRecord("f13-0", func(f *v1alpha1.FixedIP) bool { return reservation.StateOf(f) == reservation.Releasing })
		// The deadline of --force-finalize-after passes, and the pod keeps its address because it still runs.
		e.overdue()
		if got := e.witness.Entries(namespace, "f13-0"); !slices.Equal(got, before["f13-0"].Entries) {
			e.t.Errorf("f13-0 still runs: got the entries %v, want %v", got, before["f13-0"].Entries)
		}
		f.keepPods(false)
		e.awaitRecord("f13-0", func(f *v1alpha1.FixedIP) bool { return slices.Equal(f.Finalizers, []string{"example.com/mine"}) })
		e.must(e.api.Patch(within(e.t), fip, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
		e.rowsOf("f13", "wait for all pods, FixedIPs and entries to be deleted", nothingLeft)
	})

	e.part("F15", func(e *env) {
		// The node is deleted before the TTL ends. The FixedIP expires and is deleted nevertheless.
		e.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "fake-15"}}, func() *ciliumv2.CiliumNode {
			cn := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "fake-15"}}
			cn.Spec.IPAM.PodCIDRs = []string{fakeSubnet(15)}
			return cn
		}())
		e.must(f.report(within(e.t), "fake-15"))
		former := f.placing(onFake(15))
		defer func() { f.placing(former) }()
		e.create(statefulSet("f15", 1, placedByFakes, annotatedWith("fixedip.io/retention-ttl", "3s")))
		e.awaitRunning(nil, "f15-0")
		e.delete(statefulSet("f15", 1))
		e.awaitRecord("f15-0", func(f *v1alpha1.FixedIP) bool { return f.Status.ExpiresAt != nil })
		e.delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "fake-15"}})
		e.delete(&ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "fake-15"}})
		e.rowsOf("f15", "wait for all pods, FixedIPs and entries to be deleted", nothingLeft)
	})

	e.part("F17", func(e *env) {
		// A release affects only the entries of the former pod. The next pod with the name keeps its entry, although
		// the FixedIP of the former pod was deleted and the former address is being released.
		e.create(statefulSet("f17", 1, placedByFakes))
		before := e.awaitRunning(nil, "f17-0")
		e.delete(&v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "f17-0"}})
		e.deletePods("f17-0")
		after := e.awaitRunning(before, "f17-0")
		e.awaitProcessed()
		if got := e.witness.Entries(namespace, "f17-0"); !slices.Equal(got, []string{after["f17-0"].Node + "/" + after["f17-0"].Address}) {
			e.t.Errorf("f17-0 runs with %s on node %s and has the entries %v, want one entry with that address", after["f17-0"].Address, after["f17-0"].Node, got)
		}
	})
}

// createAgain creates an object as soon as the former object with its name is deleted.
func (e *env) createAgain(o client.Object) {
	e.t.Helper()
	e.must(wait.PollUntilContextCancel(within(e.t), 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		err := e.api.Create(ctx, o)
		if apierrors.IsAlreadyExists(err) {
			return false, nil
		}
		return true, err
	}))
}

// rounds counts the calls of awaitProcessed in all tests and parts, so that each call has its own FixedIP.
var rounds atomic.Int64

// awaitProcessed gives the controller time to process earlier events: it creates a FixedIP and deletes it, and waits until
// the controller has processed both.
func (e *env) awaitProcessed() {
	e.t.Helper()
	name := fmt.Sprintf("round%d", rounds.Add(1))
	e.create(&v1alpha1.FixedIP{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-0"},
		Spec:       v1alpha1.FixedIPSpec{PodName: name + "-0", Owner: v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: name}},
	})
	e.awaitRecord(name+"-0", func(f *v1alpha1.FixedIP) bool { return reservation.StateOf(f) == reservation.Reserved })
	e.delete(&v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-0"}})
	e.await("wait for FixedIP "+name+"-0 to be deleted", func([]witness.Row) bool { return e.witness.Record(namespace, name+"-0") == nil })
}

// overdue waits until more than 3 s, the value of --force-finalize-after, have passed on the clock of the API server.
func (e *env) overdue() {
	e.t.Helper()
	stamp := func() metav1.Time {
		probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "clock-"}}
		e.create(probe)
		e.delete(probe)
		return probe.CreationTimestamp
	}
	begin := stamp()
	for stamp().Sub(begin.Time).Seconds() < 4 {
		e.awaitProcessed()
	}
}
