// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/scheme"
)

// TestFeasibleNodes checks that feasibleNodes returns a node only if the node can run the pod.
func TestFeasibleNodes(t *testing.T) {
	node := func(name string, is ...func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": "a"}},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		}
		for _, f := range is {
			f(n)
		}
		return n
	}
	tainted := func(effect corev1.TaintEffect) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "disk", Value: "slow", Effect: effect}} }
	}
	pod := func(is ...func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0", OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql", Controller: ptr.To(true)}}},
			Spec:       corev1.PodSpec{NodeName: "its-own"},
		}
		for _, f := range is {
			f(p)
		}
		return p
	}
	in := func(zone string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": zone} }
	}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		node *corev1.Node
		want []string
		// cached is true if the pod was read from the caches, which have no tolerations of bound pods.
		cached bool
	}{
		"a ready node":               {pod: pod(), node: node("other"), want: []string{"other"}},
		"the node of the pod":        {pod: pod(), node: node("its-own")},
		"a node that does not exist": {pod: pod(), node: node("third")},
		"a cordoned node":            {pod: pod(), node: node("other", func(n *corev1.Node) { n.Spec.Unschedulable = true })},
		"a node that is not ready":   {pod: pod(), node: node("other", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown })},
		"a taint NoSchedule":         {pod: pod(), node: node("other", tainted(corev1.TaintEffectNoSchedule))},
		"a taint NoExecute":          {pod: pod(), node: node("other", tainted(corev1.TaintEffectNoExecute))},
		"a taint PreferNoSchedule":   {pod: pod(), node: node("other", tainted(corev1.TaintEffectPreferNoSchedule)), want: []string{"other"}},
		"a taint NoSchedule that the pod tolerates": {
			pod: pod(func(p *corev1.Pod) {
				p.Spec.Tolerations = []corev1.Toleration{{Key: "disk", Operator: corev1.TolerationOpExists}}
			}),
			node: node("other", tainted(corev1.TaintEffectNoSchedule)), want: []string{"other"}},
		"a taint NoSchedule, the pod is from the caches": {pod: pod(), cached: true, node: node("other", tainted(corev1.TaintEffectNoSchedule)), want: []string{"other"}},
		"a node that the node selector matches":          {pod: pod(in("a")), node: node("other"), want: []string{"other"}},
		"a node that the node selector does not match":   {pod: pod(in("b")), node: node("other")},
	} {
		t.Run(name, func(t *testing.T) {
			registered, err := scheme.New()
			if err != nil {
				t.Fatal(err)
			}
			var api client.Reader = fake.NewClientBuilder().WithScheme(registered).WithObjects(c.node).Build()
			var held []ledger.NodeAddresses
			for _, n := range []string{"its-own", "other"} {
				held = append(held, ledger.NodeAddresses{Node: n, Addrs: []netip.Addr{netip.MustParseAddr("10.0.1.200")}})
			}
			got, err := feasibleNodes(t.Context(), api, c.pod, held, !c.cached)
			if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
				t.Errorf("got error %v, want none; nodes (-want +got): %s", err, diff)
			}
		})
	}
}
