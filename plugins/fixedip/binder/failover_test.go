// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/test/gen"
)

// TestHindrance checks the reason and the remedy for a node that cannot take a pod. The reasons of the filters are those of
// Kubernetes.
func TestHindrance(t *testing.T) {
	const releases = "; delete the FixedIP to release the address, or provide the volume on that node"
	for name, c := range map[string]struct {
		node           *corev1.Node
		refused        []string
		reason, remedy string
	}{
		"no volume that can be bound": {
			refused: []string{"node(s) didn't find available persistent volumes to bind"},
			reason:  "can't take the pod: node(s) didn't find available persistent volumes to bind", remedy: releases,
		},
		"a volume of another node": {
			refused: []string{"node(s) didn't match PersistentVolume's node affinity"},
			reason:  "can't take the pod: node(s) didn't match PersistentVolume's node affinity", remedy: releases,
		},
		"a volume of another zone": {
			refused: []string{"node(s) had no available volume zone"},
			reason:  "can't take the pod: node(s) had no available volume zone", remedy: releases,
		},
		"another pod uses the ReadWriteOncePod claim": {
			refused: []string{"node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"},
			reason:  "can't take the pod: node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod",
		},
		"too many volumes": {
			refused: []string{"node(s) exceed max volume count"},
			reason:  "can't take the pod: node(s) exceed max volume count",
		},
		"a full node": {
			refused: []string{"Insufficient cpu", "Insufficient memory"},
			reason:  "can't take the pod: Insufficient cpu, Insufficient memory",
		},
		"cordoned": {
			node:   gen.Node("node-1", func(n *corev1.Node) { n.Spec.Unschedulable = true }),
			reason: "is cordoned", remedy: "; uncordon that node",
		},
		"no reason": {reason: "can't take the pod now"},
	} {
		t.Run(name, func(t *testing.T) {
			node := c.node
			if node == nil {
				node = gen.Node("node-1")
			}
			if reason, remedy := hindrance(gen.Pod("web-0"), node, c.refused); reason != c.reason || remedy != c.remedy {
				t.Errorf("got reason %q and remedy %q, want %q and %q", reason, remedy, c.reason, c.remedy)
			}
		})
	}
}
