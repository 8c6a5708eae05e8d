// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/test/bench/world"
)

// oneNodePods is the number of pods of the arm that places all pods on one node.
const oneNodePods = 100

// arm is one variant that the benchmark measures: a scheduler and its pods, or patches without a scheduler.
type arm struct {
	name, about string
	// program is the scheduler; empty if the arm only patches CiliumNodes.
	program string
	// withoutFixedIP leaves the plugin FixedIP out of the profile. plugins are other plugins that the profile enables.
	withoutFixedIP bool
	plugins        []string
	// writesPools is true if the arm writes pools, which have to be restored after it.
	writesPools bool
	// pod returns pod i of the arm; it is nil if program is empty.
	pod func(w *world.World, i int) *corev1.Pod
	// count is the number of pods; 0 means the number in the flag -pods.
	count int
}

const (
	ours    = "fixedip-scheduler"
	patcher = "bench/patcher"
)

var allArms = []arm{
	{name: "A", about: "without FixedIP, unreserved pods", program: ours, withoutFixedIP: true, pod: ordinary},
	{name: "B", about: "FixedIP, unreserved pods", program: ours, pod: ordinary},
	{name: "F", about: "without FixedIP, each pod pinned to one node", program: ours, withoutFixedIP: true, pod: pinned},
	{name: "C", about: "FixedIP, restart in place", program: ours, pod: absent},
	{name: "D", about: "FixedIP, first placement over all nodes", program: ours, writesPools: true, pod: unplaced},
	{name: "E", about: "FixedIP, first placement of 100 pods on one node", program: ours, writesPools: true, pod: unplacedOnOne, count: oneNodePods},
	{name: "S", about: "without FixedIP, a plugin patches a CiliumNode for each pod", program: patcher, withoutFixedIP: true, plugins: []string{"PatchOne"}, writesPools: true, pod: patched},
	{name: "P", about: "patches of CiliumNodes, without a scheduler", writesPools: true},
}

func ordinary(w *world.World, i int) *corev1.Pod { return w.NewPod(w.OrdinaryPod(w.Ordinary + i)) }

func absent(w *world.World, i int) *corev1.Pod { return w.NewPod(w.AbsentPod(i)) }

func unplaced(w *world.World, i int) *corev1.Pod { return w.NewPod(w.UnplacedPod(i)) }

func pinned(w *world.World, i int) *corev1.Pod { return pin(ordinary(w, i), world.NodeName(i%w.Nodes)) }

func unplacedOnOne(w *world.World, i int) *corev1.Pod {
	return pin(unplaced(w, i), world.NodeName(w.Nodes/2))
}

// pin restricts a pod to a node by name, as the DaemonSet controller does.
func pin(pod *corev1.Pod, node string) *corev1.Pod {
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}},
	}}}
	return pod
}

func patched(w *world.World, i int) *corev1.Pod {
	pod := ordinary(w, i)
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "bench.fixedip.io/address", patchedAddress(i))
	return pod
}

// patchedAddress returns an address for pod i that is in no node's subnet. It differs for each of the first 65,536 pods.
func patchedAddress(i int) string { return fmt.Sprintf("192.168.%d.%d", i>>8&255, i&255) }
