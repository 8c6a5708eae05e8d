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
	// included is when a workload began to want a pod of the name, without a break since then. Key: namespace/name of the
	// pod.
	included map[string]time.Time
	// said is when the replicas, the annotations or the annotations of the template of a workload last changed. Key:
	// namespace/name of the StatefulSet or ReplicaSet. It is removed with the workload.
	said map[string]time.Time
	// had contains the owners of entries that pools have had. Key: node and owner.
	had map[[2]string]bool
	// boundTooLate contains the pods that were bound for an entry that was gone by then. Key: the UID.
	boundTooLate map[types.UID]bool
	// byUser contains the FixedIPs that a user made or released. Key: the UID.
	byUser map[types.UID]bool
	// lastUse is when a pod last released an address.
	lastUse map[running]time.Time
	// claimedTooEarly contains the owners that got an entry while another pod had the address. The entry has to be released.
	claimedTooEarly map[running]bool
	// lastWrite is when the product last wrote.
	lastWrite time.Time
}

// running is the use of an address on a node by a pod. owner is namespace/name, as in an entry.
type running struct{ node, ip, owner string }

func newChecks(w *world) *checks {
	return &checks{w: w, included: map[string]time.Time{}, said: map[string]time.Time{}, had: map[[2]string]bool{}, boundTooLate: map[types.UID]bool{}, byUser: map[types.UID]bool{},
		lastUse: map[running]time.Time{}, claimedTooEarly: map[running]bool{}}
}

func (c *checks) violate(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	c.w.logf("!! %s", text)
	c.violations = append(c.violations, text)
}

// broken returns the first violation as an error; nil: there is none.
func (c *checks) broken() error {
	if len(c.violations) == 0 {
		return nil
	}
	return errors.New(c.violations[0])
}

func (c *checks) released(r *v1alpha1.FixedIP) { c.byUser[r.UID] = true }

// check checks one write. by is the writer.
func (c *checks) check(k *kind, e event, by string) {
	if isProduct(by) {
		c.lastWrite = time.Now()
		c.w.asked = 0
	}
	switch k {
	case ciliumNodes:
		c.checkPool(e, by)
	case fixedIPs:
		c.checkRecord(e, by)
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

// mark reports whether an owner text is one of the product's own, with which no pod gets the address.
func mark(owner string) bool { return strings.HasPrefix(owner, "fixedip.io/") }

// isPod reports whether an owner text names a pod.
func isPod(owner string) bool { return strings.Contains(owner, "/") && !mark(owner) }

// checkPool checks invariants 1 and 2 for the entries that a write has changed.
func (c *checks) checkPool(e event, by string) {
	var was ipamtypes.AllocationMap
	if before, ok := e.before.(*ciliumv2.CiliumNode); ok {
		was = before.Spec.IPAM.Pool
		for _, entry := range was {
			c.had[[2]string{before.Name, entry.Owner}] = true
		}
	}
	after, ok := e.after.(*ciliumv2.CiliumNode)
	if !ok {
		return
	}
	if isProduct(by) {
		c.checkTaken(after, was)
	}
	for ip, now := range after.Spec.IPAM.Pool {
		before, had := was[ip]
		if had && before == now || mark(now.Owner) {
			continue
		}
		if !had || mark(before.Owner) {
			for _, other := range all[*ciliumv2.CiliumNode](c.w.server, ciliumNodes) {
				if o, there := other.Spec.IPAM.Pool[ip]; there && other.Name != after.Name && !mark(o.Owner) {
					c.violate("unique: %s is offered by the pools of %s (%q) and %s (%q)", ip, after.Name, now.Owner, other.Name, o.Owner)
				}
			}
		}
		if isProduct(by) && before.Owner != now.Owner && isPod(before.Owner) && isPod(now.Owner) {
			c.w.stats["slot taken over"]++
			if !c.isSlot(now.Owner) || before.Resource != now.Resource {
				c.violate("no hijack: %s on %s is given to %s, and was %s's", ip, after.Name, now.Owner, before.Owner)
			}
		}
		if isProduct(by) && before.Owner != now.Owner && isPod(now.Owner) {
			c.checkOwner(after.Name, ip, now.Owner, had && before.Owner == "")
		}
		if isProduct(by) && now.Owner == "" && c.w.isStrict(after.Name) {
			c.violate("strict: %s becomes a dynamic entry of the strict node %s", ip, after.Name)
		}
		if isProduct(by) && now.Owner == "" {
			c.checkDynamic(after.Name, ip)
		}
	}
}

// checkTaken checks that no dynamic entry is removed while the agent has its address allocated: another pod could get the
// address while the first one runs.
func (c *checks) checkTaken(after *ciliumv2.CiliumNode, was ipamtypes.AllocationMap) {
	m := c.w.machine(after.Name)
	if m == nil {
		return
	}
	for ip, before := range was {
		if _, stands := after.Spec.IPAM.Pool[ip]; stands || before.Owner != "" {
			continue
		}
		if has := m.allocatedTo(ip); has != "" {
			c.violate("no hijack: %s is taken out of the pool of %s while the agent has it allocated to %s", ip, after.Name, has)
		}
	}
}

// checkDynamic checks invariant 1 for an address that any pod may get from now on: every pod that runs with it runs on this
// node, and a ready agent has it allocated.
func (c *checks) checkDynamic(node, ip string) {
	for _, m := range c.w.machines {
		for _, user := range m.uses(ip) {
			if m.name != node || m.ipam != nil && m.ready && m.allocatedTo(ip) == "" {
				c.violate("unique: %s becomes a dynamic entry of %s, and %s runs with it on %s", ip, node, user, m.name)
			}
		}
	}
}

// checkOwner checks invariant 2 for an address that gets a pod as its owner: no other pod has the address or can get it.
// adopted is true if the entry was dynamic. The pod that runs with such an address may go before the write is carried out,
// and another pod of the node may get the address: the writer confirms the write and undoes it, which takenBack checks.
func (c *checks) checkOwner(node, ip, owner string, adopted bool) {
	r := running{node, ip, owner}
	if went, ran := c.lastUse[r]; adopted && ran && !went.Before(c.w.server.serving.begun) && c.takenOver(r) {
		c.w.stats["adopted as another pod had it"]++
		c.claimedTooEarly[r] = true
		return
	}
	for _, m := range c.w.machines {
		for _, b := range m.sandboxes {
			switch {
			case !slices.Contains(b.ips, ip) || b.forgotten:
			case b.key != owner:
				c.violate("no hijack: %s on %s is given to %s while pod %s runs with it on %s", ip, node, owner, b.key, m.name)
			case m.name != node:
				c.violate("no hijack: %s is given to %s on %s while it runs with it on %s", ip, owner, node, m.name)
			}
		}
	}
	m := c.w.machine(node)
	if m == nil || m.ipam == nil {
		return
	}
	if has := m.allocatedTo(ip); has != "" && has != owner {
		c.violate("no hijack: %s on %s is given to %s while the agent has it allocated to %s", ip, node, owner, has)
	}
	offered := slices.Contains(m.ipam.Offered(agent.IsIPv6(ip)), ip)
	if offered && adopted {
		c.w.stats["adopted as its pod went"]++
	} else if offered {
		c.violate("no hijack: %s on %s is given to %s while the agent offers it to anybody", ip, node, owner)
	}
}

// takenOver reports whether other pods have the address of a pod that went, all of them on that pod's node.
func (c *checks) takenOver(r running) bool {
	over := false
	for _, m := range c.w.machines {
		for _, user := range m.uses(r.ip) {
			if m.name != r.node || user == r.owner {
				return false
			}
			over = true
		}
	}
	return over
}

// letGo notes that the pod of a sandbox has released its addresses. It is called for every sandbox that ends.
func (c *checks) letGo(on *machine, b *sandbox) {
	for _, ip := range b.ips {
		c.lastUse[running{on.name, ip, b.key}] = time.Now()
	}
}

// checkBind checks that the claim precedes the bind. It counts the pods that are bound for an entry that is gone by then.
func (c *checks) checkBind(e event, by string) {
	pod, ok := e.after.(*corev1.Pod)
	if !ok || !isProduct(by) || pod.Spec.NodeName == "" || pod.Annotations[identity.AnnotationEnabled] != "" {
		return
	}
	if metav1.GetControllerOfNoCopy(pod) == nil && !c.w.isStrict(pod.Spec.NodeName) {
		// The pod has no fixed address and gets a dynamic entry.
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
	// A scheduler whose watch is behind may rely on a former entry. The controller that released the entry repairs that.
	if !c.had[[2]string{pod.Spec.NodeName, keyOf(pod)}] {
		c.violate("claimed: pod %s is bound to %s by %s, whose pool never had anything for it", keyOf(pod), pod.Spec.NodeName, by)
	}
	if c.w.isStrict(pod.Spec.NodeName) {
		c.w.stats["bound to a strict node without an entry"]++
	}
	c.w.stats["bound to an entry that was gone"]++
	c.boundTooLate[pod.UID] = true
}

// started checks invariant 1 for every sandbox that gets an address: no other pod has the address, and no former pod of the
// name has it on another node.
func (c *checks) started(on *machine, pod *corev1.Pod, ip string) {
	for _, m := range c.w.machines {
		for _, b := range m.sandboxes {
			switch {
			case b.uid == pod.UID || !slices.Contains(b.ips, ip) || b.forgotten:
			case b.key != keyOf(pod):
				c.violate("unique: pod %s on %s runs with %s, and so does pod %s on %s", keyOf(pod), on.name, ip, b.key, m.name)
			case m != on:
				c.violate("unique: pod %s runs with %s on %s, and its predecessor still does on %s", keyOf(pod), ip, on.name, m.name)
			}
		}
	}
}

// checkRecord checks invariant 1 for FixedIPs, and invariant 5: the product deletes a FixedIP only for a reason.
func (c *checks) checkRecord(e event, by string) {
	now, ok := e.after.(*v1alpha1.FixedIP)
	if !ok {
		if before := e.before.(*v1alpha1.FixedIP); before.DeletionTimestamp == nil {
			c.checkGoing(before, by)
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
		c.checkGoing(now, by)
	}
	for _, ip := range now.Spec.IPs {
		for _, other := range all[*v1alpha1.FixedIP](c.w.server, fixedIPs) {
			if other.Name != now.Name && slices.Contains(other.Spec.IPs, ip) && !c.byUser[other.UID] && !c.byUser[now.UID] {
				c.violate("unique: FixedIPs %s and %s both hold %s", now.Name, other.Name, ip)
			}
		}
	}
}

// absenceCounts is how long the product may rely on having read that a workload does not exist.
const absenceCounts = 500 * time.Millisecond

// checkGoing checks that the product has a reason for each FixedIP whose deletion it requests. by is the writer.
func (c *checks) checkGoing(r *v1alpha1.FixedIP, by string) {
	if !isProduct(by) {
		return
	}
	if r.Spec.Owner.Kind == replicaSets.gvk.Kind {
		c.checkSlotGoing(r, by)
		return
	}
	set, exists := one[*appsv1.StatefulSet](c.w.server, statefulSets, r.Namespace+"/"+r.Spec.Owner.Name)
	since, included := c.included[keyOf(r)]
	failover := r.Spec.Failover
	if exists && set.Annotations[identity.AnnotationFailover] == string(v1alpha1.Reassign) {
		failover = v1alpha1.Reassign
	}
	// The product read from the API server at this time at the earliest. The workload may have come since then.
	asked := c.w.server.serving.begun.Add(-absenceCounts)
	if exists && !included && c.said[keyOf(set)].Before(asked) && set.Spec.Template.Annotations[identity.AnnotationEnabled] == "" &&
		set.Annotations[identity.AnnotationWhenScaled] != string(v1alpha1.Delete) && failover != v1alpha1.Reassign {
		c.violate("durable: FixedIP %s is deleted by %s, and its workload, which has no such replica, retains it", r.Name, by)
	}
	if pod, ok := one[*corev1.Pod](c.w.server, pods, keyOf(r)); ok && metav1.GetControllerOfNoCopy(pod) == nil && pod.DeletionTimestamp == nil &&
		pod.CreationTimestamp.Time.Before(asked) && runsWithAny(pod, r.Spec.IPs) && pod.Annotations[identity.AnnotationEnabled] == "" && !exists {
		c.violate("durable: FixedIP %s is deleted by %s, and a person has kept its pod, which runs with it", r.Name, by)
	}
	if included && since.Before(asked) && failover != v1alpha1.Reassign {
		c.violate("durable: FixedIP %s is deleted by %s, and its workload has had it since %v", r.Name, by, since.Sub(c.w.began))
	}
}

// noteWorkload updates included and said.
func (c *checks) noteWorkload(e event) {
	s, exists := e.after.(*appsv1.StatefulSet)
	name := e.object().GetName()
	if before, was := e.before.(*appsv1.StatefulSet); !exists {
		delete(c.said, keyOf(e.object()))
	} else if !was || !maps.Equal(before.Annotations, s.Annotations) || *before.Spec.Replicas != *s.Spec.Replicas || !maps.Equal(before.Spec.Template.Annotations, s.Spec.Template.Annotations) {
		c.said[keyOf(s)] = time.Now()
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
