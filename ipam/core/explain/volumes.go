// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/volume"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/nodeutil"
)

// Volume is a persistent volume of the pod.
type Volume struct {
	// Claim is the name of the PersistentVolumeClaim.
	Claim string
	// Volume is the PersistentVolume to which the claim is bound.
	Volume *corev1.PersistentVolume
}

// maxNamedNodes is the maximum number of nodes that a finding names.
const maxNamedNodes = 3

// volumes reports the volumes that the node of the pod's address cannot use, and those that no node that takes pods can use.
func (e *explanation) volumes() {
	for _, v := range e.Volumes {
		usable := func(node *corev1.Node) bool {
			return node != nil && volume.CheckNodeAffinity(v.Volume, node.Labels) == nil
		}
		var nodes []string
		for _, name := range slices.Sorted(maps.Keys(e.Nodes)) {
			if usable(e.Nodes[name]) && nodeutil.IsSchedulable(e.Nodes[name]) {
				nodes = append(nodes, name)
			}
		}
		what := fmt.Sprintf("Volume %s (claim %s)", v.Volume.Name, v.Claim)
		switch {
		case len(nodes) == 0:
			e.wrong("add or repair a node that can use the volume", "%s can be used on no node that is ready for pods", what)
		case e.Nodes[e.owner] != nil && !usable(e.Nodes[e.owner]):
			help := "set the annotation " + identity.AnnotationFailover + ": Migrate on the workload of the pod, so that the address follows the pod"
			if e.Record != nil {
				help += fmt.Sprintf(", or release the address: kubectl -n %s delete fixedip %s", e.Namespace, e.Record.Name)
			}
			e.wrong(help, "%s can be used only on %s, and address %s of the pod belongs to node %s", what, someNodes(nodes), address.Join(e.reserved), e.owner)
		}
	}
}

// someNodes returns the names of the first maxNamedNodes nodes and the number of the others as text for messages.
func someNodes(names []string) string {
	more := ""
	if len(names) > maxNamedNodes {
		more = fmt.Sprintf(" and %d others", len(names)-maxNamedNodes)
		names = names[:maxNamedNodes]
	}
	if len(names) == 1 {
		return "node " + names[0] + more
	}
	return "the nodes " + strings.Join(names, ", ") + more
}
