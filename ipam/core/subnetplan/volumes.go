// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnetplan

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/volume"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Excludes returns the first of Volumes that a node cannot use; nil if the node can use all of them.
func (o OrphanedSubnets) Excludes(h CandidateNode) *Volume {
	for i, v := range o.Volumes {
		if volume.CheckNodeAffinity(v.Volume, h.Labels) != nil {
			return &o.Volumes[i]
		}
	}
	return nil
}

// AllNominatedTo reports whether all waiting pods are nominated to the node, so that the node can use all of their volumes.
// It is true if no pod waits.
func (o OrphanedSubnets) AllNominatedTo(node string) bool { return o.nominated(node) == len(o.Waiting) }

// Pinned returns the waiting pods that need a node that can use their volumes: their failover policy does not allow them to
// leave the node of their addresses.
func (r Rules) Pinned(o OrphanedSubnets) []*corev1.Pod {
	// waits contains the pods with the failover policy Wait. Key: the owner text of their entries.
	waits := map[string]bool{}
	for _, k := range o.Reserved {
		if cmp.Or(k.Failover, r.Failover) == v1alpha1.Wait {
			waits[k.Entry.Owner()] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(o.Waiting), func(pod *corev1.Pod) bool { return !waits[pool.OwnerKey(pod.Namespace, pod.Name)] })
}

// Volume is the volume of a waiting pod.
type Volume struct {
	// Pod is the pod, as namespace/name.
	Pod string
	// Claim is the name of the PersistentVolumeClaim.
	Claim  string
	Volume *corev1.PersistentVolume
}

// LimitingVolumes returns the volumes that limit the choice of the node that inherits: those that one of the nodes can use,
// and those of a zone or region, which may have no node at the moment. It leaves out the others, such as a local volume of
// the node that is gone, because their pods cannot run on any node that inherits.
func LimitingVolumes(volumes []Volume, nodes []corev1.Node) (limiting []Volume) {
	for _, v := range volumes {
		if zonal(v.Volume) || slices.ContainsFunc(nodes, func(n corev1.Node) bool { return volume.CheckNodeAffinity(v.Volume, n.Labels) == nil }) {
			limiting = append(limiting, v)
		}
	}
	return limiting
}

// zonal reports whether the nodes that can use a volume are selected by zone or region only. Storage drivers have labels of
// their own for that, such as topology.gke.io/zone.
func zonal(v *corev1.PersistentVolume) bool {
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return false
	}
	other := func(r corev1.NodeSelectorRequirement) bool {
		return !strings.HasSuffix(r.Key, "/zone") && !strings.HasSuffix(r.Key, "/region")
	}
	return !slices.ContainsFunc(v.Spec.NodeAffinity.Required.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		return len(t.MatchFields) > 0 || slices.ContainsFunc(t.MatchExpressions, other)
	})
}
