package integration

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

var threeNodes = []string{"node-1", "node-2", "node-3"}

func TestFirstPlacementAndRestart(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: threeNodes, controllerArgs: defaultPool})
	pods := names("web", 9)
	e.create(statefulSet("web", 9))
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

	// A restart in place writes no spec of a CiliumNode.
	e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Used == p.Fixed+2 && p.Dynamic == 10 }))
	generations := e.witness.Generations()
	e.deletePods(pods...)
	e.sameAddresses(before, e.awaitRunning(before, pods...))
	for n, g := range e.witness.Generations() {
		if g != generations[n] {
			t.Errorf("the spec of CiliumNode %s was written %d times", n, g-generations[n])
		}
	}
}

func TestControllerDown(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: threeNodes, controllerArgs: defaultPool})
	e.create(statefulSet("web", 3))
	before := e.awaitRunning(nil, names("web", 3)...)
	e.must(e.controller.Terminate(within(t)))

	e.deletePods(names("web", 3)...)
	e.sameAddresses(before, e.awaitRunning(before, names("web", 3)...))

	// A first placement works too; its record follows when the controller is back.
	e.create(statefulSet("late", 1))
	e.await("wait for late-0 to run", func(rows []witness.Row) bool {
		return slices.ContainsFunc(rows, func(r witness.Row) bool {
			return r.Pod == "late-0" && r.Running && r.Phase == "" && len(r.Entries) == 1
		})
	})
	e.must(e.controller.Restart(within(t)))
	e.awaitRunning(nil, "late-0")
}

func TestDualStack(t *testing.T) {
	t.Parallel()
	o := options{
		controllerArgs: append([]string{"--cluster-pool-ipv6-cidr=fd00:240::/112", "--cluster-pool-ipv6-mask-size=120"}, defaultPool...),
		families:       []string{"IPv4", "IPv6"},
	}
	e := start(t, o)
	e.startNode("node-1", "--ipv6")
	e.startNode("node-2", "--ipv6")
	e.create(statefulSet("web", 4))
	before := e.awaitRunning(nil, names("web", 4)...)
	for name, r := range before {
		if ips := strings.Split(r.Address, ","); len(ips) != 2 || len(r.Entries) != 2 {
			t.Errorf("pod %s has %s and the entries %v, want an address of each family", name, r.Address, r.Entries)
		}
	}
	e.deletePods(names("web", 4)...)
	e.sameAddresses(before, e.awaitRunning(before, names("web", 4)...))
}

func TestOptOut(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1"}, controllerArgs: defaultPool})
	annotated := func(value string) func(*appsv1.StatefulSet) {
		return func(s *appsv1.StatefulSet) {
			s.Spec.Template.Annotations = map[string]string{"fixedip.io/enabled": value}
		}
	}
	e.create(statefulSet("out", 1, annotated("false")), statefulSet("in", 1, annotated("true")), statefulSet("wrong", 1, annotated("yes please")))
	e.awaitRunning(nil, "in-0")
	e.await("wait for out-0 to run without an entry of its own", func(rows []witness.Row) bool {
		return slices.ContainsFunc(rows, func(r witness.Row) bool { return r.Pod == "out-0" && r.Running && r.Phase == "" && len(r.Entries) == 0 })
	})
	e.podMessage("wrong-0", `annotation fixedip.io/enabled of pod default/wrong-0 is "yes please"; write "true" or "false"`)

	// Mended on the pod itself, it is placed.
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "wrong-0"}}
	e.must(e.api.Patch(within(t), pod, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"fixedip.io/enabled":"true"}}}`))))
	e.awaitRunning(nil, "wrong-0")
}

// A node with room for three fixed addresses: the fourth pod waits, says why, and is placed when
// an address comes free.
func TestSubnetFull(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1"}, controllerArgs: []string{
		"--cluster-pool-ipv4-cidr=10.240.0.0/29", "--cluster-pool-ipv4-mask-size=29", "--ip-rate-num=2", "--max-allocated-ip=3", "--cool-down=1s",
	}})
	e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Dynamic == 3 }))
	e.create(statefulSet("web", 3))
	e.awaitRunning(nil, names("web", 3)...)
	e.create(statefulSet("late", 1))
	e.podMessage("late-0", "node(s) had no free IPv4 address for a fixed pod in their subnets")

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
	e := start(t, options{nodes: threeNodes, controllerArgs: []string{"--cluster-pool-ipv4-cidr=10.240.0.0/24", "--cluster-pool-ipv4-mask-size=27", "--cool-down=2s"}})
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

// A pod that asks for it has the same MAC address in every incarnation, written where the agent
// reads it, before the bind.
func TestStickyMAC(t *testing.T) {
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
