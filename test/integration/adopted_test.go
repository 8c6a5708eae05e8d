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
	"fixedip.io/fixedip/ipam/core/reservation"
)

// boundTo sets spec.nodeName in the pod template of a StatefulSet, so that no scheduler places the pods.
func boundTo(node string) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.NodeName = node }
}

// awaitAllocated waits until the condition Allocated of a FixedIP has the status and a message that contains the given text.
func (e *env) awaitAllocated(name string, status metav1.ConditionStatus, message string) {
	e.t.Helper()
	e.awaitRecord(name, func(f *v1alpha1.FixedIP) bool {
		c := meta.FindStatusCondition(f.Status.Conditions, v1alpha1.ConditionAllocated)
		return c != nil && c.Status == status && strings.Contains(c.Message, message)
	})
}

// TestG10HandWrittenOwners checks owned entries that a user wrote into CiliumNodes. The pods that the entries name get the
// addresses, whether our scheduler places the pods or their spec names the node, and whatever resource the entries have. The
// controller creates FixedIPs for the pods, and restores a lost entry (G10).
func TestG10HandWrittenOwners(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1", "node-2"}, controllerArgs: defaultPool})
	// Below, the test removes the entry of the bound pod theirs-0, and the controller writes it again. By default the witness
	// reports an entry that is written after the bind.
	e.witness.AnyOrder()
	e.must(e.ownerEntry("node-2", ".61", "default/ours-0", ""))
	e.must(e.ownerEntry("node-1", ".62", "default/theirs-0", "by hand, 2024"))
	e.must(e.ownerEntry("node-1", ".63", "default/bare", ""))
	e.must(e.ownerEntry("node-1", ".64", "default/later-0", ""))
	bare := func() *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "bare"}, Spec: corev1.PodSpec{
			NodeName: "node-1", TerminationGracePeriodSeconds: ptr.To[int64](1), Containers: []corev1.Container{{Name: "main", Image: "none"}},
		}}
	}
	e.create(statefulSet("ours", 1), statefulSet("theirs", 1, boundTo("node-1")), bare())
	before := e.awaitRunning(nil, "ours-0", "theirs-0", "bare")
	for name, want := range map[string]string{"ours-0": e.in("node-2", "61"), "theirs-0": e.in("node-1", "62"), "bare": e.in("node-1", "63")} {
		if before[name].Address != want {
			t.Errorf("pod %s has %s, want %s, the address of its entry", name, before[name].Address, want)
		}
	}
	for name, kind := range map[string]string{"ours-0": "StatefulSet", "theirs-0": "StatefulSet", "bare": "Pod"} {
		if o := e.witness.Record(namespace, name).Spec.Owner; o.Kind != kind || o.UID == "" {
			t.Errorf("the FixedIP of %s has the owner %+v, want a %s with a UID", name, o, kind)
		}
	}
	if got := e.witness.Entries(namespace, "later-0"); len(got) != 1 {
		t.Errorf("the pools have the entries %v for later-0, want one, although no pod has that name", got)
	}

	// A lost entry is restored, and the pod has its address after a restart.
	e.setOwner("node-1", e.in("node-1", "62"), nil)
	e.await("wait for the entry of theirs-0 to be restored", func([]witness.Row) bool {
		return slices.Equal(e.witness.Entries(namespace, "theirs-0"), before["theirs-0"].Entries)
	})
	e.deletePods("ours-0", "theirs-0", "bare")
	e.awaitRecord("bare", func(f *v1alpha1.FixedIP) bool { return reservation.StateOf(f) == reservation.Reserved })
	e.createAgain(bare())
	e.sameAddresses(before, e.awaitRunning(before, "ours-0", "theirs-0", "bare"))

	// An address of an entry that a user wrote is released like a claimed one.
	e.delete(statefulSet("theirs", 1))
	e.delete(&v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "bare"}})
	e.deletePods("bare")
	e.await("wait for the addresses of theirs-0 and bare to be released", func(rows []witness.Row) bool {
		return !slices.ContainsFunc(rows, func(r witness.Row) bool { return r.Pod == "theirs-0" || r.Pod == "bare" })
	})
}

// TestGuidesClusterTakenOver checks that our controller takes over a cluster of the guide's controller, whose pools
// contain whole subnets and owned entries of running pods. No pod is restarted or changes its address. After that, our
// controller keeps the addresses of recreated pods, and releases those of a deleted StatefulSet.
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
	e.create(statefulSet("unreserved", 1, boundTo("node-1"), onTemplate("fixedip.io/enabled", "false")))
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
		// The guide's controller writes the owner when it sees the address of the pod.
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
			t.Errorf("pod %s is %+v, want the UID and the address of %+v and one entry", name, r, before[name])
		}
		if fip := e.witness.Record(namespace, name); !slices.Equal(fip.Spec.IPs, []string{r.Address}) || fip.Spec.NodeName != r.Node {
			t.Errorf("the FixedIP of %s has the spec %+v, want the IP %s and the node %s", name, fip.Spec, r.Address, r.Node)
		}
	}
	if p := e.witness.Pod(namespace, "unreserved-0"); string(p.UID) != before["unreserved-0"].UID || p.Status.PodIP != before["unreserved-0"].Address {
		t.Errorf("pod unreserved-0 has the UID %s and the IP %s, want those of %+v", p.UID, p.Status.PodIP, before["unreserved-0"])
	}
	if owner, ok := e.witness.Owner(before["unreserved-0"].Node, before["unreserved-0"].Address); !ok || owner != "" {
		t.Errorf("the entry of pod unreserved-0 has the owner %q (exists: %v), want a dynamic entry", owner, ok)
	}
	e.deletePods(all...)
	e.sameAddresses(after, e.awaitRunning(after, all...))
	e.delete(statefulSet("db1", 3))
	e.await("wait for all pods, FixedIPs and entries of db1 to be deleted", func(rows []witness.Row) bool {
		return !slices.ContainsFunc(rows, func(r witness.Row) bool { return strings.HasPrefix(r.Pod, "db1-") })
	})
}

// awaitRunningAsBefore is awaitRunning for pods with any UIDs, because the pods may have been running all the time.
func (e *env) awaitRunningAsBefore(names []string) map[string]witness.Row {
	e.t.Helper()
	return e.awaitRunning(map[string]witness.Row{}, names...)
}

// TestRestoredFromSpecs applies FixedIPs from a backup (metadata and spec, with old UIDs and without status) before
// their nodes and workloads exist. It checks that all their addresses are in pools before the first pod is placed, and that
// the pods run with them.
func TestRestoredFromSpecs(t *testing.T) {
	t.Parallel()
	e := start(t, options{controllerArgs: defaultPool})
	restored := func(name, ip, node string) *v1alpha1.FixedIP {
		fip := beforehand("web", name, ip)
		fip.Spec.NodeName, fip.Spec.Owner.UID, fip.Finalizers = node, "old-uid", []string{v1alpha1.Finalizer}
		fip.Annotations = map[string]string{v1alpha1.AnnotationUID: "old-uid"}
		return fip
	}
	want := map[string]string{"web-0": "10.240.7.9", "web-1": "10.240.3.200", "web-2": "10.240.7.200"}
	e.create(restored("web-0", want["web-0"], "node-1"), restored("web-1", want["web-1"], "node-2"), restored("web-2", want["web-2"], "node-1"))
	e.awaitAllocated("web-0", metav1.ConditionFalse, "IP 10.240.7.9 is in no node's subnet")
	for _, n := range []string{"node-1", "node-2"} {
		e.startNode(n)
	}
	for _, n := range []string{"node-1", "node-2"} {
		e.must(e.WaitNodeReady(e.whileAllRun(), n))
	}
	for name := range want {
		e.awaitAllocated(name, metav1.ConditionTrue, "")
	}
	web := statefulSet("web", 3)
	e.create(web)
	for name, r := range e.awaitRunning(nil, names("web", 3)...) {
		if r.Address != want[name] {
			t.Errorf("pod %s has %s, want the restored address %s", name, r.Address, want[name])
		}
		if uid := e.witness.Record(namespace, name).Spec.Owner.UID; uid != web.UID {
			t.Errorf("the FixedIP of %s has the owner UID %s, want %s", name, uid, web.UID)
		}
	}
}

// TestOptedOut checks that, after a pod template opts out, each pod is replaced by a pod without a fixed address. The
// FixedIPs are removed, unless the StatefulSet has when-deleted Retain.
func TestOptedOut(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1", "node-2"}, controllerArgs: defaultPool})
	retain := func(s *appsv1.StatefulSet) { s.Annotations = map[string]string{"fixedip.io/when-deleted": "Retain"} }
	e.create(statefulSet("web", 2), statefulSet("retained", 1, retain))
	before := e.awaitRunning(nil, "web-0", "web-1", "retained-0")
	optOut := func(name string) {
		e.must(e.api.Patch(within(t), statefulSet(name, 0), client.RawPatch(types.MergePatchType,
			[]byte(`{"spec":{"template":{"metadata":{"annotations":{"fixedip.io/enabled":"false"}}}}}`))))
	}
	// The next retained-0 must not run on its home node. There it would use the reserved address, which is not released while
	// it is in use, so that the test would not show the effect of Retain.
	e.cordon(before["retained-0"].Node, true)
	optOut("retained")
	e.await("wait for retained-0 to run on the other node", func(rows []witness.Row) bool {
		return slices.ContainsFunc(rows, func(r witness.Row) bool {
			return r.Pod == "retained-0" && r.Running && r.UID != before[r.Pod].UID && r.Node != before[r.Pod].Node
		})
	})
	// web opts out last. When its addresses have been released, the address of retained-0 would have been released, too, if
	// StatefulSet retained did not have Retain.
	optOut("web")
	e.await("wait for the pods to run without fixed addresses", func(rows []witness.Row) bool {
		without := 0
		for _, r := range rows {
			if strings.HasPrefix(r.Pod, "web-") && r.Running && r.UID != before[r.Pod].UID && r.State == "" && len(r.Entries) == 0 {
				without++
			}
		}
		return without == 2
	})
	// The next pods with these names have opted out. The witness would report that they do not run with the addresses
	// of their FixedIPs.
	for _, name := range []string{"web-0", "web-1", "retained-0"} {
		e.witness.Forgive(namespace + "/" + name)
	}
	if got := e.witness.Entries(namespace, "retained-0"); !slices.Equal(got, before["retained-0"].Entries) {
		t.Errorf("retained-0 has the entries %v, want %v", got, before["retained-0"].Entries)
	}
	if r := e.witness.Record(namespace, "retained-0"); r == nil || r.DeletionTimestamp != nil {
		t.Errorf("the FixedIP of retained-0 is %+v, want one that is not being deleted", r)
	}
}
