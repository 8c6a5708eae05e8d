// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
)

// actLasts is how long what an act of a script begins is given to take its course.
const actLasts = 3 * time.Second

// longScripts are scripts of more than one act: what comes of one is what the next is about. Only what happens after the last
// one is drawn.
func (w *world) longScripts() []action {
	var d []action
	add := func(name string, do func()) { d = append(d, action{name, do}) }
	ready := w.readyNodes()
	for _, name := range []string{"a", "b", "c"}[:maxSets] {
		if _, exists := one[*appsv1.StatefulSet](w.server, statefulSets, namespace+"/"+name); exists || len(ready) < 2 {
			continue
		}
		// Nobody has told of its address when that goes back, and it runs.
		add("young and gone: StatefulSet "+name, func() {
			m, pod := w.young(w.newSet(name, 1, nil))
			if m == nil {
				return
			}
			w.forceDelete(pod)
			_ = w.server.remove(statefulSets, namespace+"/"+name, nil, true, "user")
			w.fillNodes()
			w.mute(m)
		})
		// Nobody has told of its address when that is to go elsewhere, and it runs.
		add("young and moved: StatefulSet "+name, func() {
			m, pod := w.young(w.newSet(name, 1, map[string]string{identity.AnnotationFailover: string(v1alpha1.Migrate)}))
			if m == nil {
				return
			}
			w.cordon(m.name)
			w.forceDelete(pod)
			w.mute(m)
		})
		// Its address is away before it has run, so that no FixedIP tells of that: the mark does.
		add("others come to its home: StatefulSet "+name, func() {
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
		// Its address is given to another before its agent has heard that it was released, and its next pod comes.
		add("rests behind its agent: StatefulSet "+name, func() {
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
		// What it got in place of its claim is kept for it, and its agent does not know when others come.
		for _, scheduler := range schedulersThen {
			add("kept behind its agent"+scheduler+": StatefulSet "+name, func() {
				if w.keptBehindItsAgent(name, scheduler) {
					w.othersCome(name, scheduler)
				}
				w.mute(nil)
			})
			for _, optsOut := range []bool{false, true} {
				add("given up behind its agent"+scheduler+": StatefulSet "+name, func() {
					if w.keptBehindItsAgent(name, scheduler) {
						w.othersCome(name, scheduler)
						w.givenUp(name, optsOut)
					}
					w.mute(nil)
				})
			}
		}
	}
	for _, node := range ready {
		// A node has hardly an address left, and the scheduler does not know who has them now.
		add("crowd behind the scheduler: node "+node, func() {
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
		// Another scheduler takes over, which has not seen what the one before it has given out.
		add("successor behind: node "+node, func() {
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
		// What is free is too much, and then it is not; the agent hears of both late.
		add("jobs come when others have gone: node "+node, func() {
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
		add("two that give subnets: a controller and a former leader", func() {
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

// young has the pod of a new workload run before its agent has told of its address. m is nil where it does not.
func (w *world) young(s *appsv1.StatefulSet) (m *machine, pod *corev1.Pod) {
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

// wanted has a workload have as many pods as it may.
func (w *world) wanted(name string) {
	if _, ok := one[*appsv1.StatefulSet](w.server, statefulSets, namespace+"/"+name); !ok {
		w.newSet(name, int32(w.most(name)), nil)
		return
	}
	w.scale(name, int32(w.most(name)))
}

// crowd has all workloads that there are, and jobs, want addresses.
func (w *world) fillNodes() {
	for _, s := range all[*appsv1.StatefulSet](w.server, statefulSets) {
		w.wanted(s.Name)
	}
	for range 2 {
		w.makeJob()
	}
}

// onlyOn leaves one node to new pods.
func (w *world) onlyOn(node string) {
	for _, n := range all[*corev1.Node](w.server, nodes) {
		change(w.server, nodes, n.Name, "user", func(n *corev1.Node) { n.Spec.Unschedulable = n.Name != node })
	}
}
