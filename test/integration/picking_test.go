// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"slices"
	"testing"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/witness"
)

// TestG24Rotation checks that a released address is not reused at once. Addresses are taken from the top of the subnet. A
// released address is in cooldown, for an hour here, and no pod gets it, even if no other address is left. After the
// cooldown it is free (G24).
func TestG24Rotation(t *testing.T) {
	t.Parallel()
	// The node has room for three fixed addresses.
	e := start(t, options{controllerArgs: []string{
		"--cluster-pool-ipv4-cidr=10.240.0.0/29", "--cluster-pool-ipv4-mask-size=29", "--min-free-ips=2", "--max-dynamic-ips=3", "--address-cooldown=1h",
	}})
	e.startNode("node-1")
	e.must(e.WaitNodeReady(e.whileAllRun(), "node-1"))
	e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Dynamic == 3 }))
	running := 0
	place := func(name, want string) {
		t.Helper()
		e.create(statefulSet(name, 1))
		if r := e.awaitRunning(nil, name+"-0")[name+"-0"]; r.Address != want {
			t.Fatalf("%s-0 has %s, want %s", name, r.Address, want)
		}
		running++
		e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Used == 2+running }))
	}
	gone := func(name string) {
		t.Helper()
		running--
		e.delete(statefulSet(name, 1), client.PropagationPolicy(metav1.DeletePropagationBackground))
		e.await("wait for "+name+"-0, its FixedIP and its entry to be deleted", func(rows []witness.Row) bool {
			return !slices.ContainsFunc(rows, func(r witness.Row) bool { return r.Pod == name+"-0" })
		})
	}
	place("a", "10.240.0.6")
	place("b", "10.240.0.5")
	gone("a")
	place("c", "10.240.0.4")
	gone("b")
	e.create(statefulSet("d", 1))
	e.podMessage("d-0", "node(s) had no IPv4 address available for a pod with a fixed address")

	// With the next controller, the cooldown takes 1 s and is over for both released addresses. The waiting pod gets one of
	// these addresses, and the next pod gets the second one.
	e.must(e.controller.Terminate(within(t)))
	e.startController("cooled", "--cluster-pool-ipv4-cidr=10.240.0.0/29", "--cluster-pool-ipv4-mask-size=29", "--min-free-ips=2", "--max-dynamic-ips=3", "--address-cooldown=1s")
	released := []string{"10.240.0.5", "10.240.0.6"}
	got := e.awaitRunning(nil, "d-0")["d-0"].Address
	first := slices.Index(released, got)
	if first < 0 {
		t.Fatalf("d-0 has %s, want one of %v, whose cooldown is over", got, released)
	}
	running++
	e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Other == 0 && p.Used == 2+running }))
	place("f", released[1-first])
}

// TestScoreWeight checks that the weight of the plugin's score in the configuration balances free addresses against free
// CPU.
func TestScoreWeight(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1", "node-2"}, noScheduler: true, controllerArgs: []string{
		"--cluster-pool-ipv4-cidr=10.240.0.0/24", "--cluster-pool-ipv4-mask-size=27", "--min-free-ips=2", "--max-dynamic-ips=4", "--address-cooldown=2s",
	}})
	// Many addresses of node-1 are reserved, and most of the CPU of node-2 is in use.
	var cn ciliumv2.CiliumNode
	e.must(e.api.Get(within(t), client.ObjectKey{Name: "node-1"}, &cn))
	base := cn.Spec.IPAM.PodCIDRs[0]
	var prefix, first int
	if _, err := fmt.Sscanf(base, "10.240.%d.%d/27", &prefix, &first); err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		name := fmt.Sprintf("reserved-%d", i)
		e.create(beforehand("reserved", name, fmt.Sprintf("10.240.%d.%d", prefix, first+10+i)))
	}
	busy := statefulSet("busy", 1, withCPU("7"), onTemplate("fixedip.io/enabled", "false"), func(s *appsv1.StatefulSet) {
		s.Spec.Template.Spec.NodeName = "node-2"
	})
	e.create(busy)
	e.await("wait for busy-0 to run", func(rows []witness.Row) bool {
		return slices.ContainsFunc(rows, func(r witness.Row) bool { return r.Pod == "busy-0" && r.Running })
	})

	// Two schedulers with different weights run one after the other.
	for _, c := range []struct {
		weight int
		want   string
	}{{1, "node-1"}, {50, "node-2"}} {
		name := fmt.Sprintf("weight-%d", c.weight)
		p := e.startScheduler(name, product.SchedulerOptions{Weight: c.weight})
		e.create(statefulSet(name, 1))
		if r := e.awaitRunning(nil, name+"-0")[name+"-0"]; r.Node != c.want {
			t.Errorf("with weight %d the pod is on node %s, want %s", c.weight, r.Node, c.want)
		}
		e.must(p.Terminate(within(t)))
	}
}

// withCPU sets the CPU request of the pods of a StatefulSet.
func withCPU(cpu string) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) {
		s.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
}

// TestPreemption checks that a pod preempts another pod on its home node if that node is full, and runs with its address
// again.
func TestPreemption(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1", "node-2"}, controllerArgs: defaultPool})
	e.create(&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000})
	high := func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.PriorityClassName = "high" }
	e.create(statefulSet("web", 1, withCPU("5"), high))
	before := e.awaitRunning(nil, "web-0")
	scale := func(n string) {
		e.must(e.api.Patch(within(t), statefulSet("web", 0), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":`+n+`}}`))))
	}
	scale("0")
	e.await("wait for web-0 to be deleted", func(rows []witness.Row) bool { return len(rows) == 1 && rows[0].UID == "" })
	// The filler is a bare pod, so no controller creates it again after the preemption.
	filler := aPod("filler")
	filler.Spec = statefulSet("filler", 1, withCPU("5")).Spec.Template.Spec
	filler.Spec.NodeSelector = map[string]string{corev1.LabelHostname: before["web-0"].Node}
	e.create(filler)
	e.await("wait for filler to run", func(rows []witness.Row) bool {
		return slices.ContainsFunc(rows, func(r witness.Row) bool { return r.Pod == "filler" && r.Running })
	})
	scale("1")
	e.sameAddresses(before, e.awaitRunning(before, "web-0"))
	e.await("wait for filler to be deleted", func(rows []witness.Row) bool { return len(rows) == 1 })
}
