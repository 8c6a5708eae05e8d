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

// endpointPatience is how long the keeper leaves most issues to the agent before it acts.
const endpointPatience = time.Minute

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

// takeOverAsKeeperLooks makes an agent lose the UID of a CiliumEndpoint and leave the object behind. The next pod of the
// name starts when endpointPatience ends, and its agent takes the CiliumEndpoint over.
func (w *world) takeOverAsKeeperLooks(pod *corev1.Pod, m *machine) {
	m.cep.known[pod.UID].uid = ""
	for _, other := range w.machines {
		other.startsAfter = time.Now().Add(2 * endpointPatience)
	}
	w.forceDelete(pod)
	w.calm(endpointPatience - time.Second)
	held := w.holdKeeper(keyOf(pod), []string{http.MethodGet, http.MethodDelete}[w.choose(2)], ciliumEndpoints)
	for _, other := range w.machines {
		other.startsAfter, other.tellsAfter = time.Time{}, time.Now().Add(2*actLasts)
	}
	w.calm(actLasts)
	w.release(held)
	w.mute(nil)
}

// replaceAsKeeperLooks makes a client write a wrong owner into the CiliumEndpoint of a pod, and a user delete the pod while
// the keeper processes both.
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

// holdKeeper lets everything continue until the controller sends the given request about a pod or CiliumEndpoint, and holds
// that request. It returns nil if no such request comes within actLasts.
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
		if !w.allAtOnce() {
			time.Sleep(w.pause())
		}
		w.settleDown()
	}
	return nil
}

// release lets a held request continue; nil: there is none.
func (w *world) release(c *call) {
	if c != nil {
		c.held = false
	}
}
