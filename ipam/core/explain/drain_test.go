// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/explain"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/test/gen"
)

// TestDrain checks the DrainedPod of each pod with a fixed address, and that the report names the budget at which the drain
// would stop (finding R3 in docs/project/findings.md).
func TestDrain(t *testing.T) {
	const help = "set the annotation fixedip.io/failover on the workload to Reassign (another address) or, if the routing carries single addresses, to Migrate"
	pod := func(name string) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, Labels: map[string]string{"app": "mysql"}}}
	}
	record := func(pod string, failover v1alpha1.Failover, slot bool) v1alpha1.FixedIP {
		return v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: pod}, Spec: v1alpha1.FixedIPSpec{PodName: pod, IPs: []string{"10.0.0.1"}, Failover: failover, AssignedTo: map[bool]v1alpha1.Assignee{true: v1alpha1.Slot, false: v1alpha1.PodName}[slot]}}
	}
	budget := func(name, app string, allowed int32) policyv1.PodDisruptionBudget {
		b := policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name}}
		b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
		b.Status.DisruptionsAllowed = allowed
		return b
	}
	row := func(name, policy, fate string, budgets ...string) explain.DrainedPod {
		return explain.DrainedPod{Pod: "db/" + name, IPs: []string{"10.0.0.1"}, Policy: policy, Waits: strings.HasPrefix(fate, "waits"), AfterEviction: fate, Budgets: budgets}
	}
	const migrates = "runs on another node with this address, if a node can take the pod and allowAddressMigration is true"
	const waits = "waits until the node is uncordoned or, if the node is deleted, until another node can run the pod"
	two := []corev1.Pod{pod("mysql-1"), pod("mysql-0"), pod("other")}
	both := func(failover v1alpha1.Failover, slot bool) []v1alpha1.FixedIP {
		return []v1alpha1.FixedIP{record("mysql-0", failover, slot), record("mysql-1", failover, slot)}
	}
	bare := record("mysql-0", "", false)
	bare.Spec.Owner.Kind = "Pod"
	ended := pod("mysql-1")
	ended.Status.Phase = corev1.PodFailed
	optedOut := pod("mysql-1")
	optedOut.Spec.HostNetwork = true
	// Besides node-1, which is drained, node-2 is ready and in zone b, and node-3 is cordoned.
	nodes := map[string]*corev1.Node{
		"node-1": gen.Node("node-1"), "node-2": gen.Node("node-2", func(n *corev1.Node) { n.Labels = map[string]string{corev1.LabelTopologyZone: "b"} }),
		"node-3": gen.Node("node-3", func(n *corev1.Node) { n.Spec.Unschedulable = true }),
	}
	alone := map[string]*corev1.Node{"node-1": nodes["node-1"], "node-3": nodes["node-3"]}
	volume := func(zone string) map[string][]explain.Volume {
		w := fine()
		w.volumeIn(zone)
		return map[string][]explain.Volume{"db/mysql-0": w.Volumes}
	}
	pools := func(subnet string, entries map[string]pool.Entry) *ledger.Ledger {
		l := ledger.New()
		l.SetNode(gen.NodePool("node-2", subnet, entries))
		return l
	}
	full := pools("10.0.2.0/30", map[string]pool.Entry{"10.0.2.1": pool.ForOwner("router"), "10.0.2.2": pool.ForOwner("health")})
	const stays = "No failover policy makes a pod with a fixed address wait for the node"
	one := "Pods with fixed addresses that wait for the node after their eviction, if fixedip-scheduler places them: 1 of 1"
	daemon := pod("mysql-1")
	daemon.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "mysql", Controller: ptr.To(true)}}
	static := pod("mysql-1")
	static.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	none := []policyv1.PodDisruptionBudget{budget("mysql", "mysql", 0)}
	stopped := func(help string) explain.Finding {
		return wrong("The drain stops at PodDisruptionBudget db/mysql (disruptions allowed now: 0); these pods stay Pending and count as disrupted until the node is uncordoned or, if it is deleted, until another node can run them (see subnets.orphanedPolicy): db/mysql-0", help)
	}
	for name, c := range map[string]struct {
		in       explain.DrainInputs
		rows     []explain.DrainedPod
		findings []explain.Finding
	}{
		"no pod has a fixed address": {
			explain.DrainInputs{Pods: two, Records: []v1alpha1.FixedIP{record("mysql-7", "", false)}},
			nil, []explain.Finding{{Text: "No pod that a drain would evict has a FixedIP; pods in state Claimed (kubectl fixedip get -A) are not checked"}},
		},
		"one pod has opted out": {
			explain.DrainInputs{Pods: []corev1.Pod{pod("mysql-0"), optedOut}, Records: both(v1alpha1.Wait, false)},
			[]explain.DrainedPod{row("mysql-0", "Wait", waits)},
			[]explain.Finding{{Text: "Pods with fixed addresses that wait for the node after their eviction, if fixedip-scheduler places them: 1 of 1"}},
		},
		"Wait, without a budget": {
			explain.DrainInputs{Pods: two, Records: both(v1alpha1.Wait, false), Failover: v1alpha1.Migrate},
			[]explain.DrainedPod{row("mysql-0", "Wait", waits), row("mysql-1", "Wait", waits)},
			[]explain.Finding{{Text: "Pods with fixed addresses that wait for the node after their eviction, if fixedip-scheduler places them: 2 of 2"}},
		},
		"Wait by default, a budget allows one disruption": {
			explain.DrainInputs{Pods: two, Records: both("", false), Failover: v1alpha1.Wait, Budgets: []policyv1.PodDisruptionBudget{budget("mysql", "mysql", 1), budget("web", "web", 0)}},
			[]explain.DrainedPod{row("mysql-0", "Wait", waits, "db/mysql"), row("mysql-1", "Wait", waits, "db/mysql")},
			[]explain.Finding{
				{Wrong: true, Help: help, Text: "The drain stops at PodDisruptionBudget db/mysql (disruptions allowed now: 1); these pods stay Pending and count as disrupted until the node is uncordoned or, if it is deleted, until another node can run them (see subnets.orphanedPolicy): db/mysql-0, db/mysql-1"},
				{Text: "Pods with fixed addresses that wait for the node after their eviction, if fixedip-scheduler places them: 2 of 2"},
			},
		},
		"Wait, a budget allows two disruptions": {
			explain.DrainInputs{Pods: two, Records: both(v1alpha1.Wait, false), Budgets: []policyv1.PodDisruptionBudget{budget("mysql", "mysql", 2)}},
			[]explain.DrainedPod{row("mysql-0", "Wait", waits, "db/mysql"), row("mysql-1", "Wait", waits, "db/mysql")},
			[]explain.Finding{{Text: "Pods with fixed addresses that wait for the node after their eviction, if fixedip-scheduler places them: 2 of 2"}},
		},
		"Migrate, a budget allows no disruption": {
			explain.DrainInputs{Pods: two, Records: both(v1alpha1.Migrate, false), Budgets: []policyv1.PodDisruptionBudget{budget("mysql", "mysql", 0)}},
			[]explain.DrainedPod{row("mysql-0", "Migrate", migrates, "db/mysql"), row("mysql-1", "Migrate", migrates, "db/mysql")},
			[]explain.Finding{
				{Wrong: true, Help: "wait until the budget allows a disruption, or change it", Text: "The drain stops at PodDisruptionBudget db/mysql, which allows no disruption now; its pods with fixed addresses on the node: db/mysql-0, db/mysql-1"},
				{Text: "No failover policy makes a pod with a fixed address wait for the node"},
			},
		},
		"two budgets for one pod": {
			explain.DrainInputs{Pods: two[1:], Records: both(v1alpha1.Migrate, false), Budgets: []policyv1.PodDisruptionBudget{budget("mysql", "mysql", 1), budget("more", "mysql", 1)}},
			[]explain.DrainedPod{row("mysql-0", "Migrate", migrates, "db/mysql", "db/more")},
			[]explain.Finding{
				{Wrong: true, Help: "delete or change PodDisruptionBudgets until only one selects the pod", Text: "The drain stops at pod db/mysql-0: 2 PodDisruptionBudgets select the pod, and the API server evicts no pod with more than one"},
				{Text: "No failover policy makes a pod with a fixed address wait for the node"},
			},
		},
		"a bare pod and a pod that has ended": {
			explain.DrainInputs{Pods: []corev1.Pod{two[1], ended}, Records: []v1alpha1.FixedIP{bare, record("mysql-1", v1alpha1.Wait, false)}, Failover: v1alpha1.Wait},
			[]explain.DrainedPod{row("mysql-0", "", "is not created again, because it has no controller")},
			[]explain.Finding{{Text: "No failover policy makes a pod with a fixed address wait for the node"}},
		},
		"Reassign": {
			explain.DrainInputs{Pods: two[1:], Records: both(v1alpha1.Reassign, false)},
			[]explain.DrainedPod{row("mysql-0", "Reassign", "runs on another node with another address, if a node can take the pod")},
			[]explain.Finding{{Text: "No failover policy makes a pod with a fixed address wait for the node"}},
		},
		"Migrate is not allowed": {
			explain.DrainInputs{Pods: two[1:], Records: both(v1alpha1.Migrate, false), MigrationAllowed: ptr.To(false), Nodes: nodes},
			[]explain.DrainedPod{row("mysql-0", "Migrate", "waits, because allowAddressMigration is false")}, []explain.Finding{{Text: one}},
		},
		"Migrate is not allowed, and a budget allows no disruption": {
			explain.DrainInputs{Pods: two[1:], Records: both(v1alpha1.Migrate, false), MigrationAllowed: ptr.To(false), Nodes: nodes, Budgets: none},
			[]explain.DrainedPod{row("mysql-0", "Migrate", "waits, because allowAddressMigration is false", "db/mysql")},
			[]explain.Finding{stopped("set the annotation fixedip.io/failover on the workload to Reassign (another address)"), {Text: one}},
		},
		"Reassign, no other node takes pods, and a budget allows no disruption": {
			explain.DrainInputs{Pods: two[1:], Records: both(v1alpha1.Reassign, false), Nodes: alone, Budgets: none},
			[]explain.DrainedPod{row("mysql-0", "Reassign", "waits, because no other node is ready and not cordoned", "db/mysql")},
			[]explain.Finding{stopped("uncordon or add a node that can take the pods"), {Text: one}},
		},
		"Migrate is allowed, and a volume can be used on another node": {
			explain.DrainInputs{Pods: two[1:], Records: both(v1alpha1.Migrate, false), MigrationAllowed: ptr.To(true), Nodes: nodes, Volumes: volume("b")},
			[]explain.DrainedPod{row("mysql-0", "Migrate", "runs on another node with this address, if a node can take the pod")}, []explain.Finding{{Text: stays}},
		},
		"Migrate, and a volume of this node only": {
			explain.DrainInputs{Pods: two[1:], Records: both(v1alpha1.Migrate, false), Nodes: nodes, Volumes: volume("a")},
			[]explain.DrainedPod{row("mysql-0", "Migrate", "waits, because no other node that is ready and not cordoned can use volume pv-1 (claim data-mysql-0)")},
			[]explain.Finding{{Text: one}},
		},
		"Reassign, and no other node takes pods": {
			explain.DrainInputs{Pods: two[1:], Records: both(v1alpha1.Reassign, false), Nodes: alone},
			[]explain.DrainedPod{row("mysql-0", "Reassign", "waits, because no other node is ready and not cordoned")}, []explain.Finding{{Text: one}},
		},
		"Reassign, and another node has a free address": {
			explain.DrainInputs{Pods: two[1:], Records: both(v1alpha1.Reassign, false), Nodes: nodes, Pools: pools("10.0.2.0/24", nil)},
			[]explain.DrainedPod{row("mysql-0", "Reassign", "runs on another node with another address, if a node can take the pod")}, []explain.Finding{{Text: stays}},
		},
		"Reassign, and no other node has a free address": {
			explain.DrainInputs{Pods: two[1:], Records: both(v1alpha1.Reassign, false), Nodes: nodes, Pools: full},
			[]explain.DrainedPod{row("mysql-0", "Reassign", "waits, because no other node that can take the pod has a free address")}, []explain.Finding{{Text: one}},
		},
		"pods that a drain does not evict": {
			explain.DrainInputs{Pods: []corev1.Pod{daemon, static, two[1]}, Records: both(v1alpha1.Reassign, false)},
			[]explain.DrainedPod{row("mysql-0", "Reassign", "runs on another node with another address, if a node can take the pod")}, []explain.Finding{{Text: stays}},
		},
		"slots": {
			explain.DrainInputs{Pods: two[1:], Records: both("", true), Failover: v1alpha1.Wait},
			[]explain.DrainedPod{row("mysql-0", "Slot", "the next pod takes over a free slot, or waits until it can take one over")},
			[]explain.Finding{{Text: "No failover policy makes a pod with a fixed address wait for the node"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.in.Node = "node-1"
			rows, report := explain.Drain(c.in)
			waits := slices.ContainsFunc(rows, func(d explain.DrainedPod) bool { return d.Waits })
			if report.Waits != waits {
				t.Errorf("the report says that a pod waits: %v, want %v", report.Waits, waits)
			}
			if diff := cmp.Diff(c.rows, rows) + cmp.Diff(c.findings, report.Findings); diff != "" {
				t.Errorf("Drain (-want +got): %s", diff)
			}
		})
	}
}
