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
	// slots: there is a ReplicaSet, whose pods have no stable names.
	slots bool
	// strict: every second node is a strict node.
	strict bool
	// dual: addresses of both families.
	dual bool
	// adoption: the controller adopts pods of the default scheduler that have a label.
	adoption bool
	// endpoints are how CiliumEndpoints are kept.
	endpoints endpointSetup
}

func drawSetup(from *rand.Rand) setup {
	return setup{slots: from.IntN(2) == 0, strict: from.IntN(4) == 0, adoption: from.IntN(4) == 0, dual: from.IntN(3) == 0}
}

// count counts the runs with each part of the setup.
func (s setup) count(stats map[string]int) {
	for name, set := range map[string]bool{"slots": s.slots, "strict nodes": s.strict, "adoption by a selector": s.adoption, "dual stack": s.dual, "CiliumEndpoints": s.endpoints.on} {
		if set {
			stats["setup: "+name]++
		}
	}
}

// families are those that pods get addresses of. Value: whether it is IPv6.
func (s setup) families() []bool {
	if s.dual {
		return []bool{false, true}
	}
	return []bool{false}
}

// ipFamilies are the same for the scheduler.
func (s setup) ipFamilies() []string {
	if s.dual {
		return []string{"IPv4", "IPv6"}
	}
	return []string{"IPv4"}
}

// workloads are the kinds of workloads that the product has to know beside StatefulSets.
func (s setup) workloads() []identity.Kind {
	if !s.slots {
		return nil
	}
	return []identity.Kind{{APIGroup: "apps", Kind: "ReplicaSet", Identity: identity.Slot, Enabled: identity.ByDefault}}
}

// strictLabel is on strict nodes.
const strictLabel = "strict"

// strictNodes selects the strict nodes.
func (s setup) strictNodes() labels.Selector {
	if !s.strict {
		return labels.Nothing()
	}
	return labels.SelectorFromSet(labels.Set{strictLabel: "true"})
}

// strictArgument is the same for the scheduler.
func (s setup) strictArgument() string {
	if !s.strict {
		return ""
	}
	return s.strictNodes().String()
}

// adoptLabel is on pods whose address the controller adopts.
const adoptLabel = "adopt"

// adoptionSelector selects the pods of other schedulers to adopt; nil: none.
func (s setup) adoptionSelector() labels.Selector {
	if !s.adoption {
		return nil
	}
	return labels.SelectorFromSet(labels.Set{adoptLabel: "true"})
}

// labelled returns the pod of a FixedIP, and whether it has the label of pods to adopt.
func (w *world) labelled(r *v1alpha1.FixedIP) (pod *corev1.Pod, label bool) {
	pod, ok := one[*corev1.Pod](w.server, pods, keyOfHolder(r))
	return pod, ok && pod.Labels[adoptLabel] != ""
}

// isStrict reports whether a node is a strict node.
func (w *world) isStrict(name string) bool {
	node, ok := one[*corev1.Node](w.server, nodes, name)
	return ok && w.setup.strictNodes().Matches(labels.Set(node.Labels))
}

// schedulerKinds are the kinds that the scheduler watches through its own informers.
func (s setup) schedulerKinds() []*kind {
	if s.slots {
		return []*kind{pods, nodes, statefulSets, replicaSets}
	}
	return []*kind{pods, nodes, statefulSets}
}
