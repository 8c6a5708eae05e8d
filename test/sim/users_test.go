// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/request"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

const (
	maxSets     = 3
	maxMachines = 4
	maxJobs     = 4
	// otherFinalizer is the finalizer of another program, which users add to FixedIPs. That program removes it if a FixedIP is
	// being deleted.
	otherFinalizer = "example.com/hold"
)

// userActions returns the possible actions of users. stats counts them by the part of the name before the colon.
func (w *world) userActions() []action {
	var d []action
	add := func(name string, do func()) { d = append(d, action{name, do}) }
	sets := all[*appsv1.StatefulSet](w.server, statefulSets)
	for _, name := range []string{"a", "b", "c"}[:maxSets] {
		if !slices.ContainsFunc(sets, func(s *appsv1.StatefulSet) bool { return s.Name == name }) {
			add("create: StatefulSet "+name, func() { w.makeSet(name) })
		}
	}
	for _, s := range sets {
		edit := func(f func(*appsv1.StatefulSet)) func() {
			return func() { change(w.server, statefulSets, keyOf(s), "user", f) }
		}
		add("delete: StatefulSet "+s.Name, func() { _ = w.server.remove(statefulSets, keyOf(s), nil, true, "user") })
		add("orphan: StatefulSet "+s.Name, func() { w.orphan(s) })
		add("scale: StatefulSet "+s.Name, edit(func(s *appsv1.StatefulSet) { s.Spec.Replicas = ptr.To(int32(w.choose(1 + w.maxPods(s.Name)))) }))
		add("roll: StatefulSet "+s.Name, edit(func(s *appsv1.StatefulSet) {
			w.rolls++
			s.Spec.Template.Labels = map[string]string{templateHash: fmt.Sprint(w.rolls)}
		}))
		add("edit: policy of StatefulSet "+s.Name, edit(func(s *appsv1.StatefulSet) { s.Annotations = w.policy() }))
		add("opt out: StatefulSet "+s.Name, edit(w.optOut))
	}
	d = append(d, w.replicaSetUserActions()...)
	d = append(d, w.endpointUserActions()...)
	d = append(d, w.volumeUserActions()...)
	jobs := 0
	for _, pod := range all[*corev1.Pod](w.server, pods) {
		if metav1.GetControllerOfNoCopy(pod) == nil {
			jobs++
			if pod.DeletionTimestamp == nil {
				add("end job: pod "+pod.Name, func() { w.deletePod(pod, "user") })
			}
			continue
		}
		if pod.DeletionTimestamp == nil {
			add("delete pod: "+pod.Name, func() { w.deletePod(pod, "user") })
		}
		add("force-delete pod: "+pod.Name, func() { w.forceDelete(pod) })
	}
	if jobs < maxJobs {
		add("start job: a bare pod", w.makeJob)
	}
	for _, r := range all[*v1alpha1.FixedIP](w.server, fixedIPs) {
		if r.DeletionTimestamp == nil {
			add("release: FixedIP "+r.Name, func() {
				w.released(r)
				_ = w.server.remove(fixedIPs, keyOf(r), nil, false, "user")
			})
			if pod, ok := one[*corev1.Pod](w.server, pods, r.Namespace+"/"+r.Spec.PodName); ok && pod.DeletionTimestamp == nil {
				// The next pod with that name may be bound to an entry that is being released.
				add("release behind the scheduler: FixedIP "+r.Name, func() {
					w.blind()
					w.released(r)
					_ = w.server.remove(fixedIPs, keyOf(r), nil, false, "user")
					w.deletePod(pod, "user")
				})
			}
			add("edit FixedIP: "+r.Name, func() {
				change(w.server, fixedIPs, keyOf(r), "user", func(r *v1alpha1.FixedIP) {
					if !controllerutil.RemoveFinalizer(r, otherFinalizer) {
						controllerutil.AddFinalizer(r, otherFinalizer)
					}
				})
				change(w.server, fixedIPs, keyOf(r), "user", func(r *v1alpha1.FixedIP) { r.Labels = map[string]string{"edited": fmt.Sprint(w.choose(100))} })
			})
		}
	}
	add("pin: FixedIP", w.pin)
	for _, n := range all[*corev1.Node](w.server, nodes) {
		add("cordon: node "+n.Name, func() {
			change(w.server, nodes, n.Name, "user", func(n *corev1.Node) { n.Spec.Unschedulable = !n.Spec.Unschedulable })
		})
	}
	for _, cn := range all[*ciliumv2.CiliumNode](w.server, ciliumNodes) {
		add("foreign write: CiliumNode "+cn.Name, func() {
			change(w.server, ciliumNodes, cn.Name, "user", func(cn *ciliumv2.CiliumNode) { cn.Labels = map[string]string{"x": fmt.Sprint(w.choose(100))} })
		})
		add("hand-written entry: CiliumNode "+cn.Name, func() { w.writeEntry(cn.Name) })
		add("kubectl writes new managed fields: CiliumNode "+cn.Name, func() {
			change(w.server, ciliumNodes, cn.Name, "user", func(cn *ciliumv2.CiliumNode) {
				cn.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl", Operation: metav1.ManagedFieldsOperationApply}}
			})
		})
	}
	return d
}

// optOut makes the next pods of a workload opt out, or in again.
func (w *world) optOut(s *appsv1.StatefulSet) {
	w.rolls++
	s.Spec.Template.Labels = map[string]string{templateHash: fmt.Sprint(w.rolls)}
	if s.Spec.Template.Annotations == nil {
		s.Spec.Template.Annotations = map[string]string{identity.AnnotationEnabled: "false"}
	} else {
		s.Spec.Template.Annotations = nil
	}
}

// hasUnreportedIP reports whether a pod with a controller runs with an address that its agent has not reported yet.
func (w *world) hasUnreportedIP(pod *corev1.Pod) bool {
	m := w.machine(pod.Spec.NodeName)
	cn, ok := one[*ciliumv2.CiliumNode](w.server, ciliumNodes, pod.Spec.NodeName)
	if m == nil || !ok || metav1.GetControllerOfNoCopy(pod) == nil {
		return false
	}
	sandbox := m.sandboxes[pod.UID]
	if sandbox == nil {
		return false
	}
	return slices.ContainsFunc(sandbox.ips, func(ip string) bool { return cn.Status.IPAM.Used[ip].Owner == "" })
}

// movedFrom returns the home node of an address of the given pod that was moved to the node of that pod; nil if no address of
// the pod was moved to that node.
func (w *world) movedFrom(pod *corev1.Pod) *machine {
	for _, m := range w.machines {
		cn, ok := one[*ciliumv2.CiliumNode](w.server, ciliumNodes, m.name)
		if !ok {
			continue
		}
		for _, e := range ciliumpool.FromCiliumNode(cn).Entries {
			if e.Kind == pool.Moved && e.Node() == pod.Spec.NodeName && e.Pod() == keyOf(pod) {
				return m
			}
		}
	}
	return nil
}

// blind stalls the watches of CiliumNodes and FixedIPs in all schedulers.
func (w *world) blind() {
	for _, s := range w.schedulers {
		for _, i := range s.informers {
			i.stalled = i.stalled || i.of == ciliumNodes || i.of == fixedIPs
		}
	}
}

// policy draws the annotations of a workload: retention, TTL and failover.
func (w *world) policy() map[string]string {
	a := map[string]string{}
	pick := func(key string, words ...string) {
		if word := words[w.choose(len(words))]; word != "" {
			a[key] = word
		}
	}
	pick(identity.AnnotationWhenScaled, "", "Delete")
	pick(identity.AnnotationWhenDeleted, "", "", "Retain")
	pick(identity.AnnotationTTL, "", "", "1m")
	pick(identity.AnnotationFailover, "", "Migrate", "Reassign")
	return a
}

// maxPods returns the maximum number of replicas of a StatefulSet. The maximum of StatefulSet c is large enough that nodes run
// out of addresses that no pod has had. It is small enough that all pods get an address at rest, including the pods of the
// ReplicaSet and the adopted pods.
func (w *world) maxPods(name string) int {
	if name != "c" {
		return 3
	}
	count := 8
	if w.setup.slots {
		count -= 3
	}
	if w.setup.adoption {
		count -= 3
	}
	return count
}

func (w *world) makeSet(name string) {
	s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: w.policy()}}
	s.Spec.Replicas = ptr.To(int32(1 + w.choose(w.maxPods(name))))
	s.Spec.Template.Labels = map[string]string{templateHash: "0"}
	if w.choose(4) == 3 {
		if a := w.someAddress(); a != "" {
			s.Annotations[request.AnnotationIPs] = a
			s.Spec.Replicas = ptr.To[int32](1)
		}
	}
	w.server.mustCreate(statefulSets, s, "user")
}

// orphan deletes a workload and removes the owner reference of its bound pods, which become bare pods. It deletes the pods
// that are not bound, because the scheduler would place them as bare pods.
func (w *world) orphan(s *appsv1.StatefulSet) {
	for _, pod := range all[*corev1.Pod](w.server, pods) {
		switch {
		case controls(s, pod) && pod.Spec.NodeName == "":
			w.deletePod(pod, "gc")
		case controls(s, pod):
			change(w.server, pods, keyOf(pod), "gc", func(p *corev1.Pod) { p.OwnerReferences = nil })
		}
	}
	_ = w.server.remove(statefulSets, keyOf(s), nil, true, "user")
}

// makeJob creates a bare pod, unless there are already maxJobs bare pods.
func (w *world) makeJob() {
	jobs := 0
	for _, pod := range all[*corev1.Pod](w.server, pods) {
		if metav1.GetControllerOfNoCopy(pod) == nil {
			jobs++
		}
	}
	if jobs >= maxJobs {
		return
	}
	w.jobs++
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("job%d", w.jobs)}}
	pod.Spec.SchedulerName = "default-scheduler"
	if w.setup.strict && w.choose(2) == 0 {
		pod.Spec.SchedulerName = schedulerName
	} else if w.setup.adoption && w.choose(2) == 0 {
		pod.Labels = map[string]string{adoptLabel: "true"}
	}
	w.server.mustCreate(pods, pod, "user")
}

// endJobs deletes the pods that makeJob has created.
func (w *world) endJobs() {
	for _, pod := range all[*corev1.Pod](w.server, pods) {
		if metav1.GetControllerOfNoCopy(pod) == nil && pod.DeletionTimestamp == nil && strings.HasPrefix(pod.Name, "job") {
			w.deletePod(pod, "user")
		}
	}
}

// someAddress draws an address in the subnet of a node. It returns an empty string if no node has a subnet.
func (w *world) someAddress() string {
	var subnets []string
	for _, cn := range all[*ciliumv2.CiliumNode](w.server, ciliumNodes) {
		subnets = append(subnets, cn.Spec.IPAM.PodCIDRs...)
	}
	if len(subnets) == 0 {
		return ""
	}
	p := mustPrefix(subnets[w.choose(len(subnets))])
	a := p.Addr()
	for range 1 + w.choose(14) {
		a = a.Next()
	}
	return a.String()
}

// pin creates a FixedIP before its pod exists, as a user does who wants a certain address for the pod. It does nothing
// if the pod, its FixedIP or a pool entry for the pod exists. The FixedIP names a drawn address. It names no address if the
// drawn address is reserved or in use, if the volume of the pod is in another zone, or if no node has a subnet.
func (w *world) pin() {
	name := fmt.Sprintf("%s-%d", []string{"a", "b", "c"}[w.choose(maxSets)], w.choose(3))
	r := &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	r.Spec.Owner = v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: name[:1]}
	r.Spec.PodName = name
	if a := w.someAddress(); a != "" && !w.isReserved(a) && !w.outsideZone(namespace+"/"+name, w.zoneOf(a)) {
		r.Spec.IPs = []string{a}
	}
	if _, exists := one[*v1alpha1.FixedIP](w.server, fixedIPs, namespace+"/"+name); exists {
		return
	}
	if _, exists := one[*corev1.Pod](w.server, pods, namespace+"/"+name); exists {
		return
	}
	if w.mentioned(namespace + "/" + name) {
		return
	}
	w.server.mustCreate(fixedIPs, r, "user")
}

// isReserved reports whether a FixedIP or a pool contains an address, or a sandbox or an agent uses it.
func (w *world) isReserved(a string) bool {
	for _, r := range all[*v1alpha1.FixedIP](w.server, fixedIPs) {
		if slices.Contains(r.Spec.IPs, a) {
			return true
		}
	}
	for _, cn := range all[*ciliumv2.CiliumNode](w.server, ciliumNodes) {
		if _, ok := cn.Spec.IPAM.Pool[a]; ok {
			return true
		}
	}
	return slices.ContainsFunc(w.machines, func(m *machine) bool { return len(m.uses(a)) > 0 || m.allocatedTo(a) != "" })
}

// mentioned reports whether an entry of a pool names a pod, as its owner or in the resource of a marker.
func (w *world) mentioned(owner string) bool {
	for _, cn := range all[*ciliumv2.CiliumNode](w.server, ciliumNodes) {
		for _, e := range cn.Spec.IPAM.Pool {
			if e.Owner == owner || isMarker(e.Owner) && containsOwner(e.Resource, owner) {
				return true
			}
		}
	}
	return false
}

// writeEntry writes a pool entry for a pod, as an administrator does by hand before the pod exists.
func (w *world) writeEntry(node string) {
	name := fmt.Sprintf("%s-%d", []string{"a", "b", "c"}[w.choose(maxSets)], w.choose(3))
	cn, _ := one[*ciliumv2.CiliumNode](w.server, ciliumNodes, node)
	if len(cn.Spec.IPAM.PodCIDRs) == 0 || w.mentioned(namespace+"/"+name) || w.outsideZone(namespace+"/"+name, w.machine(node).zone) {
		return
	}
	if _, exists := one[*corev1.Pod](w.server, pods, namespace+"/"+name); exists {
		return
	}
	if _, exists := one[*v1alpha1.FixedIP](w.server, fixedIPs, namespace+"/"+name); exists {
		return
	}
	a := mustPrefix(cn.Spec.IPAM.PodCIDRs[w.choose(len(cn.Spec.IPAM.PodCIDRs))]).Addr()
	for range 1 + w.choose(14) {
		a = a.Next()
	}
	if w.isReserved(a.String()) {
		return
	}
	w.written[[2]string{a.String(), namespace + "/" + name}] = true
	change(w.server, ciliumNodes, node, "user", func(cn *ciliumv2.CiliumNode) {
		pool := maps.Clone(cn.Spec.IPAM.Pool)
		if pool == nil {
			pool = ipamtypes.AllocationMap{}
		}
		pool[a.String()] = ipamtypes.AllocationIP{Owner: namespace + "/" + name, Resource: namespace + "/StatefulSet/" + name[:1]}
		cn.Spec.IPAM.Pool = pool
	})
}

// alive returns the number of machines that have a Node.
func (w *world) alive() (count int) {
	for _, m := range w.machines {
		if _, exists := one[*corev1.Node](w.server, nodes, m.name); exists {
			count++
		}
	}
	return count
}

// machineActions returns the possible faults of nodes and agents, and the possible actions of administrators on nodes.
func (w *world) machineActions() []action {
	var d []action
	add := func(name string, do func()) { d = append(d, action{name, do}) }
	for _, m := range w.machines {
		node, exists := one[*corev1.Node](w.server, nodes, m.name)
		if !exists {
			continue
		}
		if m.off {
			add("power on: "+m.name, func() {
				m.powerOn()
				change(w.server, nodes, m.name, "user", func(n *corev1.Node) {
					n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
				})
			})
			if !outOfService(node) {
				add("out of service: "+m.name, func() {
					change(w.server, nodes, m.name, "user", func(n *corev1.Node) {
						n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute})
					})
				})
			}
			add("node delete: "+m.name, func() { w.deleteNode(m) })
			continue
		}
		add("node loss: "+m.name, m.powerOff)
		add("reboot: "+m.name, func() { m.powerOff(); m.powerOn() })
		add("agent restart: "+m.name, m.agentDown)
		if _, ok := one[*ciliumv2.CiliumNode](w.server, ciliumNodes, m.name); ok && !m.cut && m.reported() {
			add("CiliumNode deleted: "+m.name, m.loseCiliumNode)
			add("CiliumNode deleted, agent restarted: "+m.name, func() {
				m.loseCiliumNode()
				m.agentDown()
			})
		}
		if m.cut {
			add("heal: "+m.name, func() { m.cut = false })
		} else {
			add("partition: "+m.name, func() { m.cut = true })
		}
	}
	if w.alive() < maxMachines {
		add("node join: a new node", func() { w.newMachine() })
		for _, m := range w.machines {
			if _, exists := one[*corev1.Node](w.server, nodes, m.name); !exists {
				add("replacement: a new node for "+m.name, func() {
					next := w.newMachineIn(m.zone)
					change(w.server, nodes, next.name, "user", func(n *corev1.Node) {
						n.Labels = maps.Clone(n.Labels)
						if n.Labels == nil {
							n.Labels = map[string]string{}
						}
						n.Labels["fixedip.io/replaces-node"] = m.name
					})
				})
			}
		}
	}
	return d
}

// deleteNode deletes the Node of a machine that is off.
func (w *world) deleteNode(m *machine) {
	_ = w.server.remove(nodes, m.name, nil, true, "user")
}
