// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// boundTo binds all pods of a StatefulSet to a node without a scheduler.
func boundTo(node string) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.NodeName = node }
}

func (e *env) projected(name string, status metav1.ConditionStatus, message string) {
	e.t.Helper()
	e.awaitRecord(name, func(f *v1alpha1.FixedIP) bool {
		c := meta.FindStatusCondition(f.Status.Conditions, v1alpha1.ConditionAllocated)
		return c != nil && c.Status == status && strings.Contains(c.Message, message)
	})
}

// TestG10HandWrittenOwners checks that an owner that a user wrote into a CiliumNode is respected, whichever scheduler
// places the pod and whatever the resource is, and is adopted (G10).
func TestG10HandWrittenOwners(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1", "node-2"}, controllerArgs: defaultPool})
	// The entry of theirs-0 is restored after its bind, which the witness would report.
	e.witness.AnyOrder()
	e.must(e.ownerEntry("node-2", ".61", "default/ours-0", ""))
	e.must(e.ownerEntry("node-1", ".62", "default/theirs-0", "by hand, 2024"))
	e.must(e.ownerEntry("node-1", ".63", "default/alone", ""))
	e.must(e.ownerEntry("node-1", ".64", "default/later-0", ""))
	alone := func() *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "alone"}, Spec: corev1.PodSpec{
			NodeName: "node-1", TerminationGracePeriodSeconds: ptr.To[int64](1), Containers: []corev1.Container{{Name: "main", Image: "none"}},
		}}
	}
	e.create(statefulSet("ours", 1), statefulSet("theirs", 1, boundTo("node-1")), alone())
	before := e.awaitRunning(nil, "ours-0", "theirs-0", "alone")
	for name, want := range map[string]string{"ours-0": e.in("node-2", "61"), "theirs-0": e.in("node-1", "62"), "alone": e.in("node-1", "63")} {
		if before[name].Address != want {
			t.Errorf("%s has %s, but its entry has %s", name, before[name].Address, want)
		}
	}
	for name, kind := range map[string]string{"ours-0": "StatefulSet", "theirs-0": "StatefulSet", "alone": "Pod"} {
		if o := e.witness.Record(namespace, name).Spec.Owner; o.Kind != kind || o.UID == "" {
			t.Errorf("the record of %s has the owner %+v, want a %s", name, o, kind)
		}
	}
	if got := e.witness.Entries(namespace, "later-0"); len(got) != 1 {
		t.Errorf("the entries of a name without a pod are %v", got)
	}

	// A lost entry is restored, and the pod has its address after a restart.
	e.setOwner("node-1", e.in("node-1", "62"), nil)
	e.await("wait for the entry of theirs-0 to be back", func([]witness.Row) bool {
		return slices.Equal(e.witness.Entries(namespace, "theirs-0"), before["theirs-0"].Entries)
	})
	e.deletePods("ours-0", "theirs-0", "alone")
	e.awaitRecord("alone", func(f *v1alpha1.FixedIP) bool { return f.Status.Phase == v1alpha1.PhaseReserved })
	e.createAnew(alone())
	e.sameAddresses(before, e.awaitRunning(before, "ours-0", "theirs-0", "alone"))

	// An adopted address is released like a claimed one.
	e.delete(statefulSet("theirs", 1))
	e.delete(&v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "alone"}})
	e.deletePods("alone")
	e.await("wait for what was adopted to go back", func(rows []witness.Row) bool {
		return !slices.ContainsFunc(rows, func(r witness.Row) bool { return r.Pod == "theirs-0" || r.Pod == "alone" })
	})
}

// TestGuidesClusterTakenOver checks that our controller takes over a cluster of the guide's controller, in which
// pools contain whole subnets and addresses of running pods have owners: no pod is restarted or changes its address.
func TestGuidesClusterTakenOver(t *testing.T) {
	t.Parallel()
	e := start(t, options{noScheduler: true})
	e.witness.AnyOrder()
	var all []string
	for i, node := range []string{"node-1", "node-2"} {
		e.startNode(node)
		pool := map[string]string{}
		for a := 1; a < 255; a++ {
			pool[fmt.Sprintf("10.8.%d.%d", i, a)] = ""
		}
		e.poolByHand(node, fmt.Sprintf("10.8.%d.0/24", i), pool)
		e.must(e.WaitNodeReady(within(t), node))
		name := "db" + node[len(node)-1:]
		e.create(statefulSet(name, 3, boundTo(node)))
		all = append(all, names(name, 3)...)
	}
	e.create(statefulSet("stranger", 1, boundTo("node-1"), onTemplate("fixedip.io/enabled", "false")))
	running := func(rows []witness.Row) map[string]witness.Row {
		found := map[string]witness.Row{}
		for _, r := range rows {
			if r.Running {
				found[r.Pod] = r
			}
		}
		return found
	}
	before := running(e.await("wait for the pods to run", func(rows []witness.Row) bool { return len(running(rows)) == 7 }))
	for _, name := range all {
		// The guide's controller does this when it sees the address of the pod.
		workload := name[:strings.LastIndex(name, "-")]
		cn := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: before[name].Node}}
		patch := fmt.Sprintf(`{"spec":{"ipam":{"pool":{%q:{"owner":"default/%s","resource":"default/StatefulSet/%s"}}}}}`, before[name].Address, name, workload)
		e.must(e.api.Patch(within(t), cn, client.RawPatch(types.MergePatchType, []byte(patch))))
	}

	var err error
	e.controller, err = product.StartController(e.Cluster, "controller", bin+"/race/fixedip-controller", product.ControllerOptions{
		Lease: testLease, Args: []string{"--cluster-pool-ipv4-cidr=10.8.0.0/16", "--address-cooldown=2s"},
	})
	e.must(err)
	after := e.awaitRunningAsBefore(all)
	for name, r := range after {
		if r.UID != before[name].UID || r.Address != before[name].Address || !slices.Equal(r.Entries, []string{r.Node + "/" + r.Address}) {
			t.Errorf("%s was %+v and is %+v", name, before[name], r)
		}
		if fip := e.witness.Record(namespace, name); !slices.Equal(fip.Spec.IPs, []string{r.Address}) || fip.Spec.NodeName != r.Node {
			t.Errorf("%s: the record says %+v", name, fip.Spec)
		}
	}
	if p := e.witness.Pod(namespace, "stranger-0"); string(p.UID) != before["stranger-0"].UID || p.Status.PodIP != before["stranger-0"].Address {
		t.Errorf("a pod without a fixed address was %+v and has %s", before["stranger-0"], p.Status.PodIP)
	}
	if owner, ok := e.witness.Owner(before["stranger-0"].Node, before["stranger-0"].Address); !ok || owner != "" {
		t.Errorf("the entry of a pod without a fixed address has the owner %q (%v)", owner, ok)
	}
	e.deletePods(all...)
	e.sameAddresses(after, e.awaitRunning(after, all...))
	e.delete(statefulSet("db1", 3))
	e.await("wait for db1 to leave nothing behind", func(rows []witness.Row) bool {
		return !slices.ContainsFunc(rows, func(r witness.Row) bool { return strings.HasPrefix(r.Pod, "db1-") })
	})
}

// awaitRunningAsBefore is awaitRunning for pods that may have been running before.
func (e *env) awaitRunningAsBefore(names []string) map[string]witness.Row {
	e.t.Helper()
	return e.awaitRunning(map[string]witness.Row{}, names...)
}

// TestRestoredFromSpecs checks that FixedIPs from a backup (metadata and spec without status) that are applied before
// their nodes and workloads exist, with old UIDs, are all in pools before the first pod is placed.
func TestRestoredFromSpecs(t *testing.T) {
	t.Parallel()
	e := start(t, options{controllerArgs: defaultPool})
	restored := func(name, ip, node string) *v1alpha1.FixedIP {
		fip := beforehand("web", name, ip)
		fip.Spec.NodeName, fip.Spec.Owner.UID, fip.Finalizers = node, "of-another-life", []string{v1alpha1.Finalizer}
		fip.Annotations = map[string]string{v1alpha1.AnnotationUID: "of-another-life"}
		return fip
	}
	want := map[string]string{"web-0": "10.240.7.9", "web-1": "10.240.3.200", "web-2": "10.240.7.200"}
	e.create(restored("web-0", want["web-0"], "node-1"), restored("web-1", want["web-1"], "node-2"), restored("web-2", want["web-2"], "node-1"))
	e.projected("web-0", metav1.ConditionFalse, "IP 10.240.7.9 is in no node's subnet")
	for _, n := range []string{"node-1", "node-2"} {
		e.startNode(n)
	}
	for _, n := range []string{"node-1", "node-2"} {
		e.must(e.WaitNodeReady(e.whileAllRun(), n))
	}
	for name := range want {
		e.projected(name, metav1.ConditionTrue, "")
	}
	web := statefulSet("web", 3)
	e.create(web)
	for name, r := range e.awaitRunning(nil, names("web", 3)...) {
		if r.Address != want[name] {
			t.Errorf("%s had %s before the disaster and has %s now", name, want[name], r.Address)
		}
		if uid := e.witness.Record(namespace, name).Spec.Owner.UID; uid != web.UID {
			t.Errorf("the record of %s has the owner %s, want %s", name, uid, web.UID)
		}
	}
}

// TestOptedOut checks that after a template opts out each pod is replaced without a fixed address, and its FixedIP is
// removed.
func TestOptedOut(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1", "node-2"}, controllerArgs: defaultPool})
	kept := func(s *appsv1.StatefulSet) { s.Annotations = map[string]string{"fixedip.io/when-deleted": "Retain"} }
	e.create(statefulSet("web", 2), statefulSet("kept", 1, kept))
	before := e.awaitRunning(nil, "web-0", "web-1", "kept-0")
	for _, name := range []string{"web", "kept"} {
		e.must(e.api.Patch(within(t), statefulSet(name, 0), client.RawPatch(types.MergePatchType,
			[]byte(`{"spec":{"template":{"metadata":{"annotations":{"fixedip.io/enabled":"false"}}}}}`))))
	}
	e.await("wait for the pods to run without", func(rows []witness.Row) bool {
		without := 0
		for _, r := range rows {
			if strings.HasPrefix(r.Pod, "web-") && r.Running && r.UID != before[r.Pod].UID && r.Phase == "" && len(r.Entries) == 0 {
				without++
			}
		}
		return without == 2
	})
	// The next pods of these names have no FixedIP.
	for _, name := range []string{"web-0", "web-1", "kept-0"} {
		e.witness.Forgive(namespace + "/" + name)
	}
	if got := e.witness.Entries(namespace, "kept-0"); !slices.Equal(got, before["kept-0"].Entries) {
		t.Errorf("kept-0 retains its address, had %v and has %v", before["kept-0"].Entries, got)
	}
}
