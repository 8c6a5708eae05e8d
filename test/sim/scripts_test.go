// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/request"
)

const (
	// spellSteps is the number of steps of a spell.
	spellSteps = 80
	// muteFor is the time for which the node of a script does nothing, or does not do certain actions such as reports. It is
	// shorter than the cooldown.
	muteFor = 20 * time.Second
)

// startSteps is the maximum number of steps of startWorkloads.
const startSteps = 3000

// startWorkloads creates workloads, and returns when the pods of the StatefulSets run and have FixedIPs, after startSteps, or
// after the first violation. The only faults that can happen meanwhile are those of agents (drawFault).
func (w *world) startWorkloads(seed uint64) {
	w.seed = seed
	for _, name := range []string{"a", "b"} {
		w.makeSet(name)
	}
	if w.setup.slots {
		w.makeReplicaSet()
	}
	w.waitIdle()
	for range startSteps {
		if err := w.broken(); err != nil {
			return
		}
		if !w.advance() {
			if w.allRun() {
				return
			}
			time.Sleep(w.pause())
		}
		w.waitIdle()
	}
}

// allRun reports whether all replicas of all StatefulSets have an address and a FixedIP.
func (w *world) allRun() bool {
	for _, s := range all[*appsv1.StatefulSet](w.server, statefulSets) {
		for i := range *s.Spec.Replicas {
			key := namespace + "/" + podName(s, i)
			pod, ok := one[*corev1.Pod](w.server, pods, key)
			if _, recorded := one[*v1alpha1.FixedIP](w.server, fixedIPs, key); !ok || pod.Status.PodIP == "" || !recorded {
				return false
			}
		}
	}
	return true
}

func podName(s *appsv1.StatefulSet, i int32) string { return fmt.Sprintf("%s-%d", s.Name, i) }

// spell is the period after a script: a number of steps in which the script takes effect. These steps contain no user actions
// and no faults except those of agents (drawFault). Without a spell a script would take effect in only one run of a thousand.
type spell struct {
	// left is the number of steps until the end of the spell.
	left int
	// mute is the node that does nothing until the time in the field until, but not longer than the spell; nil if there is
	// none.
	mute *machine
	// until is the time from which the muted node acts again.
	until time.Time
}

// mute begins a spell. The given node, if any, does nothing for muteFor or until the spell ends.
func (w *world) mute(mute *machine) {
	w.spell = spell{left: spellSteps, mute: mute, until: time.Now().Add(muteFor)}
}

// mutes reports whether a node does nothing now.
func (s spell) mutes(m *machine) bool { return s.left > 0 && s.mute == m && time.Now().Before(s.until) }

// calmSteps is the maximum number of steps of a calm.
const calmSteps = 2000

// calm performs all possible actions that need no user and no fault for a duration, so that later user actions and
// faults meet the consequences of earlier ones. Existing faults, such as stalled watches, continue. A calm counts as
// one step.
func (w *world) calm(d time.Duration) {
	w.stats["calm"]++
	w.logf("** calm for %v", d)
	until := time.Now().Add(d)
	for range calmSteps {
		if w.broken() != nil || !time.Now().Before(until) {
			return
		}
		if !w.advance() {
			time.Sleep(min(w.pause(), time.Until(until)))
		}
		w.waitIdle()
	}
}

// scripts returns sequences of user actions and faults that are possible now and likely to show a bug of the product. stats
// counts scripts by the part of the name before the colon.
func (w *world) scripts() []action {
	var d []action
	add := func(name string, mute *machine, do func()) {
		d = append(d, action{name, func() { do(); w.mute(mute) }})
	}
	sets := all[*appsv1.StatefulSet](w.server, statefulSets)
	for _, s := range sets {
		// The controller sees the deletion of the workload, but not its new creation.
		add("recreate behind the controller: StatefulSet "+s.Name, nil, func() {
			_ = w.server.remove(statefulSets, keyOf(s), nil, true, "user")
			for _, c := range w.controllers {
				w.stall(c.process, statefulSets)
			}
			w.makeSet(s.Name)
			// From now on the product must not rely on a read from before the creation.
			time.Sleep(2 * absenceCounts)
		})
		for i := range *s.Spec.Replicas {
			pod, ok := one[*corev1.Pod](w.server, pods, namespace+"/"+podName(s, i))
			if !ok || pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil {
				continue
			}
			m := w.machine(pod.Spec.NodeName)
			if s.Annotations[identity.AnnotationFailover] == string(v1alpha1.Migrate) {
				add("drain: pod "+pod.Name, nil, func() {
					w.cordon(pod.Spec.NodeName)
					w.deletePod(pod, "user")
				})
				if m != nil && m.ready && !m.cut && m.sandboxes[pod.UID] != nil {
					// The controller writes a probe while the pod still runs. The agent restarts, and reports without the
					// probe before it has restored its endpoints.
					add("force-delete as its agent restarts: pod "+pod.Name, nil, func() {
						m.stopsAfter, m.seesAfter = time.Now().Add(4*actLasts), time.Now().Add(4*actLasts)
						w.cordon(pod.Spec.NodeName)
						w.forceDelete(pod)
						w.calm(actLasts)
						m.agentDown()
						m.restoresAfter = time.Now().Add(2 * actLasts)
					})
				}
				if home := w.movedFrom(pod); home != nil && home.reported() && !home.cut && m != nil && m.reported() && !m.cut {
					// The pools of the home node and of the pod's node are lost, and the pod keeps running.
					add("force-delete pod that has moved, both CiliumNodes deleted: "+pod.Name, nil, func() {
						m.stopsAfter = time.Now().Add(4 * actLasts)
						m.loseCiliumNode()
						home.loseCiliumNode()
						w.forceDelete(pod)
					})
				}
				if w.hasUnreportedIP(pod) {
					// The pod runs with an address that its agent has not reported.
					add("force-delete pod before its address is reported: "+pod.Name, m, func() {
						w.cordon(pod.Spec.NodeName)
						w.forceDelete(pod)
					})
				}
			}
			if s.Annotations[identity.AnnotationWhenDeleted] == "" && m != nil && m.sandboxes[pod.UID] != nil {
				// The address is released while the pod runs, and other pods need an address.
				deleteBoth := func() {
					w.forceDelete(pod)
					_ = w.server.remove(statefulSets, keyOf(s), nil, true, "user")
					for _, other := range sets {
						if other.Name != s.Name {
							change(w.server, statefulSets, keyOf(other), "user", func(o *appsv1.StatefulSet) { o.Spec.Replicas = ptr.To(int32(w.maxPods(o.Name))) })
						}
					}
					for range 2 {
						w.makeJob()
					}
				}
				add("force-delete with its workload: pod "+pod.Name, m, deleteBoth)
				if _, ok := one[*ciliumv2.CiliumNode](w.server, ciliumNodes, m.name); ok && !m.cut && m.reported() {
					// Neither a pod nor a CiliumNode at the API server shows that the pod still runs.
					add("force-delete with its workload and CiliumNode: pod "+pod.Name, nil, func() {
						m.loseCiliumNode()
						m.agentDown()
						deleteBoth()
					})
				}
			}
		}
	}
	for _, name := range []string{"a", "b", "c"}[:maxSets] {
		if slices.ContainsFunc(sets, func(s *appsv1.StatefulSet) bool { return s.Name == name }) {
			continue
		}
		for _, ip := range w.marked("fixedip.io/moved") {
			add("request the moved address: StatefulSet "+name, nil, func() {
				s := &appsv1.StatefulSet{}
				s.Namespace, s.Name = namespace, name
				s.Annotations = map[string]string{request.AnnotationIPs: ip}
				s.Spec.Replicas = ptr.To[int32](1)
				s.Spec.Template.Labels = map[string]string{templateHash: "0"}
				w.server.mustCreate(statefulSets, s, "user")
			})
		}
	}
	for _, m := range w.machines {
		_, pooled := one[*ciliumv2.CiliumNode](w.server, ciliumNodes, m.name)
		if !pooled || m.cut || m.off || !m.reported() || w.alive() >= maxMachines {
			continue
		}
		// Only the existing Node shows that the pods on it may still run with addresses of its subnet.
		add("join while a node is cut off without its CiliumNode: "+m.name, nil, func() {
			m.loseCiliumNode()
			m.cut = true
			w.calm(orphanGrace + time.Minute)
			w.newMachine()
		})
		// A node of another zone could not run the pods whose volumes are in the zone of the deleted node.
		if w.setup.volumes {
			add("join in another zone after a loss: "+m.name, nil, func() { w.joinElsewhere(m) })
		}
	}
	d = append(d, w.slotScripts()...)
	d = append(d, w.endpointScripts()...)
	return append(d, w.longScripts()...)
}

// stall lets a process see all earlier writes of a kind, and no later write until the watch moves again.
func (w *world) stall(p *process, k *kind) {
	for _, i := range p.informers {
		if p.dead() || i.of != k || !i.synced {
			continue
		}
		for i.behind() {
			w.logf("%s", i.step(0))
		}
		i.stalled = true
	}
}

// cordon makes a node unschedulable, so that no pod returns to it.
func (w *world) cordon(node string) {
	change(w.server, nodes, node, "user", func(n *corev1.Node) { n.Spec.Unschedulable = true })
}

func (w *world) forceDelete(pod *corev1.Pod) {
	_ = w.server.remove(pods, keyOf(pod), nil, true, "user")
}

// marked returns the addresses of all pool entries with the owner, sorted.
func (w *world) marked(owner string) []string {
	var found []string
	for _, cn := range all[*ciliumv2.CiliumNode](w.server, ciliumNodes) {
		for ip, e := range cn.Spec.IPAM.Pool {
			if e.Owner == owner {
				found = append(found, ip)
			}
		}
	}
	slices.Sort(found)
	return found
}
