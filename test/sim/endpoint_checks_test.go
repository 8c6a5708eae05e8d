// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// checkEndpoint checks a write of a CiliumEndpoint. The product must not create a CiliumEndpoint, delete a correct one,
// write a status, or change an owner reference that names the existing pod.
func (c *checks) checkEndpoint(e event, by string) {
	before, existed := e.before.(*ciliumv2.CiliumEndpoint)
	if !isProduct(by) {
		return
	}
	if !existed {
		c.violate("endpoint: CiliumEndpoint %s is created by %s", e.key(), by)
		return
	}
	pod, _ := one[*corev1.Pod](c.w.server, pods, e.key())
	after, exists := e.after.(*ciliumv2.CiliumEndpoint)
	switch {
	case !exists || after.DeletionTimestamp != nil && before.DeletionTimestamp == nil:
		if before.DeletionTimestamp != nil {
			// The deletion was requested before. This write removes the finalizers.
			c.w.stats["finalizers of a CiliumEndpoint removed by the keeper"]++
			return
		}
		c.w.stats["CiliumEndpoint deleted by the keeper"]++
		if pod != nil && pod.DeletionTimestamp == nil && c.w.isRight(before, pod) {
			c.violate("endpoint: %s deletes CiliumEndpoint %s, which the agent of its pod maintains", by, e.key())
		}
	case !equality.Semantic.DeepEqual(before.Status, after.Status):
		c.violate("endpoint: %s writes the status of CiliumEndpoint %s", by, e.key())
	case ownerOf(before) != ownerOf(after):
		c.w.stats["owner of a CiliumEndpoint corrected by the keeper"]++
		if pod != nil && ownerOf(before) == pod.UID {
			c.violate("endpoint: %s makes %s the owner of CiliumEndpoint %s although the former owner %s is the existing pod", by, ownerOf(after), e.key(), pod.UID)
		}
	}
}

// isRight reports whether the agent of a pod maintains a CiliumEndpoint, and the CiliumEndpoint describes the running
// sandbox. A CiliumEndpoint that the agent has taken over but not written does not count: after its deletion the agent
// creates another one when it writes the status.
func (w *world) isRight(cep *ciliumv2.CiliumEndpoint, pod *corev1.Pod) bool {
	m := w.machine(pod.Spec.NodeName)
	if m == nil {
		return false
	}
	sandbox, e := m.sandboxes[pod.UID], m.cep.known[pod.UID]
	return sandbox != nil && e != nil && e.uid == cep.UID && cep.Status.ID == e.id && nodeOf(cep) == m.hostIP() && slices.Equal(addressesOf(cep), slices.Sorted(slices.Values(sandbox.ips)))
}

// endpointsAtRest checks that every running pod has a CiliumEndpoint with the node and addresses of the pod, and that every
// CiliumEndpoint has an existing pod, names that pod or no pod as its owner, and is not being deleted.
func (c *checks) endpointsAtRest() {
	if !c.w.setup.endpoints.on {
		return
	}
	for _, pod := range all[*corev1.Pod](c.w.server, pods) {
		m := c.w.machine(pod.Spec.NodeName)
		if m == nil || m.sandboxes[pod.UID] == nil || pod.Status.PodIP == "" {
			continue
		}
		cep, exists := one[*ciliumv2.CiliumEndpoint](c.w.server, ciliumEndpoints, keyOf(pod))
		if !exists {
			c.violate("endpoint: pod %s runs on node %s with IP %s but has no CiliumEndpoint", keyOf(pod), m.name, pod.Status.PodIP)
			continue
		}
		// A CiliumEndpoint without an owner belongs to the running pod of its name.
		if owner := ownerOf(cep); owner != pod.UID && owner != "" {
			c.violate("endpoint: pod %s (%s) runs but the owner of its CiliumEndpoint is %s", keyOf(pod), pod.UID, owner)
		}
		if nodeOf(cep) != m.hostIP() || !slices.Equal(addressesOf(cep), slices.Sorted(slices.Values(m.sandboxes[pod.UID].ips))) {
			c.violate("endpoint: pod %s runs on node IP %s with IP %s but its CiliumEndpoint has IPs %v and node IP %s", keyOf(pod), m.hostIP(), pod.Status.PodIP, addressesOf(cep), nodeOf(cep))
		}
	}
	for _, cep := range all[*ciliumv2.CiliumEndpoint](c.w.server, ciliumEndpoints) {
		pod, exists := one[*corev1.Pod](c.w.server, pods, keyOf(cep))
		owner := ownerOf(cep)
		switch {
		case cep.DeletionTimestamp != nil:
			c.violate("endpoint: the deletion of CiliumEndpoint %s does not end", keyOf(cep))
		case !exists:
			c.violate("endpoint: CiliumEndpoint %s still exists although its pod does not", keyOf(cep))
		case owner != "" && owner != pod.UID:
			c.violate("endpoint: the owner of CiliumEndpoint %s is %s, want the existing pod %s", keyOf(cep), owner, pod.UID)
		}
	}
}
