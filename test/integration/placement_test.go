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

// G1: the scheduler writes the owner, and what it is for, onto the address of a pod before it binds the
// pod. No controller runs meanwhile: its record follows when it is back.
func TestG1OwnerBinding(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: threeNodes, controllerArgs: defaultPool})
	e.must(e.controller.Terminate(within(t)))
	pods := names("web", 9)
	e.create(statefulSet("web", 9))
	e.await("wait for the pods to run", func(rows []witness.Row) bool {
		return len(rows) == len(pods) && !slices.ContainsFunc(rows, func(r witness.Row) bool { return !r.Running || r.Phase != "" || len(r.Entries) != 1 })
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
		t.Errorf("the entries with an owner in the pools (-want +got): %s", diff)
	}
	e.must(e.controller.Restart(within(t)))
	before := e.awaitRunning(nil, pods...)

	placements := e.witness.Placements()
	if len(placements) != len(pods) {
		t.Errorf("%d first placements were seen, want %d", len(placements), len(pods))
	}
	for _, p := range placements {
		if p.Claimed >= p.Bound {
			t.Errorf("%s was claimed at revision %d and bound at %d", p.Pod, p.Claimed, p.Bound)
		}
	}
	for name, r := range before {
		if want := []string{r.Node + "/" + r.Address}; !slices.Equal(r.Entries, want) {
			t.Errorf("pod %s has the entries %v, want %v", name, r.Entries, want)
		}
		var fip v1alpha1.FixedIP
		e.must(e.api.Get(within(t), client.ObjectKey{Namespace: namespace, Name: name}, &fip))
		if fip.Spec.NodeName != r.Node || !slices.Equal(fip.Spec.IPs, []string{r.Address}) || fip.Spec.Owner.Name != "web" || string(fip.Status.PodUID) != r.UID {
			t.Errorf("FixedIP %s: %+v, %+v; the pod: %+v", name, fip.Spec, fip.Status, r)
		}
	}
}

// G2: whatever is started anew, a pod has the address that it had. A restart in place writes no spec of
// a CiliumNode.
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
			t.Errorf("the spec of CiliumNode %s was written %d times", n, g-generations[n])
		}
	}
	again := func() {
		t.Helper()
		now := e.awaitRunning(nil, pods...)
		e.deletePods(pods...)
		e.sameAddresses(before, e.awaitRunning(now, pods...))
	}

	// Without a controller, and with one that has come back.
	e.must(e.controller.Terminate(within(t)))
	again()
	e.must(e.controller.Restart(within(t)))
	again()

	// A scheduler that is killed has no time to give up its lease: its successor waits for the end of it.
	e.must(e.scheduler.Kill())
	e.must(e.scheduler.Restart(within(t)))
	again()

	// An agent restores what its pods have.
	now := e.awaitRunning(nil, pods...)
	e.must(e.Process("node-1").Restart(within(t)))
	e.restored("node-1", now)
	again()

	// After a reboot the pods are those that they were, and their sandboxes are others: the agent is asked
	// for their addresses anew.
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

// restored waits until an agent that was started again tells of the addresses of its pods, which it has
// restored and not given out.
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

// A node with room for three fixed addresses: the fourth pod waits, says why, and is placed when
// an address comes free.
func TestSubnetFull(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1"}, controllerArgs: []string{
		"--cluster-pool-ipv4-cidr=10.240.0.0/29", "--cluster-pool-ipv4-mask-size=29", "--min-free-ips=2", "--max-dynamic-ips=3", "--address-cooldown=1s",
	}})
	e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Dynamic == 3 }))
	e.create(statefulSet("web", 3))
	before := e.awaitRunning(nil, names("web", 3)...)
	e.create(statefulSet("late", 1))
	e.podMessage("late-0", "node(s) had no free IPv4 address for a fixed pod in their subnets")
	// F11: who has an address comes back to it, full or not, and before whoever waits.
	e.deletePods("web-1")
	e.sameAddresses(before, e.awaitRunning(map[string]witness.Row{"web-1": before["web-1"]}, names("web", 3)...))

	e.delete(statefulSet("web", 3))
	rows := e.awaitRunning(nil, "late-0")
	if r := rows["late-0"]; r.Node != "node-1" {
		t.Errorf("late-0: %+v", r)
	}
}

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
	// The garbage collector takes the CiliumNode, and with it all entries.
	e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Node != lost }))
	e.podMessage("web-0", fmt.Sprintf("its address %s", before["web-0"].Address))

	// A node of the same name joins: it has the subnet of the old one, and the pods follow.
	e.startNode(lost)
	after := map[string]witness.Row{}
	for name, r := range before {
		if r.Node == lost {
			after[name] = e.awaitRunning(before, name)[name]
		} else {
			after[name] = e.awaitRunning(nil, name)[name]
			if after[name].UID != r.UID {
				t.Errorf("pod %s on another node was touched", name)
			}
		}
	}
	e.sameAddresses(before, after)
}

// A pod that only has the name of an identity never gets its address: it goes to another node, or
// waits.
func TestStranger(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1", "node-2"}, controllerArgs: defaultPool})
	e.create(statefulSet("web", 1))
	before := e.awaitRunning(nil, "web-0")["web-0"]
	// The StatefulSet goes to zero and its address stays; then somebody makes a pod of that name.
	e.must(e.api.Patch(within(t), statefulSet("web", 0), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":0}}`))))
	e.await("wait for the pod to go", func(rows []witness.Row) bool { return len(rows) == 1 && rows[0].UID == "" })
	stranger := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web-0"}, Spec: statefulSet("web", 0).Spec.Template.Spec}
	e.create(stranger)
	rows := e.await("wait for the stranger to run", func(rows []witness.Row) bool { return len(rows) == 1 && rows[0].Running })
	if rows[0].Node == before.Node || rows[0].Address == before.Address {
		t.Errorf("the stranger runs on %s with %s; %s on %s is kept for another", rows[0].Node, rows[0].Address, before.Address, before.Node)
	}
	e.witness.Forgive("default/web-0")
}

// First placements go where most of the subnet is free.
func TestSubnetsFillEvenly(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: threeNodes, controllerArgs: []string{"--cluster-pool-ipv4-cidr=10.240.0.0/24", "--cluster-pool-ipv4-mask-size=27", "--address-cooldown=2s"}})
	e.create(statefulSet("web", 12))
	perNode := map[string]int{}
	for _, r := range e.awaitRunning(nil, names("web", 12)...) {
		perNode[r.Node]++
	}
	for _, n := range threeNodes {
		if perNode[n] < 3 || perNode[n] > 5 {
			t.Errorf("12 pods on 3 nodes: %v", perNode)
		}
	}
}

// A pod whose node can't take it says which node its address belongs to, and what would help.
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
	e.podMessage("web-0", fmt.Sprintf("its address %s belongs to node %s, which is cordoned; uncordon it", r.Address, r.Node))
	cordon("false")
	e.sameAddresses(before, e.awaitRunning(before, "web-0"))
}

// G19: a pod that asks for it has the same MAC address in every incarnation, written where the agent
// reads it, before the bind.
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
			t.Errorf("pod %s: %v", name, err)
		}
	}
	if macs["web-0"] == macs["web-1"] || macs["hand-0"] != byHand {
		t.Errorf("%v", macs)
	}
	e.deletePods(all...)
	e.sameAddresses(before, e.awaitRunning(before, all...))
	for _, name := range all {
		if got := mac(name); got != macs[name] {
			t.Errorf("pod %s had %s and has %s now", name, macs[name], got)
		}
	}
	e.podMessage("wrong-0", `annotation fixedip.io/sticky-mac of pod default/wrong-0 is "sure"; write "true" or "false"`)
}
