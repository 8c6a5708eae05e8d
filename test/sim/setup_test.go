// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
)

// setup is the configuration of the cluster and of the product in one run.
type setup struct {
	// slots is true if there is a ReplicaSet, whose pods have no stable names.
	slots bool
	// strict is true if every second node is a strict node.
	strict bool
	// dual is true if pods have addresses of both families.
	dual bool
	// adoption is true if the controller adopts pods of the default scheduler that have adoptLabel.
	adoption bool
	// volumes is true if nodes are in zones, and each pod of a StatefulSet has a volume in one zone.
	volumes bool
	// endpoints defines how CiliumEndpoints are maintained.
	endpoints endpointSetup
}

func drawSetup(from *rand.Rand) setup {
	return setup{slots: from.IntN(2) == 0, strict: from.IntN(4) == 0, adoption: from.IntN(4) == 0, dual: from.IntN(3) == 0}
}

// count increments the counter in stats of each enabled option of the setup.
func (s setup) count(stats map[string]int) {
	for name, set := range map[string]bool{"slots": s.slots, "strict nodes": s.strict, "adoption by a selector": s.adoption, "dual stack": s.dual, "volumes": s.volumes, "CiliumEndpoints": s.endpoints.on} {
		if set {
			stats["setup: "+name]++
		}
	}
}

// families returns the families of pod addresses: false for IPv4, true for IPv6.
func (s setup) families() []bool {
	if s.dual {
		return []bool{false, true}
	}
	return []bool{false}
}

// ipFamilies returns the families in the format of the scheduler's arguments.
func (s setup) ipFamilies() []string {
	if s.dual {
		return []string{"IPv4", "IPv6"}
	}
	return []string{"IPv4"}
}

// workloads returns the kinds of workloads in the configuration, in addition to StatefulSets.
func (s setup) workloads() []identity.Kind {
	if !s.slots {
		return nil
	}
	return []identity.Kind{{APIGroup: "apps", Kind: "ReplicaSet", Identity: identity.Slot, Enabled: identity.ByDefault}}
}

// strictLabel is the label of strict nodes.
const strictLabel = "strict"

// strictNodes selects the strict nodes.
func (s setup) strictNodes() labels.Selector {
	if !s.strict {
		return labels.Nothing()
	}
	return labels.SelectorFromSet(labels.Set{strictLabel: "true"})
}

// strictArgument returns the selector of strict nodes in the format of the scheduler's arguments; empty: none.
func (s setup) strictArgument() string {
	if !s.strict {
		return ""
	}
	return s.strictNodes().String()
}

// adoptLabel is the label of pods whose address the controller adopts.
const adoptLabel = "adopt"

// adoptionSelector selects the pods of other schedulers to adopt; nil: none.
func (s setup) adoptionSelector() labels.Selector {
	if !s.adoption {
		return nil
	}
	return labels.SelectorFromSet(labels.Set{adoptLabel: "true"})
}

// labelled returns the pod of a FixedIP, and whether that pod exists and has adoptLabel.
func (w *world) labelled(r *v1alpha1.FixedIP) (pod *corev1.Pod, label bool) {
	pod, ok := one[*corev1.Pod](w.server, pods, keyOfHolder(r))
	return pod, ok && pod.Labels[adoptLabel] != ""
}

// isStrict reports whether a node is a strict node.
func (w *world) isStrict(name string) bool {
	node, ok := one[*corev1.Node](w.server, nodes, name)
	return ok && w.setup.strictNodes().Matches(labels.Set(node.Labels))
}

// schedulerKinds returns the kinds that the scheduler watches through the shared informers of kube-scheduler.
func (s setup) schedulerKinds() []*kind {
	if s.slots {
		return []*kind{pods, nodes, statefulSets, replicaSets}
	}
	return []*kind{pods, nodes, statefulSets}
}
