// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// startOn starts a cluster as start does, and then nodes with the given flags. Key of nodes: the node. Value: its flags.
func startOn(t *testing.T, o options, nodes map[string][]string) *env {
	t.Helper()
	e := start(t, o)
	for name, args := range nodes {
		e.startNode(name, args...)
	}
	for name := range nodes {
		e.must(e.WaitNodeReady(e.whileAllRun(), name))
	}
	return e
}

// startLate starts a cluster of one node whose agent sees each change of its CiliumNode 4 s late.
func startLate(t *testing.T, o options) *env {
	t.Helper()
	e := start(t, o)
	e.startLateNode("node-1", 4*time.Second)
	e.must(e.WaitNodeReady(e.whileAllRun(), "node-1"))
	return e
}

// awaitCondition waits until a condition of a FixedIP has the status, the reason and a message that contains words.
func (e *env) awaitCondition(name, kind string, status metav1.ConditionStatus, reason, words string) {
	e.t.Helper()
	e.awaitRecord(name, func(f *v1alpha1.FixedIP) bool {
		c := meta.FindStatusCondition(f.Status.Conditions, kind)
		return c != nil && c.Status == status && c.Reason == reason && strings.Contains(c.Message, words)
	})
}

// awaitEventOn waits for an event on an object, with the reason and with a note that contains words.
func (e *env) awaitEventOn(kind, name, reason, words string) {
	e.t.Helper()
	var have []string
	err := e.pollWhileAllRun(200*time.Millisecond, func(ctx context.Context) (bool, error) {
		var list eventsv1.EventList
		if err := e.api.List(ctx, &list); err != nil {
			return false, err
		}
		have = nil
		for _, ev := range list.Items {
			if ev.Regarding.Kind == kind && ev.Regarding.Name == name {
				have = append(have, ev.Reason+": "+ev.Note)
				if ev.Reason == reason && strings.Contains(ev.Note, words) {
					return true, nil
				}
			}
		}
		return false, nil
	})
	if err != nil {
		e.t.Fatalf("wait for event %s %q on %s %s: %v; its events are %q", reason, words, kind, name, err, have)
	}
}

// awaitMetric waits until accept returns true for the value of a metric that the controller serves on the port. The metric
// must have all of labels, and may have more.
func (e *env) awaitMetric(port int, name string, labels map[string]string, accept func(float64) bool) {
	e.t.Helper()
	var last string
	err := e.pollWhileAllRun(200*time.Millisecond, func(ctx context.Context) (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/metrics", port), nil)
		if err != nil {
			return false, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			last = err.Error()
			return false, nil
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return false, err
		}
		samples := testutil.NewMetrics()
		if err := testutil.ParseMetrics(string(body), &samples); err != nil {
			return false, err
		}
		for _, s := range samples[name] {
			matches := true
			for k, v := range labels {
				matches = matches && string(s.Metric[testutil.LabelName(k)]) == v
			}
			if matches {
				last = s.Value.String()
				if accept(float64(s.Value)) {
					return true, nil
				}
			}
		}
		return false, nil
	})
	if err != nil {
		e.t.Fatalf("wait for metric %s%v: %v; last value or error: %s", name, labels, err, last)
	}
}

// TestWrongFirstAddress checks a pod that gets another address than the claimed one, because the agent has not seen the
// claim. The pod is restarted and then runs with the claimed address.
func TestWrongFirstAddress(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	e := startLate(t, options{controllerArgs: append([]string{fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", port), "--mismatch-grace-period=6s"}, defaultPool...)})
	// The test causes these violations on purpose.
	e.provoked = func(violation string) bool { return strings.Contains(violation, "but its FixedIP reserves") }
	all := names("web", 3)
	e.create(statefulSet("web", 3))
	wrong := false
	e.await("wait for all pods to run with the claimed addresses", func(rows []witness.Row) bool {
		right := 0
		for _, name := range all {
			f, p := e.witness.Record(namespace, name), e.witness.Pod(namespace, name)
			if f == nil || p == nil || p.Status.PodIP == "" {
				return false
			}
			c := meta.FindStatusCondition(f.Status.Conditions, "AsReserved")
			wrong = wrong || c != nil && c.Status == metav1.ConditionFalse
			if slices.Equal(f.Spec.IPs, []string{p.Status.PodIP}) && (c == nil || c.Status == metav1.ConditionTrue) {
				right++
			}
		}
		return right == len(all)
	})
	if !wrong {
		t.Fatal("no pod got another address than the claimed one, so the restart was not tested")
	}
	e.awaitMetric(port, "fixedip_restarts_total", map[string]string{"result": "evicted"}, func(v float64) bool { return v > 0 })
	e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Other == 0 && p.Fixed == 3 }))
	before := e.awaitRunning(nil, all...)

	// An agent that sees entries in time gives the pods their addresses at once.
	e.must(e.Process("node-1").Terminate(within(t)))
	p := e.startNode("node-1-again", "--node-name=node-1")
	if !p.Running() {
		t.Fatalf("the restarted node-1 has ended: %s", p.ExitState())
	}
	e.deletePods(all...)
	e.sameAddresses(before, e.awaitRunning(before, all...))
}

// TestMismatch checks that a pod that runs with another address than the reserved one is reported and evicted. With
// --max-concurrent-restarts=1, pods are evicted one at a time. A pod is never evicted against a PodDisruptionBudget, or if
// its mismatch policy is Report. Here FixedIPs reserve the addresses before the pods exist, and the agent sees each claim too
// late.
func TestMismatch(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	e := startLate(t, options{controllerArgs: append([]string{fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", port), "--mismatch-grace-period=15s", "--max-concurrent-restarts=1"}, defaultPool...)})
	all := append(names("many", 3), "reported-0", "guarded-0")
	want := map[string]string{}
	for i, name := range all {
		want[name] = e.in("node-1", strconv.Itoa(200+i))
		workload, _, _ := strings.Cut(name, "-")
		e.create(beforehand(workload, name, want[name]))
	}
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "guard"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guarded"}}},
	}
	e.create(budget)
	e.create(statefulSet("guarded", 1), statefulSet("many", 3), statefulSet("reported", 1, func(s *appsv1.StatefulSet) {
		s.Annotations = map[string]string{"fixedip.io/mismatch-policy": "Report"}
	}))
	// before contains the first running pod of each name. On a busy machine, a pod may be evicted before the next pod of its
	// StatefulSet runs.
	before := map[string]witness.Row{}
	e.await("wait for a pod of each name to run", func(rows []witness.Row) bool {
		for _, r := range rows {
			if _, seen := before[r.Pod]; r.Running && !seen {
				before[r.Pod] = r
			}
		}
		return len(before) == len(all)
	})
	for _, name := range all {
		// The test causes these violations on purpose.
		defer e.witness.Forgive(namespace + "/" + name)
		if before[name].Address == want[name] {
			t.Fatalf("pod %s got its reserved address %s at once, so a mismatch is not tested", name, want[name])
		}
	}
	e.awaitEventOn("Pod", "many-0", "WrongAddress", fmt.Sprintf("runs with %s on node node-1, but %s is reserved for the pod", before["many-0"].Address, want["many-0"]))
	e.awaitEventOn("FixedIP", "many-0", "WrongAddress", before["many-0"].Address)
	e.awaitCondition("guarded-0", "AsReserved", metav1.ConditionFalse, "RestartBlocked", "guard")
	e.awaitEventOn("Pod", "guarded-0", "RestartBlocked", "disruption budget")
	e.awaitCondition("reported-0", "AsReserved", metav1.ConditionFalse, "WrongAddress", "its mismatch policy is Report, so the pod is not evicted")

	many := names("many", 3)
	e.await("wait for the pods of many to run with their reserved addresses", func([]witness.Row) bool {
		restarting, right := 0, 0
		for _, name := range many {
			f := e.witness.Record(namespace, name)
			if f == nil {
				return false
			}
			c := meta.FindStatusCondition(f.Status.Conditions, "AsReserved")
			if c != nil && c.Status == metav1.ConditionFalse && c.Reason == "Restarting" {
				restarting++
			}
			if p := e.witness.Pod(namespace, name); c != nil && c.Status == metav1.ConditionTrue && p != nil && p.Status.PodIP == want[name] {
				right++
			}
		}
		if restarting > 1 {
			t.Errorf("%d pods are restarting at the same time, want at most 1", restarting)
		}
		return right == len(many)
	})
	e.controllerMetrics(port, map[string]float64{
		`fixedip_mismatched_pods{reason="WrongAddress"}`: 1, `fixedip_mismatched_pods{reason="RestartBlocked"}`: 1,
		`fixedip_mismatched_pods{reason="Restarting"}`: 0, `fixedip_mismatched_pods{reason="NoPoolEntry"}`: 0,
	})
	e.awaitMetric(port, "fixedip_oldest_mismatch_seconds", nil, func(v float64) bool { return v >= 6 })
	e.awaitMetric(port, "fixedip_pod_address_duration_seconds_count", nil, func(v float64) bool { return v >= 5 })
	for name, r := range e.awaitRunning(before, many...) {
		if r.Address != want[name] {
			t.Errorf("pod %s has %s after its restart, want %s", name, r.Address, want[name])
		}
	}
	e.awaitMetric(port, "fixedip_restarts_total", map[string]string{"result": "evicted"}, func(v float64) bool { return v >= 3 })
	for _, name := range []string{"reported-0", "guarded-0"} {
		if p := e.witness.Pod(namespace, name); p == nil || string(p.UID) != before[name].UID {
			t.Errorf("pod %s was deleted, although its mismatch policy or its disruption budget forbids an eviction", name)
		}
	}

	// The budget is deleted, and the mismatch policy of StatefulSet reported is changed.
	e.delete(budget)
	e.annotate(statefulSet("reported", 1), "fixedip.io/mismatch-policy", "Restart")
	e.deletePods("many-0")
	for name, r := range e.awaitRunning(before, "reported-0", "guarded-0", "many-0") {
		if r.Address != want[name] {
			t.Errorf("pod %s has %s after its restart, want %s", name, r.Address, want[name])
		}
		e.awaitCondition(name, "AsReserved", metav1.ConditionTrue, "AsReserved", "")
	}
	e.controllerMetrics(port, map[string]float64{
		`fixedip_mismatched_pods{reason="WrongAddress"}`: 0, `fixedip_mismatched_pods{reason="RestartBlocked"}`: 0, `fixedip_oldest_mismatch_seconds`: 0,
	})
}

// TestConflicts checks that a conflict over an address is reported in events, metrics and the condition Exclusive, and that
// the condition is True again when the conflict ends.
func TestConflicts(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	e := start(t, options{nodes: []string{"node-1"}, controllerArgs: append([]string{fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", port)}, defaultPool...)})
	e.create(statefulSet("web", 1))
	address := e.awaitRunning(nil, "web-0")["web-0"].Address
	// The test causes these violations on purpose.
	e.provoked = func(violation string) bool { return strings.Contains(violation, address) }
	one := func(v float64) bool { return v == 1 }
	none := func(v float64) bool { return v == 0 }
	kind := func(k string) map[string]string { return map[string]string{"kind": k} }

	// Another FixedIP names the address.
	second := beforehand("other", "other-0", address)
	e.create(second)
	e.awaitCondition("web-0", "Exclusive", metav1.ConditionFalse, "Shared", "more than one FixedIP reserves IP "+address+": default/other-0 and default/web-0")
	e.awaitCondition("other-0", "Exclusive", metav1.ConditionFalse, "Shared", "more than one FixedIP reserves IP")
	e.awaitEventOn("FixedIP", "other-0", "AddressReservedTwice", "more than one FixedIP reserves IP")
	e.awaitMetric(port, "fixedip_conflicting_addresses", kind("fixedips"), one)
	e.delete(second)
	e.awaitCondition("web-0", "Exclusive", metav1.ConditionTrue, "Sole", "")
	e.awaitMetric(port, "fixedip_conflicting_addresses", kind("fixedips"), none)

	// The pool of another node has an entry of the address.
	node2 := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}}
	node2.Spec.IPAM.Pool = ipamtypes.AllocationMap{address: {}}
	e.create(node2)
	e.awaitCondition("web-0", "Exclusive", metav1.ConditionFalse, "Shared", "more than one pool offers IP "+address+": the pools of nodes node-1 and node-2")
	e.awaitEventOn("CiliumNode", "node-2", "AddressOfferedTwice", address)
	e.awaitMetric(port, "fixedip_conflicting_addresses", kind("pools"), one)
	e.delete(node2)
	e.awaitCondition("web-0", "Exclusive", metav1.ConditionTrue, "Sole", "")

	// Another pod runs with the address.
	twin := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "twin"}, Spec: corev1.PodSpec{
		SchedulerName: fakesScheduler, Containers: []corev1.Container{{Name: "main", Image: "none"}},
	}}
	e.create(twin)
	e.must(e.api.SubResource("binding").Create(within(t), twin, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "twin"}, Target: corev1.ObjectReference{Kind: "Node", Name: "node-3"},
	}))
	e.must(e.api.Get(within(t), client.ObjectKeyFromObject(twin), twin))
	twin.Status.Phase, twin.Status.PodIP, twin.Status.PodIPs = corev1.PodRunning, address, []corev1.PodIP{{IP: address}}
	e.must(e.api.Status().Update(within(t), twin))
	e.awaitCondition("web-0", "Exclusive", metav1.ConditionFalse, "Shared", "more than one pod runs with IP "+address+": default/twin on node node-3 and default/web-0 on node node-1")
	e.awaitEventOn("Pod", "twin", "WrongPodAddress", "which is reserved for pod default/web-0")
	e.awaitEventOn("Pod", "web-0", "AddressInUseTwice", "more than one pod runs with IP")
	e.awaitMetric(port, "fixedip_conflicting_addresses", kind("pods"), one)
	e.delete(twin, client.GracePeriodSeconds(0))
	e.awaitCondition("web-0", "Exclusive", metav1.ConditionTrue, "Sole", "")
	e.awaitMetric(port, "fixedip_conflicting_addresses", kind("pods"), none)
}
