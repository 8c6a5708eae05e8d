// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explore

// userSteps emits the steps of users, of another scheduler, and of the controllers of Kubernetes.
func userSteps(sc scope, s state, emit emitter) {
	for name := range int8(nameCount) {
		p, about := s.pods[name], step{name: name, serial: s.serial[name], node: s.pods[name].node, addr: s.pods[name].addr}
		to := func(kind stepKind, change func(t *state)) {
			t := s
			change(&t)
			about.kind = kind
			emit(about, t)
		}
		if sc.pods[name] == 0 {
			continue
		}
		if s.serial[name] < sc.foreign[name] && p.exists && p.node == none && !p.deleting {
			to(foreignBinds, func(t *state) {
				t.pods[name].node = 0
				t.boxes[name][t.serial[name]] = sandbox{node: 0, addr: none}
			})
		}
		if sc.lasting {
			continue
		}
		if s.wanted[name] {
			to(workloadDeleted, func(t *state) { t.wanted[name] = false })
		} else if s.removals > 0 {
			to(workloadCreated, func(t *state) { t.wanted[name], t.remade[name], t.removals = true, true, t.removals-1 })
		}
		if !p.exists {
			continue
		}
		if !p.deleting {
			to(podDeleted, func(t *state) {
				t.pods[name].deleting = true
				if p.node == none {
					t.pods[name] = noPod
				}
			})
		}
		if p.node != none && s.removals > 0 {
			to(podForceDeleted, func(t *state) { t.pods[name], t.removals = noPod, t.removals-1 })
		}
	}
}

// createPods creates the missing pods of existing workloads. It is part of every step instead of a separate step, because no
// decision depends on the time for which a pod is missing while its workload exists.
func (s *state) createPods(sc scope) {
	for name := range s.pods {
		if !s.pods[name].exists && s.wanted[name] && s.serial[name] < sc.pods[name]-1 {
			s.serial[name]++
			s.pods[name] = pod{exists: true, node: none, addr: none}
		}
	}
}
