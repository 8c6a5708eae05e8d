// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"net/netip"

	"fixedip.io/fixedip/ipam/core/agentview"
	"fixedip.io/fixedip/ipam/core/pool"
)

// controllerSteps emits the steps of fixedip-controller. The caches of the controller may show any state, so the controller
// may begin a task at any time; beginTasks contains the checks at the API server that precede a task.
func controllerSteps(sc scope, s state, emit emitter) {
	recordSteps(sc, s, emit)
	if s.task.kind == noTask {
		for name := range int8(nameCount) {
			for addr := range int8(addrCount) {
				beginTasks(sc, s, name, addr, emit)
			}
		}
		return
	}
	about := step{kind: taskBegins, name: s.task.name, node: s.task.node, addr: s.task.addr, task: s.task.kind}
	continueTask(sc, s, func(kind stepKind, t state) {
		about.kind = kind
		emit(about, t)
	})
	if s.crashes > 0 {
		t := s
		// A probe remains if the controller is killed. The answer to a probe does not.
		if o := &t.nodes[s.task.node]; o.probe == probeAcknowledged {
			o.probe, o.acknowledged = noProbe, entries{}
		}
		t.task, t.crashes = noTaskNow, t.crashes-1
		about.kind = taskCrashes
		emit(about, t)
	}
}

// recordSteps emits the steps that create and delete FixedIPs, and those that make the FixedIP of a slot name the pod
// that owns the entry. Each step has the precondition of its write.
func recordSteps(sc scope, s state, emit emitter) {
	for name := range int8(nameCount) {
		p, rec := s.pods[name], s.records[name]
		about := step{name: name, serial: s.serial[name], node: p.node, addr: p.addr}
		if !rec.exists && s.wanted[name] && p.exists && !p.deleting && p.addr != none && s.recordOf(p.addr) == none &&
			s.nodes[p.node].entries.owned(name) == p.addr {
			t := s
			t.records[name] = record{exists: true, addr: p.addr}
			about.kind = recordCreated
			emit(about, t)
		}
		if rec.exists && rec.deleting && s.entryOf(name) == none {
			t := s
			t.records[name] = noRecord
			about.kind, about.addr = recordDeleted, rec.addr
			emit(about, t)
		}
		if sc.slots && rec.exists && rec.takeable {
			for other := range int8(nameCount) {
				if other != name && !s.records[other].exists && s.nodes[homes[rec.addr]].entries.owned(other) == rec.addr {
					t := s
					t.records[name], t.records[other] = noRecord, record{exists: true, addr: rec.addr}
					about.kind, about.addr = recordFollows, rec.addr
					emit(about, t)
				}
			}
		}
	}
}

// recordOf returns the name whose FixedIP has the address, or none.
func (s *state) recordOf(addr int8) int8 {
	for name, rec := range s.records {
		if rec.exists && rec.addr == addr {
			return int8(name)
		}
	}
	return none
}

// entryOf returns an address whose entry is owned by the name, or none.
func (s *state) entryOf(name int8) int8 {
	for n := range s.nodes {
		if a := s.nodes[n].entries.owned(name); a != none {
			return a
		}
	}
	return none
}

// beginTasks emits the beginning of each task about one name and one address that the state of the API server allows.
func beginTasks(sc scope, s state, name, addr int8, emit emitter) {
	node := homes[addr]
	entry := s.nodes[node].entries[addr]
	p, rec := s.pods[name], s.records[name]
	begin := func(kind taskKind, change func(t *state)) {
		t := s
		t.task = task{kind: kind, name: name, node: node, addr: addr, before: entry}
		if change != nil {
			change(&t)
		}
		emit(step{kind: taskBegins, name: name, serial: s.serial[name], node: node, addr: addr, task: kind}, t)
	}
	owned := entry != 0 && entry.entry().OwnedBy(owners[name])
	gone := !s.wanted[name] && !p.exists || rec.deleting && !p.exists || sc.mutation == releaseUnchecked
	if owned && gone && !(sc.slots && rec.takeable) {
		begin(release, func(t *state) { t.records[name].deleting = rec.exists })
	}
	cooling := entry != 0 && entry.entry().CoolsDownFrom(owners[name])
	// The cooldown entry of a withdrawn address names no pod.
	withdrawn := entry != 0 && entry.entry().CoolsDownFrom("")
	waits := p.exists && p.node == node && s.nodes[node].entries.owned(name) == none
	if cooling && waits && p.addr == none {
		begin(restore, nil)
	}
	if (cooling || withdrawn) && waits && p.addr == addr && !p.deleting {
		begin(own, nil)
	}
	if cooling || withdrawn && name == 0 {
		begin(expire, nil)
	}
	if s.serial[name] < sc.foreign[name] && p.exists && !p.deleting && p.addr == addr && !rec.exists && s.recordOf(addr) == none {
		begin(adopt, nil)
	}
	if sc.slots && rec.exists && !rec.takeable && owned && rec.addr == addr && !p.exists {
		begin(judgeSlot, nil)
	}
}

// The phases of a task.
const (
	begun uint8 = iota
	// asked means that the controller has sent a probe to the agent, or has joined the probe of a controller that was killed.
	asked
	// answered means that the controller has read the answer of the agent and the pods, and that they allow the task to go on:
	// see barrier.
	answered
	// written means that the entry is written and not yet confirmed.
	written
)

// continueTask emits the next step of the current task.
func continueTask(sc scope, s state, emit func(stepKind, state)) {
	k, t := s.task, s
	o := &t.nodes[k.node]
	p := s.pods[k.name]
	finish := func(kind stepKind) {
		t.task = noTaskNow
		emit(kind, t)
	}
	switch k.kind {
	case release:
		switch k.phase {
		case begun:
			n := poolOf(k.node, o.entries, o.used)
			if !o.apply(n.Release(owners[k.name], nil, releaseTime(s.serial[k.name]))) {
				panic("a release failed although it was decided from the newest version of the pool")
			}
			t.task.phase = written
			emit(taskWrites, t)
		case written:
			// A pod with the name may have been bound to the node before the write. Such a pod relies on the entry.
			if p.exists && p.node == k.node {
				// A FixedIP that is being deleted remains so, and the controller releases the address again after that pod.
				undo(o, k)
				finish(taskUndoes)
				return
			}
			finish(taskConcludes)
		}
	case restore:
		n := poolOf(k.node, o.entries, o.used)
		a := addrs[k.addr]
		if o.entries[k.addr] == k.before && (!n.InUse(a) || n.Used[a] == owners[k.name]) && o.entries.owned(k.name) == none {
			o.apply([]pool.EntryChange{n.Set(a, ownedEntry(k.name))})
		}
		finish(taskWrites)
	case expire:
		if k.phase != answered {
			barrier(sc, s, emit)
			return
		}
		n := poolOf(k.node, o.entries, o.used)
		if edit, ok := n.Drop(addrs[k.addr]); ok && !s.runsUnseen(k.node, k.addr) && o.entries[k.addr] == k.before {
			o.apply([]pool.EntryChange{edit})
		}
		finish(taskConcludes)
	case adopt:
		a := addrs[k.addr]
		switch k.phase {
		case begun:
			n := poolOf(k.node, o.entries, o.used)
			user, used := n.Used[a]
			if o.entries[k.addr] == k.before && k.before != 0 && k.before.entry().Kind == pool.Dynamic && used && user == owners[k.name] {
				withdrawn := pool.CooldownEntry("", releaseTime(0))
				if sc.mutation == ownOffered {
					withdrawn = ownedEntry(k.name)
				}
				o.apply([]pool.EntryChange{n.Set(a, withdrawn)})
				t.task.phase = written
				emit(taskWrites, t)
				return
			}
			finish(taskConcludes)
		case written:
			if !p.exists || p.deleting || p.node != k.node || p.addr != k.addr {
				// The pod does not exist, is being deleted, or does not have the address. The entry was dynamic before the
				// write, so the agent may have given the address to another pod.
				undo(o, k)
				finish(taskUndoes)
				return
			}
			finish(taskConcludes)
		}
	case own:
		switch k.phase {
		case written:
			if !p.exists || p.deleting || p.node != k.node || p.addr != k.addr {
				undo(o, k)
				finish(taskUndoes)
				return
			}
			finish(taskConcludes)
		case answered:
			if o.entries[k.addr] != k.before {
				finish(taskConcludes)
				return
			}
			o.apply([]pool.EntryChange{poolOf(k.node, o.entries, o.used).Set(addrs[k.addr], ownedEntry(k.name))})
			t.task.phase = written
			emit(taskWrites, t)
		default:
			barrier(sc, s, emit)
		}
	case judgeSlot:
		if k.phase != answered {
			barrier(sc, s, emit)
			return
		}
		t.records[k.name].takeable = o.entries[k.addr] == k.before
		finish(taskConcludes)
	}
}

// barrier emits the next step of the agent barrier of a task. In phase begun, the controller sends a probe to the agent, or
// joins a probe that exists already. In phase asked, barrier emits nothing until the agent has acknowledged the probe. Then
// the controller reads the pods. The task goes on under a condition:
//
//   - expire: no pod has the address.
//   - judgeSlot: no pod has the address, and the pod of the slot does not exist.
//   - own: the pod of the task exists, is not being deleted, and is the only pod with the address. The agent has processed the
//     entry that the task replaces.
//
// With a mutation that leaves out the barrier of the task, the controller decides at once: in the task expire by the last
// report alone, in the task own by the pod alone.
func barrier(sc scope, s state, emit func(stepKind, state)) {
	t, k := s, s.task
	o := &t.nodes[k.node]
	skipped := k.kind == expire && sc.mutation == noBarrier || k.kind == own && sc.mutation == ownUnconfirmed
	switch {
	case !skipped && k.phase == begun:
		o.probe, t.task.phase = probeSent, asked
		emit(taskProbes, t)
		return
	case !skipped && o.probe != probeAcknowledged:
		return
	}
	p := s.pods[k.name]
	var passes bool
	switch k.kind {
	case expire:
		passes = s.clear(sc, k.node, k.addr, "")
		if skipped {
			passes = o.used[k.addr] == none
		}
	case own:
		passes = (skipped || o.acknowledged[k.addr] == k.before && s.clear(sc, k.node, k.addr, owners[k.name])) &&
			p.exists && !p.deleting && p.node == k.node && p.addr == k.addr
	case judgeSlot:
		passes = s.clear(sc, k.node, k.addr, "") && !p.exists
	}
	if o.probe == probeAcknowledged {
		o.probe, o.acknowledged = noProbe, entries{}
	}
	t.task.phase = answered
	if !passes {
		t.task = noTaskNow
	}
	emit(taskReads, t)
}

// clear reports whether the last report of the agent and the pods at the API server show that no pod except owner has the
// address. If owner is empty, no pod is excepted.
func (s *state) clear(sc scope, node, addr int8, owner string) bool {
	o := s.nodes[node]
	if !o.complete && sc.mutation != trustIncomplete {
		return false
	}
	n := poolOf(node, o.acknowledged, o.used)
	var pods []agentview.Pod
	for name, p := range s.pods {
		if !p.exists || p.node != node {
			continue
		}
		pod := agentview.Pod{Owner: owners[name]}
		if p.addr != none {
			pod.Addrs = []netip.Addr{addrs[p.addr]}
		}
		pods = append(pods, pod)
	}
	evidence := agentview.Evidence{Node: n.Name, UID: n.UID, Generation: n.Generation, Entries: n.Entries, Used: n.Used}
	return evidence.Judge(addrs[addr], owner, pods).State == agentview.Clear
}

// runsUnseen reports whether a pod that was deleted by force runs with an address that the CNI plugin has released, because
// the agent refused the endpoint of another pod with the address (Cilium fact 30). If the agent then does not report the
// address as used, no component can detect such a pod. The design assumes that the kubelet stops the pod before the cooldown
// is over.
func (s *state) runsUnseen(node, addr int8) bool {
	for name := range s.boxes {
		for serial, b := range s.boxes[name] {
			deleted := !s.pods[name].exists || s.serial[name] != int8(serial)
			if b.state == running && b.node == node && b.addr == addr && deleted && b.freed {
				return true
			}
		}
	}
	return false
}

// undo writes the entry again that the task has replaced. It does nothing if the current entry differs in kind or owner from
// the entry that the task wrote.
func undo(o *object, k task) {
	if e := o.entries[k.addr]; e != 0 && (e.entry().CoolsDownFrom(owners[k.name]) || k.kind == adopt && e.entry().CoolsDownFrom("") || k.kind == own && e.entry().OwnedBy(owners[k.name])) {
		o.entries[k.addr] = k.before
	}
}
