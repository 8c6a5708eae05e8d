// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/test/sim/agent"
)

// checks compares every write with the invariants of the design. It uses API types, constants and parsers of the product,
// but none of its decisions.
type checks struct {
	w *world
	// violations are the broken invariants, in the order in which they were found.
	violations []string
	// included is the time since which the replicas of a StatefulSet have continuously included a pod, without opting out. Key:
	// namespace/name of the pod.
	included map[string]time.Time
	// workloadChanged is the time of the last change of the replicas, the annotations or the template's annotations of a
	// StatefulSet, and of the last write of a ReplicaSet. Key: namespace/name. Deleted workloads have no key.
	workloadChanged map[string]time.Time
	// had contains the owners of the former entries of each pool. Key: node and owner.
	had map[[2]string]bool
	// boundTooLate contains the pods that were bound after their entry was removed. Key: the UID.
	boundTooLate map[types.UID]bool
	// claimed contains the owners that entries have had. Key: the IP and the owner.
	claimed map[[2]string]bool
	// written contains the entries that a user has written for pods. Key: the address and the pod, namespace/name.
	written map[[2]string]bool
	// byUser contains the FixedIPs that a user has created or deleted. Key: the UID.
	byUser map[types.UID]bool
	// lastWrite is the time of the last write of the product.
	lastWrite time.Time
}

func newChecks(w *world) *checks {
	return &checks{w: w, included: map[string]time.Time{}, workloadChanged: map[string]time.Time{}, had: map[[2]string]bool{}, claimed: map[[2]string]bool{}, written: map[[2]string]bool{}, boundTooLate: map[types.UID]bool{}, byUser: map[types.UID]bool{}}
}

func (c *checks) violate(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	c.w.logf("!! %s", text)
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.violations = append(c.violations, text)
}

// broken returns the first violation as an error; nil if there is none.
func (c *checks) broken() error {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if len(c.violations) == 0 {
		return nil
	}
	return errors.New(c.violations[0])
}

// released notes that a user deletes a FixedIP.
func (c *checks) released(r *v1alpha1.FixedIP) { c.byUser[r.UID] = true }

// check checks one write. by is the writer.
func (c *checks) check(k *kind, e event, by string) {
	if isProduct(by) {
		c.lastWrite = time.Now()
		c.w.requests = 0
	}
	switch k {
	case ciliumNodes:
		c.checkPool(e, by)
	case fixedIPs:
		c.checkFixedIP(e, by)
	case statefulSets:
		c.noteWorkload(e)
	case replicaSets:
		c.noteReplicaSet(e)
	case ciliumEndpoints:
		c.checkEndpoint(e, by)
	case pods:
		c.checkBind(e, by)
	}
}

// isMarker reports whether an owner text is a marker of the product, such as fixedip.io/cooldown.
func isMarker(owner string) bool { return strings.HasPrefix(owner, "fixedip.io/") }

// isPod reports whether an owner text names a pod.
func isPod(owner string) bool { return strings.Contains(owner, "/") && !isMarker(owner) }

// checkPool checks the entries that a write has changed (promises 1 and 2 of docs/project/proof.md). No two pools may
// offer an address, and no entry may get another owner while a pod may have its address.
func (c *checks) checkPool(e event, by string) {
	var was ipamtypes.AllocationMap
	if before, ok := e.before.(*ciliumv2.CiliumNode); ok {
		was = before.Spec.IPAM.Pool
		for ip, entry := range was {
			c.had[[2]string{before.Name, entry.Owner}] = true
			c.claimed[[2]string{ip, entry.Owner}] = true
		}
	}
	after, ok := e.after.(*ciliumv2.CiliumNode)
	if !ok {
		return
	}
	if isProduct(by) {
		c.checkRemoved(after, was)
	}
	for ip, now := range after.Spec.IPAM.Pool {
		before, had := was[ip]
		if had && before == now || isMarker(now.Owner) {
			continue
		}
		if !had || isMarker(before.Owner) {
			for _, other := range all[*ciliumv2.CiliumNode](c.w.server, ciliumNodes) {
				if o, there := other.Spec.IPAM.Pool[ip]; there && other.Name != after.Name && !isMarker(o.Owner) {
					c.violate("unique: IP %s is offered by two pools: of node %s with owner %q, and of node %s with owner %q", ip, after.Name, now.Owner, other.Name, o.Owner)
				}
			}
		}
		if isProduct(by) && before.Owner != now.Owner && isPod(before.Owner) && isPod(now.Owner) {
			c.w.stats["slot taken over"]++
			if !c.isSlot(now.Owner) || before.Resource != now.Resource {
				c.violate("no hijack: the entry of IP %s on node %s gets owner %s in place of owner %s; only a slot may change its owner, and only to a pod of its workload", ip, after.Name, now.Owner, before.Owner)
			}
		}
		if isProduct(by) && before.Owner != now.Owner && isPod(now.Owner) {
			if had && before.Owner == "" {
				c.violate("no hijack: IP %s on node %s gets owner %s, although its pool offers it to all pods (ADR 0025)", ip, after.Name, now.Owner)
			}
			c.checkOwner(after.Name, ip, now.Owner)
		}
		if isProduct(by) && now.Owner == "" && c.w.isStrict(after.Name) {
			c.violate("strict: IP %s gets a dynamic entry on strict node %s", ip, after.Name)
		}
		if isProduct(by) && now.Owner == "" {
			c.checkDynamic(after.Name, ip)
		}
	}
}

// checkRemoved checks that no dynamic entry is removed while the agent has the address allocated. Otherwise another pod
// could get the address while the first pod runs.
func (c *checks) checkRemoved(after *ciliumv2.CiliumNode, was ipamtypes.AllocationMap) {
	m := c.w.machine(after.Name)
	if m == nil {
		return
	}
	for ip, before := range was {
		if _, exists := after.Spec.IPAM.Pool[ip]; exists || before.Owner != "" {
			continue
		}
		if has := m.allocatedTo(ip); has != "" {
			c.violate("no hijack: the dynamic entry of IP %s on node %s is removed while the agent has the IP allocated to %s", ip, after.Name, has)
		}
	}
}

// checkDynamic checks an address that gets a dynamic entry (promise 1 of docs/project/proof.md). Every pod that runs
// with the address has to run on this node. If the agent of the node is ready, it has to have the address allocated.
func (c *checks) checkDynamic(node, ip string) {
	for _, m := range c.w.machines {
		for _, user := range m.uses(ip) {
			if m.name != node || m.ipam != nil && m.ready && m.allocatedTo(ip) == "" {
				c.violate("unique: IP %s gets a dynamic entry on node %s while pod %s runs with it on node %s", ip, node, user, m.name)
			}
		}
	}
}

// checkOwner checks an address that gets a pod as its owner: no other pod has the address or can get it, and the owner does
// not run with it on another node (promise 2 of docs/project/proof.md).
func (c *checks) checkOwner(node, ip, owner string) {
	for _, m := range c.w.machines {
		for _, b := range m.sandboxes {
			switch {
			case !slices.Contains(b.ips, ip) || b.forgotten:
			case b.key != owner:
				c.violate("no hijack: IP %s on node %s gets owner %s while pod %s runs with it on node %s", ip, node, owner, b.key, m.name)
			case m.name != node:
				c.violate("no hijack: IP %s gets owner %s on node %s while that pod runs with it on node %s", ip, owner, node, m.name)
			}
		}
	}
	m := c.w.machine(node)
	if m == nil || m.ipam == nil {
		return
	}
	if has := m.allocatedTo(ip); has != "" && has != owner {
		c.violate("no hijack: IP %s on node %s gets owner %s while the agent has the IP allocated to %s", ip, node, owner, has)
	}
	if slices.Contains(m.ipam.Offered(agent.IsIPv6(ip)), ip) {
		c.violate("no hijack: IP %s on node %s gets owner %s while the agent offers the IP to all pods", ip, node, owner)
	}
}

// checkBind checks that the claim precedes the bind. It counts the pods that are bound after their entry was removed.
func (c *checks) checkBind(e event, by string) {
	pod, ok := e.after.(*corev1.Pod)
	if before, existed := e.before.(*corev1.Pod); existed && before.Spec.NodeName != "" {
		// The write is not the bind: the controller also evicts bound pods, for example a pod that has lost its entry.
		return
	}
	if !ok || !isProduct(by) || pod.Spec.NodeName == "" || pod.Annotations[identity.AnnotationEnabled] != "" {
		return
	}
	if metav1.GetControllerOfNoCopy(pod) == nil && !c.w.isStrict(pod.Spec.NodeName) {
		// The pod has no fixed address. The agent gives it the address of a dynamic entry.
		return
	}
	cn, _ := one[*ciliumv2.CiliumNode](c.w.server, ciliumNodes, pod.Spec.NodeName)
	if cn != nil {
		for _, entry := range cn.Spec.IPAM.Pool {
			if entry.Owner == keyOf(pod) {
				if metav1.GetControllerOfNoCopy(pod) == nil {
					c.w.stats["unreserved pod bound to a strict node"]++
				}
				return
			}
		}
	}
	// A scheduler whose watch is behind may rely on an entry that was released. The controller then restores the entry
	// or evicts the pod.
	if !c.had[[2]string{pod.Spec.NodeName, keyOf(pod)}] {
		c.violate("claimed: pod %s is bound to node %s by %s although the pool of that node never had an entry for the pod", keyOf(pod), pod.Spec.NodeName, by)
	}
	if c.w.isStrict(pod.Spec.NodeName) {
		c.w.stats["bound to a strict node without an entry"]++
	}
	c.w.stats["bound after its entry was removed"]++
	c.boundTooLate[pod.UID] = true
}

// started checks a sandbox that gets an address (promise 1 of docs/project/proof.md). No other pod may have the
// address, and no former pod with the same name may have it on another node.
func (c *checks) started(on *machine, pod *corev1.Pod, ip string) {
	for _, m := range c.w.machines {
		for _, b := range m.sandboxes {
			switch {
			case b.uid == pod.UID || !slices.Contains(b.ips, ip) || b.forgotten:
			case b.key != keyOf(pod):
				c.violate("unique: pod %s on node %s starts with IP %s while pod %s runs with it on node %s", keyOf(pod), on.name, ip, b.key, m.name)
			case m != on:
				c.violate("unique: pod %s starts with IP %s on node %s while its predecessor runs with it on node %s", keyOf(pod), ip, on.name, m.name)
			}
		}
	}
}

// checkFixedIP checks that no two FixedIPs name one address, unless a user has created or deleted one of them, and that the
// product deletes a FixedIP only for a reason (promises 1 and 5 of docs/project/proof.md). The product must not change the
// finalizers of other programs.
func (c *checks) checkFixedIP(e event, by string) {
	now, ok := e.after.(*v1alpha1.FixedIP)
	if before, existed := e.before.(*v1alpha1.FixedIP); existed && isProduct(by) &&
		slices.Contains(before.Finalizers, otherFinalizer) != (ok && slices.Contains(now.Finalizers, otherFinalizer)) {
		c.violate("finalizer: %s adds or removes the finalizer of another program on FixedIP %s", by, e.key())
	}
	if !ok {
		if before := e.before.(*v1alpha1.FixedIP); before.DeletionTimestamp == nil {
			c.checkDeletion(before, by)
		}
		return
	}
	if _, label := c.w.labelled(now); e.before == nil && label {
		c.w.stats["pod adopted by the selector"]++
	}
	if e.before == nil {
		c.byUser[now.UID] = by == "user"
	}
	if e.before != nil && e.before.GetDeletionTimestamp() == nil && now.DeletionTimestamp != nil {
		c.checkDeletion(now, by)
	}
	for _, ip := range now.Spec.IPs {
		for _, other := range all[*v1alpha1.FixedIP](c.w.server, fixedIPs) {
			if other.Name != now.Name && slices.Contains(other.Spec.IPs, ip) && !c.byUser[other.UID] && !c.byUser[now.UID] {
				c.violate("unique: FixedIPs %s and %s both name IP %s", now.Name, other.Name, ip)
			}
		}
	}
}

// absenceCounts is the maximum time for which the product may rely on a read that has not found a workload.
const absenceCounts = 500 * time.Millisecond

// checkDeletion checks that the product has a reason for each FixedIP whose deletion it requests. by is the writer.
func (c *checks) checkDeletion(r *v1alpha1.FixedIP, by string) {
	if !isProduct(by) {
		return
	}
	if r.Spec.Owner.Kind == replicaSets.gvk.Kind {
		c.checkSlotDeletion(r, by)
		return
	}
	set, exists := one[*appsv1.StatefulSet](c.w.server, statefulSets, r.Namespace+"/"+r.Spec.Owner.Name)
	since, included := c.included[keyOf(r)]
	failover := r.Spec.Failover
	if exists && set.Annotations[identity.AnnotationFailover] == string(v1alpha1.Reassign) {
		failover = v1alpha1.Reassign
	}
	// readAt is the earliest time at which the product may have read the workload. The product may not know later changes.
	readAt := c.w.server.serving.begun.Add(-absenceCounts)
	if exists && !included && c.workloadChanged[keyOf(set)].Before(readAt) && set.Spec.Template.Annotations[identity.AnnotationEnabled] == "" &&
		set.Annotations[identity.AnnotationWhenScaled] != string(v1alpha1.Delete) && failover != v1alpha1.Reassign {
		c.violate("durable: FixedIP %s is deleted by %s although its workload, which has no such replica, retains it", r.Name, by)
	}
	if pod, ok := one[*corev1.Pod](c.w.server, pods, keyOf(r)); ok && metav1.GetControllerOfNoCopy(pod) == nil && pod.DeletionTimestamp == nil &&
		pod.CreationTimestamp.Time.Before(readAt) && runsWithAny(pod, r.Spec.IPs) && pod.Annotations[identity.AnnotationEnabled] == "" && !exists {
		c.violate("durable: FixedIP %s is deleted by %s although its pod, which has no controller, runs with its IPs", r.Name, by)
	}
	if included && since.Before(readAt) && failover != v1alpha1.Reassign {
		c.violate("durable: FixedIP %s is deleted by %s although its workload has included the pod since %v after the start of the run", r.Name, by, since.Sub(c.w.began))
	}
}

// noteWorkload updates included and workloadChanged.
func (c *checks) noteWorkload(e event) {
	s, exists := e.after.(*appsv1.StatefulSet)
	name := e.object().GetName()
	if before, was := e.before.(*appsv1.StatefulSet); !exists {
		delete(c.workloadChanged, keyOf(e.object()))
	} else if !was || !maps.Equal(before.Annotations, s.Annotations) || *before.Spec.Replicas != *s.Spec.Replicas || !maps.Equal(before.Spec.Template.Annotations, s.Spec.Template.Annotations) {
		c.workloadChanged[keyOf(s)] = time.Now()
	}
	for i := range 10 {
		key := fmt.Sprintf("%s/%s-%d", namespace, name, i)
		in := exists && i < int(*s.Spec.Replicas) && s.Spec.Template.Annotations[identity.AnnotationEnabled] == ""
		if _, was := c.included[key]; in && !was {
			c.included[key] = time.Now()
		} else if !in {
			delete(c.included, key)
		}
	}
}
