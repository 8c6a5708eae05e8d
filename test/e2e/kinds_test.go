// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/realcluster"
	"fixedip.io/fixedip/hack/realcluster/layout"
	"fixedip.io/fixedip/test/gen"
)

// TestKinds checks the pods of a StatefulSet for each combination of families and routing. The pods have addresses of all
// families, and answer requests of both nodes at each address. After the deletion of a pod, the next pod with its name has the
// same addresses.
func TestKinds(t *testing.T) {
	for name, change := range map[string]func(*realcluster.Options){
		"IPv4 tunnel": nil,
		"IPv6 tunnel": func(o *realcluster.Options) { o.Families = []string{layout.IPv6} },
		"both tunnel": func(o *realcluster.Options) { o.Families = []string{layout.IPv4, layout.IPv6} },
		"both native": func(o *realcluster.Options) {
			o.Families, o.Routing = []string{layout.IPv6, layout.IPv4}, layout.Native
		},
		"IPv4 native": func(o *realcluster.Options) { o.Routing = layout.Native },
		"IPv6 native": func(o *realcluster.Options) { o.Families, o.Routing = []string{layout.IPv6}, layout.Native },
	} {
		t.Run(name, func(t *testing.T) {
			options := layout.Defaults()
			c := start(t, func(o *realcluster.Options) {
				if change != nil {
					change(o)
				}
				options = o.Options
			})
			cfg, err := c.RESTConfig(cluster.Admin)
			if err != nil {
				t.Fatal(err)
			}
			s := &scene{t: t, cluster: c, api: kubernetes.NewForConfigOrDie(cfg)}
			s.createSet("web", 2)
			for i := range 2 {
				pod := s.awaitPod(fmt.Sprintf("web-%d", i), func(*corev1.Pod) bool { return true })
				if got := familiesOf(pod); got != fmt.Sprint(options.Families) {
					t.Errorf("pod %s has addresses of the families %s, want %v", pod.Name, got, options.Families)
				}
				for _, node := range options.NodeNames() {
					s.answers(c.Node(node), pod)
				}
				s.must(s.api.CoreV1().Pods("default").Delete(within(t), pod.Name, metav1.DeleteOptions{}))
				next := s.awaitPod(pod.Name, func(p *corev1.Pod) bool { return p.UID != pod.UID })
				if fmt.Sprint(next.Status.PodIPs) != fmt.Sprint(pod.Status.PodIPs) {
					t.Errorf("pod %s has %v after the restart, want %v", pod.Name, next.Status.PodIPs, pod.Status.PodIPs)
				}
				for _, node := range options.NodeNames() {
					s.answers(c.Node(node), next)
				}
			}
		})
	}
}

// familiesOf returns the families of the addresses of a pod, in order, in the format of fmt.Sprint.
func familiesOf(pod *corev1.Pod) string {
	var families []string
	for _, ip := range pod.Status.PodIPs {
		family := layout.IPv4
		if netip.MustParseAddr(ip.IP).Is6() {
			family = layout.IPv6
		}
		families = append(families, family)
	}
	return fmt.Sprint(families)
}

// createSet creates a StatefulSet of test pods with fixed addresses, no two on one node.
func (s *scene) createSet(name string, replicas int32) {
	s.t.Helper()
	apart := func(sts *appsv1.StatefulSet) {
		sts.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: sts.Spec.Selector}},
		}}
	}
	_, err := s.api.AppsV1().StatefulSets("default").Create(within(s.t), gen.StatefulSet("default", name, replicas, ofTestPods, apart), metav1.CreateOptions{})
	s.must(err)
}
