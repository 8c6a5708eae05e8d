// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/component-base/metrics/testutil"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// on restricts the pods of a StatefulSet to nodes with this value of the label group, and lets the pods tolerate all taints.
// Nodes that join later may have the label, too.
func on(value string) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) {
		s.Spec.Template.Spec.NodeSelector = map[string]string{"group": value}
		s.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
}

// ofGroup returns the argument that gives a simulated node the label of on, and more labels.
func ofGroup(value string, labels ...string) string {
	return "--labels=" + strings.Join(append(labels, "group="+value), ",")
}

// loseNode removes a node for good: its process, Node, CiliumNode and pods. It deletes the pods itself, because the pod garbage
// collector would do so only after about a minute.
func (e *env) loseNode(name string) {
	e.t.Helper()
	e.must(e.Process(name).Kill())
	e.delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	e.must(client.IgnoreNotFound(e.api.Delete(within(e.t), &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}})))
	var pods corev1.PodList
	e.must(e.api.List(within(e.t), &pods, client.InNamespace(namespace)))
	for i := range pods.Items {
		if pods.Items[i].Spec.NodeName == name {
			e.must(client.IgnoreNotFound(e.api.Delete(within(e.t), &pods.Items[i], client.GracePeriodSeconds(0))))
		}
	}
}

// awaitSubnetCondition waits until the condition SubnetAvailable of a FixedIP has the status and reason.
func (e *env) awaitSubnetCondition(name string, status metav1.ConditionStatus, reason string) {
	e.t.Helper()
	e.awaitRecord(name, func(f *v1alpha1.FixedIP) bool {
		c := meta.FindStatusCondition(f.Status.Conditions, v1alpha1.ConditionSubnetAvailable)
		return c != nil && c.Status == status && c.Reason == reason
	})
}

// subnetsOf waits until a node has this many subnets, and returns them.
func (e *env) subnetsOf(node string, n int) []string {
	e.t.Helper()
	var cn ciliumv2.CiliumNode
	err := wait.PollUntilContextCancel(within(e.t), 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		err := e.api.Get(ctx, client.ObjectKey{Name: node}, &cn)
		return err == nil && len(cn.Spec.IPAM.PodCIDRs) == n, client.IgnoreNotFound(err)
	})
	if err != nil {
		e.t.Fatalf("wait for node %s to have %d subnets: %v; it has %v", node, n, err, cn.Spec.IPAM.PodCIDRs)
	}
	return cn.Spec.IPAM.PodCIDRs
}

// event waits for an event on an object with the reason and a note that contains the given text.
func (e *env) event(object, reason, contains string) {
	e.t.Helper()
	var events eventsv1.EventList
	err := wait.PollUntilContextCancel(within(e.t), 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if err := e.api.List(ctx, &events); err != nil {
			return false, err
		}
		return slices.ContainsFunc(events.Items, func(ev eventsv1.Event) bool {
			return ev.Regarding.Name == object && ev.Reason == reason && strings.Contains(ev.Note, contains)
		}), nil
	})
	if err != nil {
		e.t.Errorf("no event %s on %s contains %q: %v", reason, object, contains, err)
		for _, ev := range events.Items {
			e.t.Logf("%s %s %s: %s", ev.Regarding.Kind, ev.Regarding.Name, ev.Reason, ev.Note)
		}
	}
}

// untouched checks that the pods were not restarted and have the same addresses.
func (e *env) untouched(before map[string]witness.Row) {
	e.t.Helper()
	now := map[string]witness.Row{}
	for _, r := range e.witness.State(namespace) {
		now[r.Pod] = r
	}
	for name, b := range before {
		if now[name].UID != b.UID || now[name].Address != b.Address || !now[name].Running {
			e.t.Errorf("pod %s is %+v, want the UID and the address of %+v and a running pod", name, now[name], b)
		}
	}
}

// checkFollowed checks that the pods have the same addresses on the given node, and waits until their FixedIPs name that
// node.
func (e *env) checkFollowed(node string, before, after map[string]witness.Row) {
	e.t.Helper()
	for name, b := range before {
		if a := after[name]; a.Address != b.Address || a.Node != node || !slices.Equal(a.Entries, []string{node + "/" + b.Address}) {
			e.t.Errorf("pod %s has %s on node %s and the entries %v, want %s on node %s and its entry", name, a.Address, a.Node, a.Entries, b.Address, node)
		}
		e.awaitRecord(name, func(f *v1alpha1.FixedIP) bool { return f.Spec.NodeName == node })
	}
}

// TestNodeReplaced replaces a node with one that has another name. It checks that the pods with fixed addresses keep
// their addresses on the new node, and that pods on other nodes are not affected.
func TestNodeReplaced(t *testing.T) {
	t.Parallel()
	e := start(t, options{controllerArgs: append(slices.Clone(defaultPool), "--orphaned-subnet-grace-period=0s")})
	e.startNode("node-1", ofGroup("a"))
	e.startNode("node-2", ofGroup("b"))
	e.create(statefulSet("web", 3, on("a")), statefulSet("stays", 2, on("b")))
	before, stays := e.awaitRunning(nil, names("web", 3)...), e.awaitRunning(nil, names("stays", 2)...)
	had := e.subnetsOf("node-1", 1)

	e.loseNode("node-1")
	e.awaitSubnetCondition("web-0", metav1.ConditionFalse, v1alpha1.ReasonInheritancePending)
	e.event("web-0", v1alpha1.ReasonInheritancePending, "Node node-1, whose subnet contains IP "+before["web-0"].Address+", is gone; after 0s another node that can run the waiting pods inherits the subnet")
	e.startNode("node-9", ofGroup("a"))
	after := e.awaitRunning(before, names("web", 3)...)
	e.checkFollowed("node-9", before, after)
	e.awaitSubnetCondition("web-0", metav1.ConditionTrue, v1alpha1.ReasonSubnetAssigned)
	if now := e.subnetsOf("node-9", 1); now[0] != had[0] {
		t.Errorf("node-9 has the subnets %v, want %v", now, had)
	}
	e.event("node-9", "SubnetInherited", "node node-1")
	e.untouched(stays)

	// The new node is replaced in turn.
	e.loseNode("node-9")
	e.awaitSubnetCondition("web-0", metav1.ConditionFalse, v1alpha1.ReasonInheritancePending)
	e.startNode("node-1", ofGroup("a"))
	e.checkFollowed("node-1", before, e.awaitRunning(after, names("web", 3)...))
	e.untouched(stays)
}

// TestHeldSubnet checks which node gets an orphaned subnet within the grace period: only the former node, the successor
// or, if an address may migrate, an existing node.
func TestHeldSubnet(t *testing.T) {
	t.Parallel()
	e := start(t, options{controllerArgs: append(slices.Clone(defaultPool), "--orphaned-subnet-grace-period=1h")})
	e.startNode("node-1", ofGroup("a"))
	e.startNode("node-2", ofGroup("b"))
	e.create(statefulSet("web", 2, on("a")), statefulSet("stays", 1, on("b")))
	before, stays := e.awaitRunning(nil, names("web", 2)...), e.awaitRunning(nil, "stays-0")
	had := e.subnetsOf("node-1", 1)

	e.loseNode("node-1")
	e.awaitSubnetCondition("web-0", metav1.ConditionFalse, v1alpha1.ReasonInheritancePending)
	e.startNode("node-3", ofGroup("b"))
	if got := e.subnetsOf("node-3", 1); got[0] == had[0] {
		t.Errorf("node-3 has the subnets %v within the grace period, want another subnet than that of node-1", got)
	}
	e.startNode("node-1", ofGroup("a"))
	second := e.awaitRunning(before, names("web", 2)...)
	e.checkFollowed("node-1", before, second)

	e.loseNode("node-1")
	e.startNode("node-4", ofGroup("a", "fixedip.io/replaces-node=node-1"))
	third := e.awaitRunning(second, names("web", 2)...)
	e.checkFollowed("node-4", before, third)
	if got := e.subnetsOf("node-4", 1); got[0] != had[0] {
		t.Errorf("the successor node-4 has the subnets %v, want %v", got, had)
	}

	// node-2 and node-3 are left. Because an address may migrate, one of them inherits the subnet in addition to its own. The
	// controller chooses node-2, the first by name, because no other criterion distinguishes them.
	e.must(e.api.Patch(within(t), statefulSet("web", 2), client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"fixedip.io/failover":"Migrate"}}}`))))
	for _, name := range names("web", 2) {
		e.must(e.api.Patch(within(t), e.witness.Record(namespace, name).DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"failover":"Migrate"}}`))))
	}
	e.awaitRecord("web-1", func(f *v1alpha1.FixedIP) bool { return f.Spec.Failover == v1alpha1.Migrate })
	e.loseNode("node-4")
	now := e.subnetsOf("node-2", 2)
	if now[1] != had[0] {
		t.Errorf("node-2 has the subnets %v, want %v in addition to its own", now, had)
	}
	e.awaitSubnetCondition("web-0", metav1.ConditionTrue, v1alpha1.ReasonSubnetAssigned)
	for _, name := range names("web", 2) {
		if entries := e.witness.Entries(namespace, name); !slices.Equal(entries, []string{"node-2/" + before[name].Address}) {
			t.Errorf("the pools have %v for pod %s, want %s on node-2", entries, name, before[name].Address)
		}
		e.awaitRecord(name, func(f *v1alpha1.FixedIP) bool { return f.Spec.NodeName == "node-2" })
	}
	// The pods run there once the node satisfies their node selector.
	e.must(e.api.Patch(within(t), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}}, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"group":"a"}}}`))))
	e.checkFollowed("node-2", before, e.awaitRunning(third, names("web", 2)...))
	e.untouched(stays)
}

// TestHoldAndFree checks two policies for orphaned subnets. With Hold no node inherits the subnet. With Free the
// FixedIPs are deleted, and the pods get other addresses.
func TestHoldAndFree(t *testing.T) {
	t.Parallel()
	e := start(t, options{controllerArgs: append(slices.Clone(defaultPool), "--orphaned-subnet-policy=Hold", "--orphaned-subnet-grace-period=0s")})
	e.startNode("node-1", ofGroup("a"))
	e.startNode("node-2", ofGroup("b"))
	e.create(statefulSet("web", 2, on("a")), statefulSet("stays", 1, on("b")))
	before, stays := e.awaitRunning(nil, names("web", 2)...), e.awaitRunning(nil, "stays-0")
	had := e.subnetsOf("node-1", 1)
	e.loseNode("node-1")
	e.awaitSubnetCondition("web-1", metav1.ConditionFalse, v1alpha1.ReasonNodeGone)
	e.startNode("node-3", ofGroup("a"))
	if got := e.subnetsOf("node-3", 1); got[0] == had[0] {
		t.Errorf("node-3 has the subnets %v, want another subnet than that of node-1", got)
	}
	e.podMessage("web-0", before["web-0"].Address)
	if r := e.witness.Record(namespace, "web-0"); r == nil || r.Spec.IPs[0] != before["web-0"].Address {
		t.Errorf("FixedIP web-0 is %+v, want the IP %s", r, before["web-0"].Address)
	}

	e.must(e.controller.Kill())
	e.startController("free", append(slices.Clone(defaultPool), "--orphaned-subnet-policy=Free", "--orphaned-subnet-grace-period=1s")...)
	for name, r := range e.awaitRunning(before, names("web", 2)...) {
		if r.Node != "node-3" || r.Address == before[name].Address {
			t.Errorf("pod %s has %s on node %s, want an address other than %s on node-3", name, r.Address, r.Node, before[name].Address)
		}
		e.event(name, "ReservationExpired", "node node-1 has been gone for")
	}
	e.untouched(stays)
}

// agentless creates a Node and a CiliumNode without a kubelet and an agent. podCIDRs become spec.podCIDRs of the Node.
func (e *env) agentless(name string, podCIDRs ...string) {
	e.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if len(podCIDRs) > 0 {
		node.Spec.PodCIDR, node.Spec.PodCIDRs = podCIDRs[0], podCIDRs
	}
	e.create(node, &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

// controllerMetrics waits until metrics that the controller serves on a port have the given values. Key of want: the
// metric with its labels, such as `name{a="b", c="d"}`.
func (e *env) controllerMetrics(port int, want map[string]float64) {
	e.t.Helper()
	got := map[string]float64{}
	err := e.pollWhileAllRun(100*time.Millisecond, func(ctx context.Context) (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/metrics", port), nil)
		if err != nil {
			return false, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return false, nil
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return false, nil
		}
		samples := testutil.NewMetrics()
		if err := testutil.ParseMetrics(string(body), &samples); err != nil {
			return false, err
		}
		clear(got)
		for _, list := range samples {
			for _, sample := range list {
				got[sample.Metric.String()] = float64(sample.Value)
			}
		}
		for name, value := range want {
			if v, ok := got[name]; !ok || v != value {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		for name := range want {
			e.t.Logf("%s is %v", name, got[name])
		}
		e.t.Fatalf("wait for the metrics %v: %v", want, err)
	}
}
