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
)

// checks hold what happens against the invariants of the design, write by write. They share no code with
// the product but the types of its API.
type checks struct {
	w *world
	// violations are what was broken, in the order seen.
	violations []string
	// included is since when a workload has had a pod of the name, without a break. Key: namespace/name.
	included map[string]time.Time
	// said is since when a workload says what it says: its replicas, its policy, and whether it opts out. Key:
	// namespace/name of the StatefulSet. It goes with that.
	said map[string]time.Time
	// stood are the owners of entries that a pool had and has no more. Key: node and owner.
	stood map[[2]string]bool
	// bare are the pods that were bound to an entry that was gone by then. Key: their UID.
	bare map[types.UID]bool
	// byUser are the records that a person made or released. Key: their UID.
	byUser map[types.UID]bool
	// forced is when a person deleted pods by force. Key: the UID.
	forced map[types.UID]time.Time
	// lastWrite is when the product last wrote.
	lastWrite time.Time
}

func newChecks(w *world) *checks {
	return &checks{w: w, included: map[string]time.Time{}, said: map[string]time.Time{}, stood: map[[2]string]bool{}, bare: map[types.UID]bool{}, byUser: map[types.UID]bool{}, forced: map[types.UID]time.Time{}}
}

func (c *checks) violate(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	c.w.tell("!! %s", text)
	c.violations = append(c.violations, text)
}

// broken is the first violation; nil: none.
func (c *checks) broken() error {
	if len(c.violations) == 0 {
		return nil
	}
	return errors.New(c.violations[0])
}

func (c *checks) released(r *v1alpha1.FixedIP) { c.byUser[r.UID] = true }

// check looks at one write.
func (c *checks) check(k *kind, e event, by string) {
	if isProduct(by) && k != leases {
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
	case pods:
		c.checkBind(e, by)
	}
}

// mark tells whether an owner in a pool is a mark of the product's, which offers the address to nobody.
func mark(owner string) bool { return strings.HasPrefix(owner, "fixedip.io/") }

// isPod tells whether an owner in a pool is a pod.
func isPod(owner string) bool { return strings.Contains(owner, "/") && !mark(owner) }

// checkPool is invariants 1 and 2 for the entries that a write has changed.
func (c *checks) checkPool(e event, by string) {
	var was ipamtypes.AllocationMap
	if before, ok := e.before.(*ciliumv2.CiliumNode); ok {
		was = before.Spec.IPAM.Pool
		for _, entry := range was {
			c.stood[[2]string{before.Name, entry.Owner}] = true
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
		before, stood := was[ip]
		if stood && before == now || mark(now.Owner) {
			continue
		}
		if !stood || mark(before.Owner) {
			for _, other := range all[*ciliumv2.CiliumNode](c.w.server, ciliumNodes) {
				if o, there := other.Spec.IPAM.Pool[ip]; there && other.Name != after.Name && !mark(o.Owner) {
					c.violate("unique: %s is offered by the pools of %s (%q) and %s (%q)", ip, after.Name, now.Owner, other.Name, o.Owner)
				}
			}
		}
		if isProduct(by) && before.Owner != now.Owner && isPod(now.Owner) {
			c.checkOwner(after.Name, ip, now.Owner, stood && before.Owner == "")
		}
		if isProduct(by) && now.Owner == "" {
			c.checkDynamic(after.Name, ip)
		}
	}
}

// checkTaken is that no dynamic entry goes from under a pod: it would be somebody else's while that runs.
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

// checkDynamic is invariant 1 for an address that anybody may have from now on: whoever runs with it, the
// agent knows.
func (c *checks) checkDynamic(node, ip string) {
	for _, m := range c.w.machines {
		for _, user := range m.uses(ip) {
			if m.name != node || m.ipam != nil && m.ready && m.allocatedTo(ip) == "" {
				c.violate("unique: %s becomes a dynamic entry of %s, and %s runs with it on %s", ip, node, user, m.name)
			}
		}
	}
}

// checkOwner is invariant 2: nobody else has an address, or can come to have it, that is given to an owner.
// Where a dynamic entry becomes that of the pod that runs with it, the pod may go just then: whoever gave it
// the entry looks once more, and takes it back. Until then others may come to have it, as started tells.
func (c *checks) checkOwner(node, ip, owner string, adopted bool) {
	for _, m := range c.w.machines {
		for uid, b := range m.boxes {
			switch {
			case b.ip != ip:
			case b.key != owner:
				c.violate("no hijack: %s on %s is given to %s while pod %s runs with it on %s", ip, node, owner, b.key, m.name)
			case m.name != node && !c.excused(m, uid, ip):
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
	if slices.Contains(m.ipam.Offered(), ip) && adopted {
		c.w.stats["adopted as its pod went"]++
	} else if slices.Contains(m.ipam.Offered(), ip) {
		c.violate("no hijack: %s on %s is given to %s while the agent offers it to anybody", ip, node, owner)
	}
}

// checkBind is that the claim comes before the bind. It counts the pods that rely on an entry that is gone by then.
func (c *checks) checkBind(e event, by string) {
	pod, ok := e.after.(*corev1.Pod)
	if !ok || !isProduct(by) || pod.Spec.NodeName == "" || pod.Annotations[identity.AnnotationEnabled] != "" {
		return
	}
	cn, _ := one[*ciliumv2.CiliumNode](c.w.server, ciliumNodes, pod.Spec.NodeName)
	if cn != nil {
		for _, entry := range cn.Spec.IPAM.Pool {
			if entry.Owner == keyOf(pod) {
				return
			}
		}
	}
	// A scheduler whose watch is behind takes what stood for what stands. Whoever gave that back looks after it.
	if !c.stood[[2]string{pod.Spec.NodeName, keyOf(pod)}] {
		c.violate("claimed: pod %s is bound to %s by %s, whose pool never had anything for it", keyOf(pod), pod.Spec.NodeName, by)
	}
	c.w.stats["bound to an entry that was gone"]++
	c.bare[pod.UID] = true
}

// started is told of every sandbox that gets an address: invariant 1 where it counts.
func (c *checks) started(on *machine, pod *corev1.Pod, ip string) {
	for _, m := range c.w.machines {
		for _, b := range m.boxes {
			switch {
			case b.ip != ip || b.uid == pod.UID:
			case b.key != keyOf(pod):
				c.violate("unique: pod %s on %s runs with %s, and so does pod %s on %s", keyOf(pod), on.name, ip, b.key, m.name)
			case m != on && !c.excused(m, b.uid, ip):
				c.violate("unique: pod %s runs with %s on %s, and its predecessor still does on %s", keyOf(pod), ip, on.name, m.name)
			}
		}
	}
}

// excused tells whether nobody could know that a pod runs on: a person who deletes one by force says that it
// does not, and its agent has had the time to say otherwise, and does not.
func (c *checks) excused(m *machine, uid types.UID, ip string) bool {
	at, forced := c.forced[uid]
	if !forced {
		return false
	}
	cn, ok := one[*ciliumv2.CiliumNode](c.w.server, ciliumNodes, m.name)
	listed := false
	if ok {
		_, listed = cn.Status.IPAM.Used[ip]
	}
	// A second is what times of the API are rounded to.
	return !listed && time.Since(at) > agentSilence-time.Second
}

// checkRecord is invariant 1 for FixedIPs, and invariant 5: none goes but for a reason.
func (c *checks) checkRecord(e event, by string) {
	now, ok := e.after.(*v1alpha1.FixedIP)
	if !ok {
		if before := e.before.(*v1alpha1.FixedIP); before.DeletionTimestamp == nil {
			c.checkGoing(before, by)
		}
		return
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

// absenceCounts is how long the product remembers that a workload was not there.
const absenceCounts = 500 * time.Millisecond

// checkGoing is told of every FixedIP that is asked to go.
func (c *checks) checkGoing(r *v1alpha1.FixedIP, by string) {
	if !isProduct(by) {
		return
	}
	set, exists := one[*appsv1.StatefulSet](c.w.server, statefulSets, r.Namespace+"/"+r.Spec.Owner.Name)
	since, included := c.included[keyOf(r)]
	failover := r.Spec.Failover
	if exists && set.Annotations[identity.AnnotationFailover] == string(v1alpha1.Reassign) {
		failover = v1alpha1.Reassign
	}
	// The API server is asked before: since then the workload may have come.
	asked := c.w.server.serving.begun.Add(-absenceCounts)
	if exists && !included && c.said[keyOf(set)].Before(asked) && set.Spec.Template.Annotations[identity.AnnotationEnabled] == "" &&
		set.Annotations[identity.AnnotationWhenScaled] != string(v1alpha1.Delete) && failover != v1alpha1.Reassign {
		c.violate("durable: FixedIP %s is deleted by %s, and its workload, which has no such replica, retains it", r.Name, by)
	}
	if pod, ok := one[*corev1.Pod](c.w.server, pods, keyOf(r)); ok && metav1.GetControllerOfNoCopy(pod) == nil && pod.DeletionTimestamp == nil &&
		pod.CreationTimestamp.Time.Before(asked) && slices.Contains(r.Spec.IPs, pod.Status.PodIP) && pod.Annotations[identity.AnnotationEnabled] == "" && !exists {
		c.violate("durable: FixedIP %s is deleted by %s, and a person has kept its pod, which runs with it", r.Name, by)
	}
	if included && since.Before(asked) && failover != v1alpha1.Reassign {
		c.violate("durable: FixedIP %s is deleted by %s, and its workload has had it since %v", r.Name, by, since.Sub(c.w.began))
	}
}

// noteWorkload keeps since when each name is a workload's, and since when that says what it says.
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

// atRest looks at the whole once nothing goes on any more: all have what they should, and nothing is left
// of what is gone (invariants 3, 4 and 5).
func (c *checks) atRest() {
	w := c.w
	records := map[string]*v1alpha1.FixedIP{}
	for _, r := range all[*v1alpha1.FixedIP](w.server, fixedIPs) {
		records[r.Namespace+"/"+r.Spec.PodName] = r
		// One that a person releases goes when its pod does.
		if _, pod := one[*corev1.Pod](w.server, pods, r.Namespace+"/"+r.Spec.PodName); r.DeletionTimestamp != nil && !pod {
			c.violate("no leak: FixedIP %s is being deleted for ever", r.Name)
		}
	}
	for _, pod := range all[*corev1.Pod](w.server, pods) {
		c.podAtRest(pod, records[keyOf(pod)])
	}
	for _, cn := range all[*ciliumv2.CiliumNode](w.server, ciliumNodes) {
		for ip, e := range cn.Spec.IPAM.Pool {
			switch {
			case e.Owner == "fixedip.io/released" && c.inUse(ip):
				// One that keeps no address has got it from an agent that did not know yet. It rests until
				// the pod is gone.
			case e.Owner == "fixedip.io/arriving" && c.onItsWay(records[e.Resource], ip, cn.Name):
			case mark(e.Owner) && e.Owner != "fixedip.io/away":
				c.violate("no leak: %s on %s is still marked %s %s", ip, cn.Name, e.Owner, e.Resource)
			case isPod(e.Owner):
				r := records[e.Owner]
				pod, exists := one[*corev1.Pod](w.server, pods, e.Owner)
				// One that nobody would make again, or to which a person has promised another address meanwhile, runs
				// on with what it has: see podAtRest.
				runs := exists && pod.Status.PodIP == ip && (metav1.GetControllerOfNoCopy(pod) == nil || r != nil && c.byUser[r.UID])
				if r == nil && !exists && !c.mayClaim(e.Owner) {
					c.violate("no leak: %s on %s is still kept for %s (%s), of which there is nothing", ip, cn.Name, e.Owner, e.Resource)
				} else if r != nil && len(r.Spec.IPs) > 0 && !slices.Contains(r.Spec.IPs, ip) && !runs {
					c.violate("no leak: %s on %s is still kept for %s, whose FixedIP has %v", ip, cn.Name, e.Owner, r.Spec.IPs)
				}
			}
		}
		for ip, state := range cn.Status.IPAM.ReleaseIPs {
			c.violate("no leak: the release handshake of %s on %s is at %s", ip, cn.Name, state)
		}
	}
	for key, r := range records {
		_, pod := one[*corev1.Pod](w.server, pods, key)
		set, exists := one[*appsv1.StatefulSet](w.server, statefulSets, r.Namespace+"/"+r.Spec.Owner.Name)
		gone := !exists && r.Spec.Owner.UID != "" && r.Spec.Reclaim.WhenDeleted == v1alpha1.Delete
		// One whose workload has opted out is treated as if that was deleted.
		surplus := exists && set.Spec.Template.Annotations[identity.AnnotationEnabled] == "" && int(*set.Spec.Replicas) <= ordinal(r.Spec.PodName) && r.Spec.Reclaim.WhenScaled == v1alpha1.Delete
		if !pod && (gone || surplus) {
			c.violate("no leak: FixedIP %s stands, and nobody is to have it", r.Name)
		}
	}
}

// onItsWay tells whether the home of an address that a FixedIP keeps says that it lives on a node, where it was
// announced: the pod went before the move was over, and the next of its name brings that to its end.
func (c *checks) onItsWay(r *v1alpha1.FixedIP, ip, node string) bool {
	if r == nil || !slices.Contains(r.Spec.IPs, ip) {
		return false
	}
	if _, pod := one[*corev1.Pod](c.w.server, pods, r.Namespace+"/"+r.Spec.PodName); pod {
		return false
	}
	return slices.ContainsFunc(all[*ciliumv2.CiliumNode](c.w.server, ciliumNodes), func(home *ciliumv2.CiliumNode) bool {
		e := home.Spec.IPAM.Pool[ip]
		return e.Owner == "fixedip.io/away" && e.Resource == node+"/"+r.Namespace+"/"+r.Spec.PodName
	})
}

// inUse tells whether a pod runs with an address.
func (c *checks) inUse(ip string) bool {
	return slices.ContainsFunc(c.w.machines, func(m *machine) bool { return len(m.uses(ip)) > 0 })
}

// mayClaim tells whether an entry without a FixedIP stands for a pod that may come: one that was scaled
// away, of a workload that retains what is.
func (c *checks) mayClaim(owner string) bool {
	name := owner[strings.Index(owner, "/")+1:]
	set, ok := one[*appsv1.StatefulSet](c.w.server, statefulSets, namespace+"/"+name[:1])
	return ok && set.Annotations[identity.AnnotationWhenScaled] != string(v1alpha1.Delete)
}

// pinnedByOther tells whether a person has made a FixedIP of what a pod has: one of the two has to go, and
// nobody else can say which.
func (c *checks) pinnedByOther(pod *corev1.Pod) bool {
	return slices.ContainsFunc(all[*v1alpha1.FixedIP](c.w.server, fixedIPs), func(r *v1alpha1.FixedIP) bool {
		return c.byUser[r.UID] && keyOf(r) != keyOf(pod) && slices.Contains(r.Spec.IPs, pod.Status.PodIP)
	})
}

// hasOther tells whether another pod than that of the key runs with an address.
func (c *checks) hasOther(ip, key string) bool {
	return slices.ContainsFunc(c.w.machines, func(m *machine) bool {
		return slices.ContainsFunc(m.uses(ip), func(user string) bool { return user != key })
	})
}

// full tells whether the pool of a node has as many dynamic entries as it may, half of its subnet, or as many entries
// as there are addresses. Who places ordinary pods does not know of that.
func (c *checks) full(node string) bool {
	cn, ok := one[*ciliumv2.CiliumNode](c.w.server, ciliumNodes, node)
	dynamic := 0
	if ok {
		for _, e := range cn.Spec.IPAM.Pool {
			if e.Owner == "" {
				dynamic++
			}
		}
	}
	return dynamic >= 7 || ok && len(cn.Spec.IPAM.Pool) >= 14
}

// podAtRest is invariant 3 for one pod.
func (c *checks) podAtRest(pod *corev1.Pod, r *v1alpha1.FixedIP) {
	key := keyOf(pod)
	if pod.DeletionTimestamp != nil {
		c.violate("no end: pod %s is being deleted for ever", key)
		return
	}
	fixed := metav1.GetControllerOfNoCopy(pod) != nil && pod.Annotations[identity.AnnotationEnabled] == ""
	if pod.Spec.NodeName == "" {
		if !c.w.mayWait(pod) {
			c.violate("no end: pod %s is not placed", key)
		}
		return
	}
	if pod.Status.PodIP == "" && (!fixed || c.bare[pod.UID]) && c.full(pod.Spec.NodeName) {
		return
	}
	if pod.Status.PodIP == "" {
		c.violate("no end: pod %s has no address on %s", key, pod.Spec.NodeName)
		return
	}
	if !fixed {
		return
	}
	if r == nil && c.pinnedByOther(pod) {
		return
	}
	if r == nil {
		c.violate("sticky: pod %s runs with %s, and no FixedIP keeps that", key, pod.Status.PodIP)
		return
	}
	if r.DeletionTimestamp != nil {
		// A person has released it, and it goes when the pod does.
		return
	}
	if c.byUser[r.UID] && slices.ContainsFunc(r.Spec.IPs, func(ip string) bool { return c.hasOther(ip, key) }) {
		// A person has promised it what another pod has: one of the two has to go, and nobody else can say which.
		return
	}
	if !slices.Contains(r.Spec.IPs, pod.Status.PodIP) {
		c.violate("sticky: pod %s runs with %s, and %v is kept for it", key, pod.Status.PodIP, r.Spec.IPs)
	}
	cn, _ := one[*ciliumv2.CiliumNode](c.w.server, ciliumNodes, pod.Spec.NodeName)
	if cn == nil || cn.Spec.IPAM.Pool[pod.Status.PodIP].Owner != key {
		c.violate("durable: pod %s runs with %s, and the pool of %s does not have it for it", key, pod.Status.PodIP, pod.Spec.NodeName)
	}
}
