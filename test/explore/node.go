// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explore

// nodeSteps emits the steps of agents and kubelets.
func nodeSteps(sc scope, s state, emit emitter) {
	for n := range int8(nodeCount) {
		agentSteps(sc, s, n, emit)
	}
	for name := range int8(nameCount) {
		for serial := range int8(podsPerName) {
			kubeletSteps(s, name, serial, emit)
		}
	}
}

func agentSteps(sc scope, s state, n int8, emit emitter) {
	at, o := s.agents[n], s.nodes[n]
	current := at.seen == o.entries && at.probe == o.probe
	if !current {
		t := s
		t.agents[n].seen, t.agents[n].probe = o.entries, o.probe
		emit(step{kind: agentSees, node: n}, t)
	}
	// The API server refuses a report that is based on an old version (Cilium facts 10 and 24). Without adoption,
	// reports that acknowledge no probe are left out: they enable no other step, and could only prevent some.
	if current && o.probe == noProbe && sc.adopts() && (o.used != at.allocated || o.complete == at.restoring) {
		t := s
		t.nodes[n].used, t.nodes[n].complete = at.allocated, !at.restoring
		emit(step{kind: agentReports, node: n}, t)
	}
	if current && o.probe == probeSent {
		t := s
		t.nodes[n].used, t.nodes[n].complete = at.allocated, !at.restoring
		// If the controller that sent the probe was killed, and no task has joined the probe, no controller uses the answer.
		t.nodes[n].probe = noProbe
		if s.task.node == n && s.task.phase == asked {
			t.nodes[n].probe, t.nodes[n].acknowledged = probeAcknowledged, o.entries
		}
		t.agents[n].probe = t.nodes[n].probe
		emit(step{kind: agentAcknowledges, node: n}, t)
	}
	if at.restoring {
		t := s
		t.agents[n].restoring = false
		// An endpoint keeps its address only if the pool has an entry for the address (Cilium fact 7).
		for name := range t.boxes {
			for serial := range t.boxes[name] {
				b := &t.boxes[name][serial]
				if b.state != running || b.node != n {
					continue
				}
				b.endpoint = at.seen[b.addr] != 0 && t.agents[n].allocated[b.addr] == none
				if b.endpoint {
					t.agents[n].allocated[b.addr] = int8(name)
				}
			}
		}
		emit(step{kind: agentRestores, node: n}, t)
	}
	if s.crashes > 0 {
		t := s
		t.crashes--
		t.restartAgent(n)
		emit(step{kind: agentRestarts, node: n}, t)
	}
	if s.reboots > 0 {
		t := s
		t.reboots--
		t.restartAgent(n)
		for name := range t.boxes {
			for serial := range t.boxes[name] {
				b := &t.boxes[name][serial]
				switch newest := s.serial[name] == int8(serial) && s.pods[name].exists; {
				case b.node != n:
				case newest:
					// The kubelet starts the pod again. Until it reports the new sandbox, status.podIPs has the former address.
					*b = sandbox{state: absent, node: n, addr: none}
				default:
					*b = sandbox{state: stopped, node: none, addr: none}
				}
			}
		}
		emit(step{kind: nodeReboots, node: n}, t)
	}
}

// restartAgent replaces an agent by a new one, which has read the newest CiliumNode and has no endpoints yet.
func (s *state) restartAgent(n int8) {
	s.agents[n] = agent{seen: s.nodes[n].entries, probe: s.nodes[n].probe, allocated: unused, restoring: true}
	for name := range s.boxes {
		for serial := range s.boxes[name] {
			if b := &s.boxes[name][serial]; b.node == n {
				b.endpoint = false
			}
		}
	}
}

// kubeletSteps emits the steps of one pod on its node. A deleted pod may still be started, because the kubelet may not have
// seen the deletion yet.
func kubeletSteps(s state, name, serial int8, emit emitter) {
	b := s.boxes[name][serial]
	if b.node == none {
		return
	}
	about := step{name: name, serial: serial, node: b.node}
	newest := s.serial[name] == serial && s.pods[name].exists
	at := s.agents[b.node]
	switch b.state {
	case absent:
		if at.restoring {
			break
		}
		for _, a := range at.next(name) {
			t := s
			if holder := t.endpointOf(b.node, a); holder != nil {
				// The agent refuses an endpoint whose address another endpoint has, and the CNI plugin then releases the
				// address (Cilium fact 30).
				t.agents[b.node].allocated[a], holder.freed = none, true
			} else {
				t.agents[b.node].allocated[a] = name
				t.boxes[name][serial] = sandbox{state: running, node: b.node, addr: a, endpoint: true}
			}
			if t != s {
				about.kind, about.addr = cniAdd, a
				emit(about, t)
			}
		}
	case running:
		if newest && s.pods[name].addr != b.addr {
			t := s
			t.pods[name].addr = b.addr
			about.kind, about.addr = kubeletReports, b.addr
			emit(about, t)
		}
	}
	if newest && !s.pods[name].deleting || b.state == stopped {
		return
	}
	t := s
	if b.endpoint {
		// The CNI DEL releases the address, even if another endpoint has got it meanwhile (Cilium fact 13).
		t.agents[b.node].allocated[b.addr] = none
	}
	t.boxes[name][serial] = sandbox{state: stopped, node: none, addr: none}
	if newest {
		t.pods[name] = noPod
	}
	about.kind = kubeletStops
	emit(about, t)
}

// next returns the addresses that the agent may choose for a pod with the name (Cilium facts 1-3).
func (a agent) next(name int8) []int8 {
	var owned, free []int8
	for i, s := range a.seen {
		switch {
		case s == 0:
		case s.entry().OwnedBy(owners[name]):
			owned = append(owned, int8(i))
		case s.entry().Owner() == "" && s.entry().Kind == 0 && a.allocated[i] == none:
			free = append(free, int8(i))
		}
	}
	if len(owned) > 0 {
		return owned
	}
	return free
}

// endpointOf returns the sandbox whose endpoint has the address on the node, or nil.
func (s *state) endpointOf(node, addr int8) *sandbox {
	for name := range s.boxes {
		for serial := range s.boxes[name] {
			if b := &s.boxes[name][serial]; b.endpoint && b.node == node && b.addr == addr {
				return b
			}
		}
	}
	return nil
}
