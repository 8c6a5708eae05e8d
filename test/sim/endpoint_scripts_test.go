// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/http"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// endpointGrace is the time for which the keeper leaves most issues to the agent.
const endpointGrace = time.Minute

// endpointScripts returns scripts in which CiliumEndpoints or pods change while the keeper processes them: one request of
// the keeper is held until the change has happened.
func (w *world) endpointScripts() []action {
	if !w.setup.endpoints.on {
		return nil
	}
	var d []action
	for _, pod := range all[*corev1.Pod](w.server, pods) {
		owner, m := metav1.GetControllerOfNoCopy(pod), w.machine(pod.Spec.NodeName)
		if owner == nil || owner.Kind != statefulSets.gvk.Kind || m == nil || m.cut || m.cep.known[pod.UID] == nil || pod.DeletionTimestamp != nil {
			continue
		}
		d = append(d,
			action{"CiliumEndpoint taken over as the keeper looks at it: " + pod.Name, func() { w.takeOverAsKeeperLooks(pod, m) }},
			action{"pod replaced as the keeper looks at it: " + pod.Name, func() { w.replaceAsKeeperLooks(pod) }},
		)
	}
	return d
}

// takeOverAsKeeperLooks makes an agent forget the UID of a CiliumEndpoint, so that the CiliumEndpoint stays when its pod is
// deleted. The next pod with that name starts when endpointGrace ends, and its agent takes the CiliumEndpoint over.
func (w *world) takeOverAsKeeperLooks(pod *corev1.Pod, m *machine) {
	m.cep.known[pod.UID].uid = ""
	for _, other := range w.machines {
		other.startsAfter = time.Now().Add(2 * endpointGrace)
	}
	w.forceDelete(pod)
	w.calm(endpointGrace - time.Second)
	held := w.holdKeeper(keyOf(pod), []string{http.MethodGet, http.MethodDelete}[w.choose(2)], ciliumEndpoints)
	for _, other := range w.machines {
		other.startsAfter, other.podStatusAfter = time.Time{}, time.Now().Add(2*actLasts)
	}
	w.calm(actLasts)
	w.release(held)
	w.mute(nil)
}

// replaceAsKeeperLooks writes a wrong owner into the CiliumEndpoint of a pod, and deletes the pod while the keeper
// processes the CiliumEndpoint.
func (w *world) replaceAsKeeperLooks(pod *corev1.Pod) {
	change(w.server, ciliumEndpoints, keyOf(pod), "user", func(cep *ciliumv2.CiliumEndpoint) {
		cep.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: "former"}}
	})
	var held *call
	switch w.choose(3) {
	case 0:
		held = w.holdKeeper(keyOf(pod), http.MethodGet, ciliumEndpoints)
	case 1:
		held = w.holdKeeper(keyOf(pod), http.MethodGet, pods)
	default:
		held = w.holdKeeper(keyOf(pod), http.MethodPatch, ciliumEndpoints)
	}
	w.deletePod(pod, "user")
	w.calm(4 * actLasts)
	w.release(held)
	w.mute(nil)
}

// holdKeeper performs actions that need no user and no fault until the product sends the given request about a pod or
// CiliumEndpoint, and holds that request. It returns nil if no such request is sent within actLasts.
func (w *world) holdKeeper(key, verb string, k *kind) *call {
	until := time.Now().Add(actLasts)
	for range calmSteps {
		for _, c := range w.line.waiting() {
			if c.verb == verb && c.kind == k && c.key == key && c.subresource == "" {
				c.held = true
				return c
			}
		}
		if w.broken() != nil || !time.Now().Before(until) {
			break
		}
		if !w.advance() {
			time.Sleep(w.pause())
		}
		w.waitIdle()
	}
	return nil
}

// release lets a held request continue. It does nothing if c is nil.
func (w *world) release(c *call) {
	if c != nil {
		c.held = false
	}
}
