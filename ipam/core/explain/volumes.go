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
	"fixedip.io/fixedip/ipam/core/nodeutil"
)

// Volume is a persistent volume of a pod.
type Volume struct {
	// Claim is the name of the PersistentVolumeClaim.
	Claim string
	// Volume is the PersistentVolume to which the claim is bound.
	Volume *corev1.PersistentVolume
}

// String returns the name of the volume and of its claim, for messages.
func (v Volume) String() string { return fmt.Sprintf("volume %s (claim %s)", v.Volume.Name, v.Claim) }

// usableOn reports whether a node exists and can use the volume.
func (v Volume) usableOn(node *corev1.Node) bool {
	return node != nil && volume.CheckNodeAffinity(v.Volume, node.Labels) == nil
}

// maxNamedNodes is the maximum number of nodes that a finding names.
const maxNamedNodes = 3

// volumes reports the volumes that the node of the pod's address cannot use, and those that no node that takes pods can use.
func (e *explanation) volumes() {
	if e.Nodes == nil {
		return
	}
	for _, v := range e.Volumes {
		var nodes []string
		for _, name := range slices.Sorted(maps.Keys(e.Nodes)) {
			if v.usableOn(e.Nodes[name]) && nodeutil.IsSchedulable(e.Nodes[name]) {
				nodes = append(nodes, name)
			}
		}
		what := "V" + strings.TrimPrefix(v.String(), "v")
		switch {
		case len(nodes) == 0:
			e.wrong("add, repair or uncordon a node that can use the volume", "%s can be used on no node that is ready and not cordoned", what)
		case e.Nodes[e.owner] != nil && !v.usableOn(e.Nodes[e.owner]):
			var helps []string
			if other := e.failoverHelp(); other != "" {
				helps = append(helps, other)
			}
			if e.Record != nil {
				helps = append(helps, e.releaseCommand()+", so that the pod gets another address")
			}
			e.wrong(strings.Join(helps, "; or "), "%s can be used on %s, but not on node %s, to which %s %s of the pod %s", what, someNodes(nodes), e.owner, plural(e.reserved, "address", "addresses"), address.Join(e.reserved), plural(e.reserved, "belongs", "belong"))
		}
	}
}

// someNodes returns the names of the first maxNamedNodes nodes and the number of the others as text for messages.
func someNodes(names []string) string {
	more := ""
	if len(names) > maxNamedNodes {
		more = fmt.Sprintf(" and %d more", len(names)-maxNamedNodes)
		names = names[:maxNamedNodes]
	}
	if len(names) == 1 {
		return "node " + names[0] + more
	}
	return "the nodes " + strings.Join(names, ", ") + more
}
