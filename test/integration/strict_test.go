// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/witness"
)

// strictLabel makes a node strict with the default configuration.
const strictLabel = "fixedip.io/strict=true"

// checkStrict checks that the pool of a strict node has no dynamic entry, and that every pod there has the address of its
// entry.
func (e *env) checkStrict(node string) {
	e.t.Helper()
	cn := e.awaitNode(node, "the pool", func(*ciliumv2.CiliumNode) bool { return true })
	if n := dynamic(cn); n > 0 {
		e.t.Errorf("the pool of the strict node %s has %d dynamic entries, want 0", node, n)
	}
	for _, r := range e.witness.State(namespace) {
		if r.Node != node || r.Address == "" {
			continue
		}
		for _, ip := range strings.Split(r.Address, ",") {
			if owner := cn.Spec.IPAM.Pool[ip].Owner; owner != namespace+"/"+r.Pod {
				e.t.Errorf("pod %s on the strict node %s runs with %s, whose entry has the owner %q, want the pod", r.Pod, node, ip, owner)
			}
		}
	}
}

// bind binds a pod to a node, as another scheduler would.
func (e *env) bind(pod, node string) {
	e.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod}}
	e.must(e.api.SubResource("binding").Create(within(e.t), p, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node}}))
}

// tooEarly counts the pods whose sandbox could not be created at first, because the agent had not seen their entries.
func (e *env) tooEarly(pods map[string]witness.Row) int {
	e.t.Helper()
	var events corev1.EventList
	e.must(e.api.List(within(e.t), &events, client.InNamespace(namespace)))
	early := map[string]bool{}
	for _, ev := range events.Items {
		if p, ok := pods[ev.InvolvedObject.Name]; ok && ev.Reason == "FailedCreatePodSandBox" && string(ev.InvolvedObject.UID) == p.UID {
			early[p.Pod] = true
		}
	}
	return len(early)
}

// neverWrong checks that the pools of the nodes, which must have been strict from the start, have never had a dynamic entry.
// It also checks that no pod of the cluster has ever had an address whose entry did not name the pod.
func (e *env) neverWrong(nodes ...string) {
	e.t.Helper()
	for _, node := range nodes {
		var cn ciliumv2.CiliumNode
		e.must(e.api.Get(within(e.t), client.ObjectKey{Name: node}, &cn))
		// Each change of the pool increments the generation.
		e.await("wait for the witness to see the current generation of CiliumNode "+node, func([]witness.Row) bool { return e.witness.Generations()[node] >= cn.Generation })
		if offered := e.witness.Offered(node); len(offered) > 0 {
			e.t.Errorf("the pool of the strict node %s has had dynamic entries for %v, want none", node, offered)
		}
	}
	for _, s := range e.witness.WrongUses() {
		e.t.Error(s)
	}
}

// TestStrictNode checks that on strict nodes no pod ever gets the address of another pod, even if agents see entries late.
// It runs 100 pods of our scheduler, with and without fixed addresses, and 100 pods of the default scheduler.
func TestStrictNode(t *testing.T) {
	t.Parallel()
	for name, delay := range map[string]time.Duration{"watches in time": 0, "watches that are 3 s late": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			e := startCluster(t)
			nodes := []string{"node-1", "node-2"}
			e.startLateNodes(nodes, delay, defaultPool, "--labels="+strictLabel, "--sandbox-retry=1s")

			fixed, ours := names("fixed", 50), names("ours", 50)
			e.create(statefulSet("fixed", 50))
			for _, pod := range ours {
				e.create(unreservedPod(pod, "fixedip-scheduler", ""))
			}
			others := e.stockPods("theirs", 100)
			before := e.awaitPods(slices.Concat(fixed, ours, others)...)
			e.awaitRunning(nil, fixed...)
			e.neverWrong(nodes...)
			early, theirs := e.tooEarly(only(before, slices.Concat(fixed, ours)...)), e.tooEarly(only(before, others...))
			t.Logf("%s: the agents had not seen the entry at the first CNI ADD of %d of 100 pods of our scheduler and %d of 100 pods of the default scheduler", name, early, theirs)
			// On a busy machine the time from the claim to the bind by our scheduler may be longer than the delay, so that no
			// agent is late for the pods of our scheduler. Pods of the default scheduler are tested too, because the controller
			// claims their addresses after their binds.
			if delay > 0 && early+theirs == 0 {
				t.Error("no agent was late for any pod, so late agents were not tested")
			}

			// Pods with fixed addresses get them again from agents that have seen the entries. The entries of the other pods are
			// removed.
			e.deletePods(slices.Concat(fixed, ours, others)...)
			was := only(before, fixed...)
			again := e.awaitRunning(was, fixed...)
			e.sameAddresses(was, again)
			if early := e.tooEarly(again); early > 0 {
				t.Errorf("the first CNI ADD of %d recreated pods failed, want 0", early)
			}
			e.await("wait for the entries of unreserved pods to be removed", func(rows []witness.Row) bool {
				return !slices.ContainsFunc(rows, func(r witness.Row) bool { return !strings.HasPrefix(r.Pod, "fixed-") })
			})
			e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Other == len(nodeOwners) }))
			e.neverWrong(nodes...)
		})
	}
}

// nodeOwners are the owners of node-owned entries, which the witness counts as Other.
var nodeOwners = []string{"router", "health", "ingress"}

// TestStrictNodeDaemonSet checks that the pool has an entry for a pod of a DaemonSet before the pod is bound, because the
// node affinity of the pod names the node.
func TestStrictNodeDaemonSet(t *testing.T) {
	t.Parallel()
	e := startCluster(t)
	e.startNode("node-1", "--labels="+strictLabel)
	e.startController("controller", defaultPool...)
	e.scheduler = e.startScheduler("scheduler", product.SchedulerOptions{})
	e.must(e.WaitNodeReady(e.whileAllRun(), "node-1"))
	labels := map[string]string{"app": "each"}
	e.create(&appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "each"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: unreservedPod("", "another-scheduler", "").Spec},
		},
	})
	var pod string
	e.await("wait for an entry for the pod before its bind", func(rows []witness.Row) bool {
		for _, r := range rows {
			if strings.HasPrefix(r.Pod, "each-") && r.Node == "" && len(r.Entries) == 1 {
				pod = r.Pod
			}
		}
		return pod != ""
	})
	e.bind(pod, "node-1")
	e.awaitPods(pod)
	e.checkStrict("node-1")
}

// TestNodeTurnsStrict checks that the pods of a node keep running when the node becomes strict. The dynamic entries of
// their addresses become owned entries, and unused entries are withdrawn. When the node is no longer strict, its pool gets
// dynamic entries again.
func TestNodeTurnsStrict(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1"}, controllerArgs: defaultPool})
	e.create(statefulSet("fixed", 2))
	var unreserved []string
	for i := range 5 {
		unreserved = append(unreserved, fmt.Sprintf("before-%d", i))
		e.create(unreservedPod(unreserved[i], "another-scheduler", "node-1"))
	}
	before := e.awaitPods(append(names("fixed", 2), unreserved...)...)
	label := func(value string) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
		e.must(e.api.Patch(within(t), node, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"fixedip.io/strict":`+value+`}}}`))))
	}
	label(`"true"`)
	e.awaitNode("node-1", "no dynamic entry", func(cn *ciliumv2.CiliumNode) bool {
		return dynamic(cn) == 0 && withdrawn(cn) == 0
	})
	e.checkStrict("node-1")
	e.create(unreservedPod("after-0", "another-scheduler", "node-1"), unreservedPod("after-1", "fixedip-scheduler", ""))
	after := e.awaitPods(append(names("fixed", 2), append(unreserved, "after-0", "after-1")...)...)
	e.sameAddresses(before, after)
	for name, r := range before {
		if after[name].UID != r.UID {
			t.Errorf("pod %s was replaced, want the same UID", name)
		}
	}
	e.checkStrict("node-1")

	label("null")
	e.awaitNode("node-1", "eight dynamic entries", func(cn *ciliumv2.CiliumNode) bool { return dynamic(cn) == 8 })
	e.deletePods(append(unreserved, "after-0", "after-1")...)
	e.await("wait for the entries of the deleted pods to be removed", func(rows []witness.Row) bool { return len(rows) == 2 })
	e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Other == len(nodeOwners) }))
}
