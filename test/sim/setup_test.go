// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/configuration"
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

// settings returns the settings of both programs. The cluster pools are so small that both subnets and addresses run out.
func (s setup) settings() configuration.Configuration {
	c := configuration.Configuration{
		TypeMeta: metav1.TypeMeta{APIVersion: configuration.Version, Kind: configuration.Kind},
		Subnets: configuration.Subnets{
			ClusterPools:        []configuration.ClusterPool{{CIDR: "10.0.0.0/25", MaskSize: 28}},
			OrphanedGracePeriod: &metav1.Duration{Duration: orphanGrace},
		},
		Pools:                 configuration.Pools{MinFree: ptr.To(2)},
		AllowAddressMigration: ptr.To(true),
		StrictNodes:           ptr.To(""),
		Workloads:             s.workloads(),
		SchedulerNames:        []string{schedulerName},
		MismatchPolicy:        identity.Restart,
	}
	if s.dual {
		c.Subnets.ClusterPools = append(c.Subnets.ClusterPools, configuration.ClusterPool{CIDR: "fd00::/121", MaskSize: 124})
	}
	if s.strict {
		c.StrictNodes = ptr.To(s.strictNodes().String())
	}
	if s.adoption {
		c.Adoption.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{adoptLabel: "true"}}
	}
	return c
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

// adoptLabel is the label of pods whose address the controller adopts.
const adoptLabel = "adopt"

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
