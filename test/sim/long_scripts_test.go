// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
)

// actLasts is the time that one act of a script has to take effect.
const actLasts = 3 * time.Second

// longScripts returns scripts of more than one act: each act depends on the effect of the previous one. Only the events
// after the last act are chosen by the following steps of the run.
func (w *world) longScripts() []action {
	var d []action
	add := func(name string, do func()) { d = append(d, action{name, do}) }
	ready := w.readyNodes()
	for _, name := range []string{"a", "b", "c"}[:maxSets] {
		if _, exists := one[*appsv1.StatefulSet](w.server, statefulSets, namespace+"/"+name); exists || len(ready) < 2 {
			continue
		}
		// The address is released while its pod runs, before the agent has reported it.
		add("pod with unreported IP is deleted with its workload: StatefulSet "+name, func() {
			m, pod := w.startUnreported(w.newSet(name, 1, nil))
			if m == nil {
				return
			}
			w.forceDelete(pod)
			_ = w.server.remove(statefulSets, namespace+"/"+name, nil, true, "user")
			w.fillNodes()
			w.mute(m)
		})
		// The address moves while its pod runs, before the agent has reported it.
		add("unreported IP is moved: StatefulSet "+name, func() {
			m, pod := w.startUnreported(w.newSet(name, 1, map[string]string{identity.AnnotationFailover: string(v1alpha1.Migrate)}))
			if m == nil {
				return
			}
			w.cordon(m.name)
			w.forceDelete(pod)
			w.mute(m)
		})
		// The pod is deleted before it has run, so that it has no FixedIP. The controller creates one when the next pod is
		// unschedulable, and the address moves. Then other pods are placed on the home node.
		add("other pods placed on home of an unrecorded move: StatefulSet "+name, func() {
			for _, m := range w.machines {
				m.startsAfter = time.Now().Add(time.Minute + 10*actLasts)
			}
			key := keyOf(w.newSet(name, 1, map[string]string{identity.AnnotationFailover: string(v1alpha1.Migrate)})) + "-0"
			w.calm(actLasts)
			pod, ok := one[*corev1.Pod](w.server, pods, key)
			if !ok || pod.Spec.NodeName == "" {
				return
			}
			home := pod.Spec.NodeName
			w.cordon(home)
			w.forceDelete(pod)
			w.calm(time.Minute + actLasts)
			w.onlyOn(home)
			w.fillNodes()
			w.mute(nil)
		})
		// An address moves while no controller can record the move. The pod must not run on the new node yet: if both
		// pools are lost, nothing shows which address it has.
		add("move is not recorded: StatefulSet "+name, func() { w.moveUnrecorded(name) })
		// Other pods need the address before the agent has seen its release. Then the next pod with the former name is created.
		add("cooldown entry ends before the agent has seen it: StatefulSet "+name, func() {
			key := keyOf(w.newSet(name, 1, nil)) + "-0"
			w.calm(actLasts)
			pod, ok := one[*corev1.Pod](w.server, pods, key)
			if !ok || pod.Spec.NodeName == "" {
				return
			}
			node := pod.Spec.NodeName
			if m := w.machine(node); m != nil {
				m.seesAfter = time.Now().Add(2 * coolDown)
			}
			_ = w.server.remove(statefulSets, namespace+"/"+name, nil, true, "user")
			w.deletePod(pod, "user")
			w.calm(coolDown + 2*actLasts)
			w.onlyOn(node)
			for _, other := range []string{"a", "b", "c"}[:maxSets] {
				if other != name {
					w.wanted(other)
				}
			}
			w.calm(2 * actLasts)
			w.newSet(name, 1, nil)
			w.mute(nil)
		})
		// The pod gets another address than the claimed one, and the agent of its node is behind when other pods are created.
		for _, scheduler := range schedulerStates {
			add("new claim is not seen by the agent"+scheduler+": StatefulSet "+name, func() {
				if w.startBehindAgent(name, scheduler) {
					w.createCompetitors(name, scheduler)
				}
				w.mute(nil)
			})
			for _, optsOut := range []bool{false, true} {
				add("reservation is ended with claim unseen by an agent"+scheduler+": StatefulSet "+name, func() {
					if w.startBehindAgent(name, scheduler) {
						w.createCompetitors(name, scheduler)
						w.releaseReservation(name, optsOut)
					}
					w.mute(nil)
				})
			}
		}
	}
	for _, node := range ready {
		// Few addresses of a node are free, and the schedulers do not see which of its addresses are taken.
		add("nearly full node unseen by a scheduler: node "+node, func() {
			w.onlyOn(node)
			w.wanted("c")
			w.calm(4 * actLasts)
			for _, s := range w.schedulers {
				w.stall(s.process, ciliumNodes)
			}
			for range maxJobs {
				w.makeJob()
			}
			w.calm(8 * actLasts)
			w.wanted("a")
			w.wanted("b")
			w.mute(nil)
		})
		// A standby scheduler becomes the leader without having seen the claims of the former leader.
		add("next leading scheduler has not seen the claims: node "+node, func() {
			w.onlyOn(node)
			next := w.startScheduler()
			w.calm(actLasts)
			if next.dead() || !next.synced() || next.leads {
				return
			}
			w.stall(next.process, ciliumNodes)
			w.wanted("c")
			w.calm(4 * actLasts)
			for _, s := range w.schedulers {
				if s != next {
					s.kill()
				}
			}
			w.wanted("a")
			w.wanted("b")
			w.mute(nil)
		})
		// First too many dynamic entries are free, and then too few. The agent sees the later versions of its pool late.
		add("jobs deleted and created: node "+node, func() {
			w.onlyOn(node)
			for range maxJobs {
				w.makeJob()
			}
			w.calm(8 * actLasts)
			w.endJobs()
			w.calm(updateRate)
			if m := w.machine(node); m != nil {
				m.seesAfter = time.Now().Add(4 * actLasts)
			}
			w.calm(actLasts)
			for range maxJobs {
				w.makeJob()
			}
			w.mute(nil)
		})
	}
	if len(ready) > 0 && len(ready)+2 <= maxMachines {
		add("two controllers assign subnets to nodes: a controller and a former leader", func() {
			next := w.startController()
			w.calm(actLasts)
			if next.dead() || !next.synced() || next.leads {
				return
			}
			for _, other := range w.controllers {
				other.lost = other.lost || other.leads
			}
			next.lead()
			w.newMachine()
			w.newMachine()
			w.mute(nil)
		})
	}
	return d
}

// moveUnrecorded lets the address of the pod of a new workload move to another node. The controllers cannot update the
// FixedIP of the pod meanwhile, because a user has written a version that they do not see. If the pod nevertheless runs
// on the other node, it is deleted by force, and the CiliumNodes of both nodes are lost.
func (w *world) moveUnrecorded(name string) {
	key := keyOf(w.newSet(name, 1, map[string]string{identity.AnnotationFailover: string(v1alpha1.Migrate)})) + "-0"
	w.calm(actLasts)
	pod, ok := one[*corev1.Pod](w.server, pods, key)
	if !ok || pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil {
		return
	}
	home := w.machine(pod.Spec.NodeName)
	w.cordon(pod.Spec.NodeName)
	w.deletePod(pod, "user")
	mayMove := func() bool {
		record, ok := one[*v1alpha1.FixedIP](w.server, fixedIPs, key)
		return ok && record.Status.MovableFor != ""
	}
	for range 60 {
		if mayMove() {
			break
		}
		w.calm(time.Second)
	}
	if pod, ok = one[*corev1.Pod](w.server, pods, key); !ok || !mayMove() || pod.Spec.NodeName != "" {
		return
	}
	for _, c := range w.controllers {
		w.stall(c.process, fixedIPs)
	}
	change(w.server, fixedIPs, key, "user", func(record *v1alpha1.FixedIP) { metav1.SetMetaDataAnnotation(&record.ObjectMeta, "note", "moves") })
	w.calm(time.Minute)
	if pod, ok = one[*corev1.Pod](w.server, pods, key); !ok || pod.Spec.NodeName == "" || home == nil {
		return
	}
	m := w.machine(pod.Spec.NodeName)
	if m != nil && m != home && m.sandboxes[pod.UID] != nil && m.reported() && !m.cut && home.reported() && !home.cut {
		m.stopsAfter = time.Now().Add(4 * actLasts)
		m.loseCiliumNode()
		home.loseCiliumNode()
		w.forceDelete(pod)
	}
	w.mute(nil)
}

// startUnreported gives the pod of a new workload time to start while no agent reports. It returns the pod and its
// node; nil for both if the pod does not run.
func (w *world) startUnreported(s *appsv1.StatefulSet) (m *machine, pod *corev1.Pod) {
	for _, m := range w.machines {
		m.reportsAfter = time.Now().Add(muteFor)
	}
	w.calm(actLasts)
	pod, ok := one[*corev1.Pod](w.server, pods, keyOf(s)+"-0")
	if !ok || pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil {
		return nil, nil
	}
	if m = w.machine(pod.Spec.NodeName); m == nil || m.sandboxes[pod.UID] == nil {
		return nil, nil
	}
	return m, pod
}

func (w *world) newSet(name string, replicas int32, annotations map[string]string) *appsv1.StatefulSet {
	s := &appsv1.StatefulSet{}
	s.Namespace, s.Name, s.Annotations = namespace, name, annotations
	s.Spec.Replicas = ptr.To(replicas)
	s.Spec.Template.Labels = map[string]string{templateHash: "0"}
	w.server.mustCreate(statefulSets, s, "user")
	return s
}

func (w *world) scale(name string, replicas int32) {
	change(w.server, statefulSets, namespace+"/"+name, "user", func(s *appsv1.StatefulSet) { s.Spec.Replicas = ptr.To(replicas) })
}

// wanted creates a workload with its maximum number of pods, or scales it to that number.
func (w *world) wanted(name string) {
	if _, ok := one[*appsv1.StatefulSet](w.server, statefulSets, namespace+"/"+name); !ok {
		w.newSet(name, int32(w.maxPods(name)), nil)
		return
	}
	w.scale(name, int32(w.maxPods(name)))
}

// fillNodes scales all existing StatefulSets to their maximum and creates two more bare pods, within the limit maxJobs.
func (w *world) fillNodes() {
	for _, s := range all[*appsv1.StatefulSet](w.server, statefulSets) {
		w.wanted(s.Name)
	}
	for range 2 {
		w.makeJob()
	}
}

// onlyOn cordons all nodes except one, and uncordons that one.
func (w *world) onlyOn(node string) {
	for _, n := range all[*corev1.Node](w.server, nodes) {
		change(w.server, nodes, n.Name, "user", func(n *corev1.Node) { n.Spec.Unschedulable = n.Name != node })
	}
}
