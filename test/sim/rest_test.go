// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/request"
)

const (
	// restAfter is the time without a write of the product after which the world is at rest. It is longer than the period of
	// the resync of all identities.
	restAfter = 12 * time.Minute
	// restWithin is the maximum time until the world is at rest.
	restWithin = 2 * time.Hour
	// restSteps is the maximum number of steps until the world is at rest.
	restSteps = 40000
	// restRequests is the maximum number of requests that the product sends in restAfter without a write. The product
	// periodically checks identities that wait.
	restRequests = 150
	// joinEvery is the interval at which nodes join while a FixedIP has an address that is in no node's subnet.
	joinEvery = 5 * time.Minute
)

// rest ends all faults, lets the world come to rest, and returns the first violation.
func (w *world) rest() error {
	w.logf("** all faults end")
	w.faultsEnded = true
	// End the spell: only the method do counts down its steps, and rest does not call do. In a spell that does not end, a
	// process that has lost its lease never notices the loss.
	w.spell = spell{}
	w.endFormerLeaders()
	for _, p := range w.live() {
		p.cut = false
		for _, i := range p.informers {
			i.stalled = false
		}
	}
	for _, m := range w.machines {
		m.cut = false
		node, exists := one[*corev1.Node](w.server, nodes, m.name)
		if !exists {
			continue
		}
		if m.off {
			m.powerOn()
		}
		if node.Spec.Unschedulable || outOfService(node) {
			change(w.server, nodes, m.name, "user", func(n *corev1.Node) {
				n.Spec.Unschedulable = false
				n.Spec.Taints = nil
			})
		}
	}
	for len(w.server.list(nodes)) < 2 {
		w.newMachine()
	}
	w.provideNodes()
	began, joined := time.Now(), time.Now()
	w.lastWrite, w.requests = began, 0
	for steps := 0; time.Since(w.lastWrite) < restAfter; steps++ {
		if err := w.broken(); err != nil {
			return err
		}
		if steps > restSteps || time.Since(began) > restWithin {
			w.violate("quiet: the product still writes after %v and %d steps without faults", time.Since(began), steps)
			return w.broken()
		}
		if w.advance() {
			w.waitIdle()
			continue
		}
		if time.Since(joined) > joinEvery && w.hasOrphanedIP() {
			// An orphaned subnet waits for a node that inherits it.
			joined = time.Now()
			w.newMachine()
			continue
		}
		if w.obey() || w.obeyEndpoints() {
			continue
		}
		time.Sleep(w.pause())
		w.waitIdle()
	}
	if w.requests > restRequests {
		w.violate("quiet: the product has sent %d requests to the API server in %v without a write, want at most %d", w.requests, restAfter, restRequests)
	}
	w.atRest()
	return w.broken()
}

// obey acts as a user who follows the reports of the product: it deletes a pod that, according to a report, uses an
// address reserved for another pod. It leaves out pods that the product restarts itself. It reports whether it has
// deleted a pod.
func (w *world) obey() bool {
	for _, pod := range all[*corev1.Pod](w.server, pods) {
		if !w.misassigned[keyOf(pod)] || pod.DeletionTimestamp != nil || metav1.GetControllerOfNoCopy(pod) != nil && !identity.OptsOut(pod) {
			continue
		}
		for _, has := range pod.Status.PodIPs {
			if owner := w.reservedFor(has.IP); owner != "" && owner != keyOf(pod) {
				w.logf("** a user deletes pod %s, which has the address of %s", keyOf(pod), owner)
				w.deletePod(pod, "user")
				return true
			}
		}
	}
	return false
}

// noteMisassigned notes a pod that, according to a report of the product, uses the address of another pod.
func (w *world) noteMisassigned(pod string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.misassigned[pod] = true
}

// reservedFor returns the pod for which a pool or a FixedIP reserves an address, as namespace/name; empty if there is none.
// If only the FixedIP of a slot reserves the address, the result is namespace/name of the FixedIP.
func (w *world) reservedFor(ip string) string {
	for _, cn := range all[*ciliumv2.CiliumNode](w.server, ciliumNodes) {
		if owner := cn.Spec.IPAM.Pool[ip].Owner; isPod(owner) {
			return owner
		}
	}
	for _, r := range all[*v1alpha1.FixedIP](w.server, fixedIPs) {
		if slices.Contains(r.Spec.IPs, ip) {
			return keyOf(r)
		}
	}
	return ""
}

// hasNode reports whether the Node of a machine exists.
func (w *world) hasNode(m *machine) bool {
	_, exists := one[*corev1.Node](w.server, nodes, m.name)
	return exists
}

// hasOrphanedIP reports whether a FixedIP has an address that is in no node's subnet.
func (w *world) hasOrphanedIP() bool {
	for _, r := range all[*v1alpha1.FixedIP](w.server, fixedIPs) {
		for _, ip := range r.Spec.IPs {
			if !w.hasHome(ip) {
				return true
			}
		}
	}
	return false
}

// advance performs the first possible action that needs no user and no fault, and reports whether there was one. Calls whose
// client does not wait any more are lost.
func (w *world) advance() bool {
	for _, c := range w.line.waiting() {
		if c.waits() {
			continue
		}
		if c.left {
			w.line.take(c)
			continue
		}
		w.letThrough(c, 0)
		return true
	}
	for sort := sortWatches; sort < sorts; sort++ {
		if d := w.actions(sort); len(d) > 0 {
			if sort == sortMachines {
				w.logf("%s", d[0].name)
			}
			d[0].do()
			return true
		}
	}
	return false
}

// pause returns the time until the next item of a controller's queue or the next try of a pod by a scheduler is due, at least
// 100 ms and at most 5 s.
func (w *world) pause() time.Duration {
	now := time.Now()
	d := 5 * time.Second
	consider := func(at time.Time) {
		if !at.IsZero() {
			d = max(100*time.Millisecond, min(d, at.Sub(now)))
		}
	}
	for _, c := range w.controllers {
		if c.leads && !c.dead() {
			for _, q := range c.queues {
				_, next := q.ready(now)
				consider(next)
			}
		}
	}
	for _, s := range w.schedulers {
		if s.leads && !s.dead() {
			_, next := s.ready(now)
			consider(next)
		}
	}
	return d
}

// mayWait reports whether a pod may wait until a user acts. It may wait for an address or a slot that a user requested,
// reserved or released, or for the node to which its address was moved. It may also wait for an address of the second family on
// a full node, or because its address and its volume are in different zones.
func (w *world) mayWait(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return false
	}
	if s, ok := one[*appsv1.StatefulSet](w.server, statefulSets, namespace+"/"+owner.Name); ok && s.Annotations[request.AnnotationIPs] != "" {
		return true
	}
	if owner.Kind == replicaSets.gvk.Kind {
		return w.mayWaitForSlot(owner)
	}
	r, ok := one[*v1alpha1.FixedIP](w.server, fixedIPs, keyOf(pod))
	return ok && (w.byUser[r.UID] || w.stranded(r) || w.waitsForVolume(r) || w.lostToUser(r)) || w.writtenOnFull(keyOf(pod))
}

// lostToUser reports whether a user has taken the address of one family from the pod of r: the pod had claimed the address, a
// FixedIP that the user has created or deleted names the address, r names no address of that family, and the node of r is
// full. The user has to delete one of the two FixedIPs.
func (w *world) lostToUser(r *v1alpha1.FixedIP) bool {
	return w.full(r.Spec.NodeName) && slices.ContainsFunc(all[*v1alpha1.FixedIP](w.server, fixedIPs), func(other *v1alpha1.FixedIP) bool {
		return w.byUser[other.UID] && other.UID != r.UID && slices.ContainsFunc(other.Spec.IPs, func(ip string) bool {
			return w.claimed[[2]string{ip, keyOf(r)}] && !namesFamily(r, ip)
		})
	})
}

// writtenOnFull reports whether pods have addresses of two families, but a full node has only one entry for a pod, and a user
// has written that entry. The pod waits for an address of the other family, even after the controller has created a FixedIP
// with the address of the entry. key is namespace/name of the pod.
func (w *world) writtenOnFull(key string) bool {
	return slices.ContainsFunc(all[*ciliumv2.CiliumNode](w.server, ciliumNodes), func(cn *ciliumv2.CiliumNode) bool {
		has, byUser := 0, false
		for ip, e := range cn.Spec.IPAM.Pool {
			if e.Owner == key {
				has++
				byUser = w.written[[2]string{ip, key}]
			}
		}
		return has == 1 && byUser && len(w.setup.families()) == 2 && w.full(cn.Name)
	})
}

// stranded reports whether an address of a FixedIP was moved to a node that was deleted, and the failover policy is Wait
// now. The pod waits for that node until a user changes the policy.
func (w *world) stranded(r *v1alpha1.FixedIP) bool {
	if _, exists := one[*corev1.Node](w.server, nodes, r.Spec.NodeName); exists || r.Spec.Failover == v1alpha1.Migrate || r.Spec.Failover == v1alpha1.Reassign {
		return false
	}
	return slices.ContainsFunc(all[*ciliumv2.CiliumNode](w.server, ciliumNodes), func(cn *ciliumv2.CiliumNode) bool {
		return slices.ContainsFunc(r.Spec.IPs, func(ip string) bool { return cn.Spec.IPAM.Pool[ip].Owner == "fixedip.io/moved" })
	})
}
