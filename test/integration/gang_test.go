// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/witness"
)

const podGroupLabel = "scheduling.x-k8s.io/pod-group"

// startGangs starts a cluster with one node and a scheduler that places gangs: in addition to FixedIP it has the plugin
// Coscheduling of scheduler-plugins. It also installs the CRD of that plugin.
func startGangs(t *testing.T) (*env, *served) {
	t.Helper()
	e := start(t, options{nodes: []string{"node-1"}, controllerArgs: defaultPool, noScheduler: true})
	module, err := exec.CommandContext(within(t), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/scheduler-plugins").Output()
	e.must(err)
	e.must(e.Apply(within(t),
		filepath.Join(strings.TrimSpace(string(module)), "manifests", "coscheduling", "crd.yaml"),
		filepath.Join("..", "..", "manifests", "scheduler-plugins-rbac.yaml")))
	// Coscheduling reads PodGroups from its own cache, which may lag behind the event that requeues a pod. These PodGroups
	// are in the cache from the start.
	e.create(podGroup("trio", 3), podGroup("quartet", 4), podGroup("late", 4), podGroup("never", 4))
	return e, e.startServing(product.SchedulerOptions{
		Plugins: []string{"Coscheduling"},
		// Coscheduling is a QueueSort plugin, and only one QueueSort plugin can be enabled.
		Disabled: []string{"PrioritySort"},
		// Pods wait for longer than the test lasts, however many members are missing.
		PluginArgs: map[string]string{"Coscheduling": "{permitWaitingTimeSeconds: 600, podGroupRejectPercentage: 100}"},
	})
}

func podGroup(name string, minMember int64) client.Object {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup",
		"metadata": map[string]any{"namespace": namespace, "name": name},
		"spec":     map[string]any{"minMember": minMember},
	}}
}

func inGroup(group string) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) {
		s.Spec.Template.Labels = maps.Clone(s.Spec.Template.Labels)
		s.Spec.Template.Labels[podGroupLabel] = group
	}
}

// unplaced checks in the API server that the pods exist, and that none of them is bound or has an entry.
func (e *env) unplaced(pods ...string) {
	e.t.Helper()
	for _, name := range pods {
		var pod corev1.Pod
		e.must(e.api.Get(within(e.t), client.ObjectKey{Namespace: namespace, Name: name}, &pod))
		if pod.Spec.NodeName != "" {
			e.t.Errorf("pod %s is bound to node %s, although its gang is not complete", name, pod.Spec.NodeName)
		}
	}
	e.unclaimed(pods...)
}

// unclaimed checks that no pool has an entry of the pods.
func (e *env) unclaimed(pods ...string) {
	e.t.Helper()
	var nodes ciliumv2.CiliumNodeList
	e.must(e.api.List(within(e.t), &nodes))
	for _, cn := range nodes.Items {
		for address, entry := range cn.Spec.IPAM.Pool {
			if name, ok := strings.CutPrefix(entry.Owner, namespace+"/"); ok && slices.Contains(pods, name) {
				e.t.Errorf("the pool of node %s has an entry that gives %s to pod %s, want none: its gang is not complete or was deleted", cn.Name, address, name)
			}
		}
	}
}

// incomplete creates the members of a gang of four, one of which cannot be placed. The pod name-last-0 is created first, and
// fits only on nodes whose label "stage" has the value stage. The other pods are name-0 to name-2.
func (e *env) incomplete(name, stage string) {
	e.t.Helper()
	e.create(statefulSet(name+"-last", 1, inGroup(name), func(s *appsv1.StatefulSet) {
		s.Spec.Template.Spec.NodeSelector = map[string]string{"stage": stage}
	}))
	e.podMessage(name+"-last-0", "cannot find enough sibling pods")
	e.create(statefulSet(name, 3, inGroup(name)))
}

func (e *env) label(node, key, value string) {
	e.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	e.must(e.api.Patch(within(e.t), n, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, key, value))))
}

func (e *env) addr(text string) netip.Addr {
	e.t.Helper()
	a, err := netip.ParseAddr(text)
	e.must(err)
	return a
}

// TestGang checks that a gang is placed completely or not at all, and that its members have fixed addresses. Members wait at
// Permit, between Reserve and PreBind. Their claims are assumed then, and no claim is written before the gang is complete.
func TestGang(t *testing.T) {
	t.Parallel()
	e, s := startGangs(t)

	t.Log("a complete gang of three")
	e.create(statefulSet("trio", 3, inGroup("trio")))
	trio := e.awaitRunning(nil, names("trio", 3)...)
	e.deletePods("trio-1")
	e.sameAddresses(map[string]witness.Row{"trio-1": trio["trio-1"]}, e.awaitRunning(trio, "trio-1"))

	t.Log("a gang of four, one pod of which does not exist yet")
	e.create(statefulSet("quartet", 3, inGroup("quartet")))
	for _, name := range names("quartet", 3) {
		e.podMessage(name, "cannot find enough sibling pods")
	}
	e.unplaced(names("quartet", 3)...)
	e.must(e.api.Patch(within(t), statefulSet("quartet", 3), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":4}}`))))
	quartet := e.awaitRunning(nil, names("quartet", 4)...)
	s.awaitMetrics(metrics{"fixedip_claims_in_flight": 0, `fixedip_claims_total{result="written"}`: 7})

	t.Log("a gang of four, one pod of which fits on no node: three wait at Permit")
	e.incomplete("late", "open")
	s.awaitMetrics(metrics{"fixedip_claims_in_flight": 3, `fixedip_claims_total{result="written"}`: 7})
	e.unplaced(append(names("late", 3), "late-last-0")...)
	// Another pod that is placed on the same node while the gang waits gets none of the three addresses.
	e.create(statefulSet("single", 1))
	single := e.awaitRunning(nil, "single-0")["single-0"]
	e.unplaced(names("late", 3)...)

	e.label("node-1", "stage", "open")
	late := e.awaitRunning(nil, append(names("late", 3), "late-last-0")...)
	for _, name := range names("late", 3) {
		if a, b := e.addr(late[name].Address), e.addr(single.Address); !b.Less(a) {
			t.Errorf("pod %s has IP %s, want an IP higher than %s of pod single-0: fixed IPs are taken from the top, and single-0 got its IP later", name, a, b)
		}
	}
	// Seven claims were written before. The single pod and these four add five, without a conflict.
	s.awaitMetrics(metrics{"fixedip_claims_in_flight": 0, `fixedip_claims_total{result="written"}`: 12, `fixedip_claims_total{result="conflict"}`: 0})

	t.Log("a gang that is deleted while it waits")
	e.incomplete("never", "closed")
	s.awaitMetrics(metrics{"fixedip_claims_in_flight": 3})
	e.unplaced(append(names("never", 3), "never-last-0")...)
	e.delete(statefulSet("never", 3))
	e.delete(statefulSet("never-last", 1))
	gone := append(names("never", 3), "never-last-0")
	e.await("wait for all pods, FixedIPs and entries of the gang to be deleted", func(rows []witness.Row) bool {
		return !slices.ContainsFunc(rows, func(r witness.Row) bool { return slices.Contains(gone, r.Pod) })
	})
	s.awaitMetrics(metrics{"fixedip_claims_in_flight": 0, `fixedip_claims_total{result="written"}`: 12})
	e.unclaimed(gone...)
	// The three addresses are free again: the next pod gets the highest of them.
	e.create(statefulSet("next", 1))
	taken := []netip.Addr{e.addr(single.Address)}
	for _, r := range slices.Concat(slices.Collect(maps.Values(trio)), slices.Collect(maps.Values(quartet)), slices.Collect(maps.Values(late))) {
		taken = append(taken, e.addr(r.Address))
	}
	lowest := slices.MinFunc(taken, netip.Addr.Compare)
	if next := e.addr(e.awaitRunning(nil, "next-0")["next-0"].Address); next != lowest.Prev() {
		t.Errorf("next-0 has %s, want %s, the highest free address", next, lowest.Prev())
	}
}
