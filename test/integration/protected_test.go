// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/controller/scaledown"
	"fixedip.io/fixedip/ipam/core/identity"
)

// TestNodesAreProtected checks that a Node has the annotations of autoscalers exactly while an address is reserved in
// its subnets (finding R1 in docs/project/findings.md). It also checks that the rights in the manifest are sufficient.
func TestNodesAreProtected(t *testing.T) {
	t.Parallel()
	e := start(t, options{
		nodes: []string{"node-1", "node-2"}, controllerArgs: append([]string{"--protect-nodes-from=cluster-autoscaler,karpenter"}, defaultPool...),
		manifests: []string{"controller-scale-down-rbac.yaml"},
	})
	const disabled, disrupt = "cluster-autoscaler.kubernetes.io/scale-down-disabled", "karpenter.sh/do-not-disrupt"
	protection := func(name string) map[string]string {
		var node corev1.Node
		e.must(e.api.Get(within(t), client.ObjectKey{Name: name}, &node))
		found := map[string]string{}
		for _, a := range []string{disabled, disrupt, scaledown.ListOfOurs} {
			if v, ok := node.Annotations[a]; ok {
				found[a] = v
			}
		}
		return found
	}
	awaitProtection := func(node string, want map[string]string) {
		t.Helper()
		e.eventually("node "+node+" to have the expected annotations", func() bool { return maps.Equal(protection(node), want) })
	}

	all := map[string]string{disabled: "true", disrupt: "true", scaledown.ListOfOurs: disabled + "," + disrupt}
	e.cordon("node-2", true)
	web := statefulSet("web", 1, annotatedWith(identity.AnnotationWhenScaled, "Delete"))
	e.create(web)
	e.awaitRunning(nil, "web-0")
	awaitProtection("node-1", all)
	awaitProtection("node-2", nil)

	// An annotation that a user changed stays when the address is released.
	var node corev1.Node
	e.must(e.api.Get(within(t), client.ObjectKey{Name: "node-1"}, &node))
	e.annotate(&node, disrupt, "false")
	e.scale("web", 0)
	awaitProtection("node-1", map[string]string{disrupt: "false"})
}
