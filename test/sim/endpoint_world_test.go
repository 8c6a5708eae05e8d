// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"maps"
	"slices"
	"strings"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/conformance"
	"fixedip.io/fixedip/ipam/core/identity"
)

const (
	// operatorInterval is the interval at which Cilium's operator looks for CiliumEndpoints without a pod
	// (cilium-endpoint-gc-interval).
	operatorInterval = 5 * time.Minute
	// obeyAfter is the minimum time between two actions of the user in obeyEndpoints.
	obeyAfter = 2 * time.Minute
)

// endpointCollectors returns the possible deletions of CiliumEndpoints by the garbage collector and Cilium's operator.
func (w *world) endpointCollectors(now time.Time) []action {
	if !w.setup.endpoints.collected {
		return nil
	}
	var d []action
	for _, cep := range all[*ciliumv2.CiliumEndpoint](w.server, ciliumEndpoints) {
		if cep.DeletionTimestamp != nil {
			continue
		}
		pod, exists := one[*corev1.Pod](w.server, pods, keyOf(cep))
		remove := func(by string) func() {
			uid := cep.UID
			return func() {
				w.stats["CiliumEndpoint collected by "+by]++
				_ = w.server.remove(ciliumEndpoints, keyOf(cep), &metav1.Preconditions{UID: &uid}, true, by)
			}
		}
		if owner := ownerOf(cep); owner != "" && (!exists || pod.UID != owner) {
			d = append(d, action{"garbage collector deletes CiliumEndpoint " + cep.Name, remove("gc")})
		}
		if now.Sub(cep.CreationTimestamp.Time) >= operatorInterval && (!exists || ended(pod)) {
			d = append(d, action{"cilium-operator deletes CiliumEndpoint " + cep.Name, remove("cilium-operator")})
		}
	}
	return d
}

// endpointUserActions returns the possible actions of users and other clients on CiliumEndpoints, and the possible changes of
// the status of endpoints, which an agent has to write.
func (w *world) endpointUserActions() []action {
	if !w.setup.endpoints.on {
		return nil
	}
	var d []action
	add := func(name string, do func()) { d = append(d, action{name, do}) }
	there := all[*ciliumv2.CiliumEndpoint](w.server, ciliumEndpoints)
	for _, cep := range there {
		add("delete CiliumEndpoint: "+cep.Name, func() { _ = w.server.remove(ciliumEndpoints, keyOf(cep), nil, true, "user") })
		add("hold CiliumEndpoint with a finalizer: "+cep.Name, func() {
			change(w.server, ciliumEndpoints, keyOf(cep), "user", func(c *ciliumv2.CiliumEndpoint) { c.Finalizers = []string{"example.com/hold"} })
		})
		add("exchange CiliumEndpoint for a former one: "+cep.Name, func() {
			if former := w.formerEndpoint(keyOf(cep)); former != nil {
				_ = w.server.remove(ciliumEndpoints, keyOf(cep), nil, true, "user")
				w.restoreEndpoint(former)
			}
		})
	}
	if len(there) > 0 {
		add("delete all CiliumEndpoints: of the cluster", func() {
			for _, cep := range there {
				_ = w.server.remove(ciliumEndpoints, keyOf(cep), nil, true, "user")
			}
		})
	}
	// A user restores a CiliumEndpoint from a backup.
	for _, key := range w.goneEndpoints() {
		add("restore CiliumEndpoint: "+key, func() { w.restoreEndpoint(w.formerEndpoint(key)) })
	}
	for _, m := range w.machines {
		for _, uid := range slices.Sorted(maps.Keys(m.cep.known)) {
			e := m.cep.known[uid]
			add("status of endpoint changes: "+e.key, func() {
				e.revision++
				e.sent = false
			})
		}
	}
	return d
}

// goneEndpoints returns the keys of CiliumEndpoints that no longer exist.
func (w *world) goneEndpoints() []string {
	gone := map[string]bool{}
	for _, e := range w.server.history[ciliumEndpoints] {
		gone[e.key()] = e.after == nil
	}
	maps.DeleteFunc(gone, func(_ string, gone bool) bool { return !gone })
	return slices.Sorted(maps.Keys(gone))
}

// formerEndpoint returns a random one of the deleted CiliumEndpoints with the key; nil if there is none.
func (w *world) formerEndpoint(key string) *ciliumv2.CiliumEndpoint {
	var former []*ciliumv2.CiliumEndpoint
	for _, e := range w.server.history[ciliumEndpoints] {
		if e.after == nil && e.key() == key {
			former = append(former, e.before.(*ciliumv2.CiliumEndpoint))
		}
	}
	if len(former) == 0 {
		return nil
	}
	return former[w.choose(len(former))]
}

// restoreEndpoint creates a former CiliumEndpoint again: unchanged, without its owner reference, or with another address.
func (w *world) restoreEndpoint(former *ciliumv2.CiliumEndpoint) {
	cep := &ciliumv2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: former.Namespace, Name: former.Name, OwnerReferences: former.OwnerReferences}, Status: former.Status}
	switch w.choose(4) {
	case 0:
		cep.OwnerReferences = nil
	case 1:
		cep.Status = *former.Status.DeepCopy()
		cep.Status.Networking.Addressing = ciliumv2.AddressPairList{{IPV4: "10.9.9.9"}}
	}
	_, _ = w.server.create(ciliumEndpoints, cep, "user")
}

// noteEndpointAdvice notes the events NoCiliumEndpoint and EvictionsPaused of the product, which obeyEndpoints follows.
func (w *world) noteEndpointAdvice(regarding runtime.Object, reason, note string) {
	pod, ok := regarding.(*corev1.Pod)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case reason == "EvictionsPaused":
		w.agentsAdvised = true
	case reason != conformance.ReasonNoCiliumEndpoint:
	case strings.Contains(note, "is not evicted"):
		w.advised[pod.UID] = true
	default:
		w.reported[pod.UID] = true
	}
}

// obeyEndpoints follows, as a user, the events about pods without a CiliumEndpoint: the user first restarts the agent of the
// node, and later deletes the pod. The user does not act on pods that the product evicts. obeyEndpoints reports whether the
// user has acted.
func (w *world) obeyEndpoints() bool {
	if time.Since(w.obeyed) < obeyAfter {
		return false
	}
	for _, pod := range all[*corev1.Pod](w.server, pods) {
		_, has := one[*ciliumv2.CiliumEndpoint](w.server, ciliumEndpoints, keyOf(pod))
		m := w.machine(pod.Spec.NodeName)
		if has || m == nil || m.sandboxes[pod.UID] == nil || pod.DeletionTimestamp != nil {
			continue
		}
		if !w.agentsAdvised && !w.advised[pod.UID] && (!w.reported[pod.UID] || w.isEvictable(pod)) {
			continue
		}
		w.obeyed = time.Now()
		w.stats["user acts on a pod without a CiliumEndpoint"]++
		if w.restarted[pod.UID] && (w.advised[pod.UID] || w.reported[pod.UID]) {
			w.logf("** a user deletes pod %s, which has no CiliumEndpoint", keyOf(pod))
			w.deletePod(pod, "user")
			return true
		}
		w.restarted[pod.UID] = true
		w.logf("** a user restarts the agent of node %s: pod %s has no CiliumEndpoint", m.name, keyOf(pod))
		m.agentDown()
		return true
	}
	return false
}

// endFormerLeaders ends, in runs with CiliumEndpoints, the processes that have lost their lease. Two leaders would report
// different times since which a pod has had no CiliumEndpoint, and each would overwrite the report of the other.
func (w *world) endFormerLeaders() {
	for _, p := range w.live() {
		if w.setup.endpoints.on && p.lost {
			w.logf("%s notices that it does not lead any more, and exits", p)
			p.kill()
		}
	}
}

// isEvictable reports whether the controller may evict the pod if its CiliumEndpoint is missing. The pod has to have a
// controller and must not opt out, and a FixedIP that is not being deleted has to reserve addresses for the pod. isEvictable
// ignores temporary blockers, such as an agent that is not ready.
func (w *world) isEvictable(pod *corev1.Pod) bool {
	return metav1.GetControllerOfNoCopy(pod) != nil && !identity.OptsOut(pod) &&
		slices.ContainsFunc(all[*v1alpha1.FixedIP](w.server, fixedIPs), func(r *v1alpha1.FixedIP) bool {
			return keyOfHolder(r) == keyOf(pod) && r.DeletionTimestamp == nil && len(r.Spec.IPs) > 0
		})
}

// endpointWorld is the state of a run that concerns CiliumEndpoints.
type endpointWorld struct {
	endpointIDs int64
	// advised contains the pods with an event NoCiliumEndpoint which says that the pod is not evicted. reported contains
	// the pods with an event NoCiliumEndpoint which does not say that. restarted contains the pods without a CiliumEndpoint
	// whose agent a user has restarted. Key: the UID. w.mu guards reported, advised and agentsAdvised.
	reported, advised, restarted map[types.UID]bool
	// agentsAdvised is true if the product has recorded the event EvictionsPaused, which asks a user to check the agents.
	agentsAdvised bool
	// obeyed is the last time at which a user acted because of such an event.
	obeyed time.Time
}

func newEndpointWorld() endpointWorld {
	return endpointWorld{reported: map[types.UID]bool{}, advised: map[types.UID]bool{}, restarted: map[types.UID]bool{}}
}
