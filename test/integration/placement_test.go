// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

var threeNodes = []string{"node-1", "node-2", "node-3"}

// TestG1OwnerBinding checks that the scheduler writes the owner and the resource of an entry before it binds the pod, even
// without a controller. A controller that starts later creates the FixedIP (G1).
func TestG1OwnerBinding(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: threeNodes, controllerArgs: defaultPool})
	e.must(e.controller.Terminate(within(t)))
	pods := names("web", 9)
	e.create(statefulSet("web", 9))
	e.await("wait for the pods to run", func(rows []witness.Row) bool {
		return len(rows) == len(pods) && !slices.ContainsFunc(rows, func(r witness.Row) bool { return !r.Running || r.State != "" || len(r.Entries) != 1 })
	})
	owned := map[string]ipamtypes.AllocationIP{}
	var nodes ciliumv2.CiliumNodeList
	e.must(e.api.List(within(t), &nodes))
	for _, cn := range nodes.Items {
		for ip, entry := range cn.Spec.IPAM.Pool {
			if entry.Owner != "" {
				owned[cn.Name+"/"+ip] = entry
			}
		}
	}
	want := map[string]ipamtypes.AllocationIP{}
	for _, name := range pods {
		pod := e.witness.Pod(namespace, name)
		want[pod.Spec.NodeName+"/"+pod.Status.PodIP] = ipamtypes.AllocationIP{Owner: "default/" + name, Resource: "default/StatefulSet/web"}
	}
	if diff := cmp.Diff(want, owned); diff != "" {
		t.Errorf("the owned entries of the pools differ from the pods (-want +got): %s", diff)
	}
	e.must(e.controller.Restart(within(t)))
	before := e.awaitRunning(nil, pods...)

	placements := e.witness.Placements()
	if len(placements) != len(pods) {
		t.Errorf("the witness saw %d first placements, want %d", len(placements), len(pods))
	}
	for _, p := range placements {
		if p.Claimed >= p.Bound {
			t.Errorf("the address of pod %s was claimed at revision %d, want it before the bind at revision %d", p.Pod, p.Claimed, p.Bound)
		}
	}
	for name, r := range before {
		if want := []string{r.Node + "/" + r.Address}; !slices.Equal(r.Entries, want) {
			t.Errorf("pod %s has the entries %v, want %v", name, r.Entries, want)
		}
		var fip v1alpha1.FixedIP
		e.must(e.api.Get(within(t), client.ObjectKey{Namespace: namespace, Name: name}, &fip))
		if fip.Spec.NodeName != r.Node || !slices.Equal(fip.Spec.IPs, []string{r.Address}) || fip.Spec.Owner.Name != "web" || string(fip.Status.PodUID) != r.UID {
			t.Errorf("FixedIP %s has spec %+v and status %+v, which do not match pod %+v", name, fip.Spec, fip.Status, r)
		}
	}
}

// TestG2SameAddress checks that a pod has the same address after a restart of any component, and that a restart in place
// writes no spec of a CiliumNode (G2).
func TestG2SameAddress(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: threeNodes, controllerArgs: defaultPool})
	pods := names("web", 9)
	e.create(statefulSet("web", 9))
	before := e.awaitRunning(nil, pods...)
	e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Used == p.Fixed+2 && p.Dynamic == 10 }))
	generations := e.witness.Generations()
	e.deletePods(pods...)
	e.sameAddresses(before, e.awaitRunning(before, pods...))
	for n, g := range e.witness.Generations() {
		if g != generations[n] {
			t.Errorf("the spec of CiliumNode %s was written %d times during restarts in place, want 0", n, g-generations[n])
		}
	}
	again := func() {
		t.Helper()
		now := e.awaitRunning(nil, pods...)
		e.deletePods(pods...)
		e.sameAddresses(before, e.awaitRunning(now, pods...))
	}

	// The pods restart without a controller, and then with a restarted one.
	e.must(e.controller.Terminate(within(t)))
	again()
	e.must(e.controller.Restart(within(t)))
	again()

	// A killed scheduler does not release its Lease, so the restarted scheduler waits until the Lease expires.
	e.must(e.scheduler.Kill())
	e.must(e.scheduler.Restart(within(t)))
	again()

	// A restarted agent restores the addresses of its pods.
	now := e.awaitRunning(nil, pods...)
	e.must(e.Process("node-1").Restart(within(t)))
	e.restored("node-1", now)
	again()

	// After a reboot the pods are the same and have new sandboxes, for which the agent allocates their addresses again.
	now = e.awaitRunning(nil, pods...)
	e.must(e.Process("node-2").Kill())
	rebooted := e.startNode("node-2", "--rebooted")
	for name, r := range now {
		if r.Node == "node-2" {
			e.eventually("pod "+name+" to have a second sandbox", func() bool {
				started := e.logged(rebooted, `uid="`+r.UID+`"`)
				return len(slices.DeleteFunc(started, func(line string) bool { return !strings.Contains(line, "Started the pod") })) == 2
			})
		}
	}
	e.untouched(now)
	again()
}

// restored waits until a restarted agent reports the addresses of its pods as restored, and checks that the pods were not
// restarted.
func (e *env) restored(node string, pods map[string]witness.Row) {
	e.t.Helper()
	e.awaitNode(node, "the agent to have restored its pods", func(cn *ciliumv2.CiliumNode) bool {
		for name, r := range pods {
			if r.Node == node && cn.Status.IPAM.Used[r.Address].Owner != "default/"+name+" [restored]" {
				return false
			}
		}
		return true
	})
	e.untouched(pods)
}

// TestSubnetFull checks, on a node with three addresses that are not in its pool, that the fourth pod with a fixed address waits
// with a reason, and is placed when addresses are released.
func TestSubnetFull(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1"}, controllerArgs: []string{
		"--cluster-pool-ipv4-cidr=10.240.0.0/29", "--cluster-pool-ipv4-mask-size=29", "--min-free-ips=2", "--max-dynamic-ips=3", "--address-cooldown=1s",
	}})
	e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Dynamic == 3 }))
	e.create(statefulSet("web", 3))
	before := e.awaitRunning(nil, names("web", 3)...)
	e.create(statefulSet("late", 1))
	e.podMessage("late-0", "node(s) had no IPv4 address available for a pod with a fixed address")
	// Failure F11 of docs/project/field-bugs.md: although the subnet is full, a pod with a reservation runs again with its
	// address, which the waiting pod does not get.
	e.deletePods("web-1")
	e.sameAddresses(before, e.awaitRunning(map[string]witness.Row{"web-1": before["web-1"]}, names("web", 3)...))

	e.delete(statefulSet("web", 3))
	rows := e.awaitRunning(nil, "late-0")
	if r := rows["late-0"]; r.Node != "node-1" {
		t.Errorf("late-0 is %+v, want it on node-1", r)
	}
}

// TestOwnerNodeGoneAndBack checks that pods whose home node was deleted wait, and run with their addresses when a node with
// the name of the deleted node joins. Pods on the other node are not affected.
func TestOwnerNodeGoneAndBack(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1", "node-2"}, controllerArgs: defaultPool})
	e.create(statefulSet("web", 4))
	before := e.awaitRunning(nil, names("web", 4)...)
	lost := before["web-0"].Node

	e.must(e.Process(lost).Kill())
	e.delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: lost}})
	for name, r := range before {
		if r.Node == lost {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
			e.must(client.IgnoreNotFound(e.api.Delete(within(t), pod, client.GracePeriodSeconds(0))))
		}
	}
	// The garbage collector deletes the CiliumNode with all entries.
	e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Node != lost }))
	e.podMessage("web-0", before["web-0"].Address)

	// A node with the same name joins and gets the same subnet, and the pods run there.
	e.startNode(lost)
	after := map[string]witness.Row{}
	for name, r := range before {
		if r.Node == lost {
			after[name] = e.awaitRunning(before, name)[name]
		} else {
			after[name] = e.awaitRunning(nil, name)[name]
			if after[name].UID != r.UID {
				t.Errorf("pod %s on the other node was replaced, want the same UID", name)
			}
		}
	}
	e.sameAddresses(before, after)
}

// TestBarePodWithReservedName checks a bare pod with the name of a pod of a StatefulSet. It does not get the address
// that is reserved for the pod of the StatefulSet, and runs on another node.
func TestBarePodWithReservedName(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1", "node-2"}, controllerArgs: defaultPool})
	e.create(statefulSet("web", 1))
	before := e.awaitRunning(nil, "web-0")["web-0"]
	// The StatefulSet is scaled to zero, and the address of web-0 stays reserved. Then a user creates a pod with that name.
	e.must(e.api.Patch(within(t), statefulSet("web", 0), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":0}}`))))
	e.await("wait for the pod to be deleted", func(rows []witness.Row) bool { return len(rows) == 1 && rows[0].UID == "" })
	bare := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web-0"}, Spec: statefulSet("web", 0).Spec.Template.Spec}
	e.create(bare)
	rows := e.await("wait for the bare pod to run", func(rows []witness.Row) bool { return len(rows) == 1 && rows[0].Running })
	if rows[0].Node == before.Node || rows[0].Address == before.Address {
		t.Errorf("the bare pod runs on %s with %s, want another address than %s and another node than %s", rows[0].Node, rows[0].Address, before.Address, before.Node)
	}
	e.witness.Forgive("default/web-0")
}

// TestSubnetsFillEvenly checks that first placements prefer nodes with more free addresses.
func TestSubnetsFillEvenly(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: threeNodes, controllerArgs: []string{"--cluster-pool-ipv4-cidr=10.240.0.0/24", "--cluster-pool-ipv4-mask-size=27", "--address-cooldown=2s"}})
	// The scheduler claims no address on a node before the agent of the node has reported.
	e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Used == 2 }))
	e.create(statefulSet("web", 12))
	perNode := map[string]int{}
	for _, r := range e.awaitRunning(nil, names("web", 12)...) {
		perNode[r.Node]++
	}
	for _, n := range threeNodes {
		if perNode[n] < 3 || perNode[n] > 5 {
			t.Errorf("12 pods were placed on 3 nodes as %v, want 3 to 5 on each", perNode)
		}
	}
}

// TestExplain checks that the message of a pod whose home node is cordoned names that node and what helps.
func TestExplain(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1", "node-2"}, controllerArgs: defaultPool})
	e.create(statefulSet("web", 1))
	before := e.awaitRunning(nil, "web-0")
	r := before["web-0"]
	cordon := func(unschedulable string) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: r.Node}}
		e.must(e.api.Patch(within(t), node, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"unschedulable":`+unschedulable+`}}`))))
	}
	cordon("true")
	e.deletePods("web-0")
	e.podMessage("web-0", fmt.Sprintf("its address %s belongs to node %s, which is cordoned; uncordon that node", r.Address, r.Node))
	cordon("false")
	e.sameAddresses(before, e.awaitRunning(before, "web-0"))
}

// TestG19StickyMAC checks that a pod with the annotation fixedip.io/sticky-mac has the same MAC address after a
// restart. A MAC address in Cilium's own annotation is kept, and an invalid value is reported (G19).
func TestG19StickyMAC(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1", "node-2"}, controllerArgs: defaultPool})
	annotated := func(key, value string) func(*appsv1.StatefulSet) {
		return func(s *appsv1.StatefulSet) {
			metav1.SetMetaDataAnnotation(&s.Spec.Template.ObjectMeta, key, value)
		}
	}
	const sticky, cilium, byHand = "fixedip.io/sticky-mac", "cni.cilium.io/mac-address", "02:00:00:00:00:01"
	e.create(statefulSet("web", 2, annotated(sticky, "true")), statefulSet("hand", 1, annotated(sticky, "true"), annotated(cilium, byHand)), statefulSet("wrong", 1, annotated(sticky, "sure")))
	all := append(names("web", 2), "hand-0")
	mac := func(name string) string { return e.witness.Pod(namespace, name).Annotations[cilium] }
	before := e.awaitRunning(nil, all...)
	macs := map[string]string{}
	for _, name := range all {
		macs[name] = mac(name)
		if _, err := net.ParseMAC(macs[name]); err != nil {
			t.Errorf("pod %s has no valid MAC address: %v", name, err)
		}
	}
	if macs["web-0"] == macs["web-1"] || macs["hand-0"] != byHand {
		t.Errorf("the MAC addresses are %v, want different ones for web-0 and web-1, and %s for hand-0", macs, byHand)
	}
	e.deletePods(all...)
	e.sameAddresses(before, e.awaitRunning(before, all...))
	for _, name := range all {
		if got := mac(name); got != macs[name] {
			t.Errorf("pod %s had the MAC address %s and has %s after the restart, want the same", name, macs[name], got)
		}
	}
	e.podMessage("wrong-0", `annotation fixedip.io/sticky-mac of pod default/wrong-0 is "sure"; write "true" or "false"`)
}
