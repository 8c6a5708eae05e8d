// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"net/netip"

	"fixedip.io/fixedip/ipam/core/pool"
)

// schedulerSteps emits the steps of the replicas of fixedip-scheduler.
func schedulerSteps(sc scope, s state, emit emitter) {
	for i := range sc.replicas {
		r := s.schedulers[i]
		about := step{scheduler: int8(i), name: r.name, node: r.node, addr: r.addr, serial: r.serial}
		to := func(kind stepKind, next scheduler, change func(t *state)) {
			t := s
			t.schedulers[i] = next
			if change != nil {
				change(&t)
			}
			about.kind = kind
			emit(about, t)
		}
		switch r.phase {
		case idle:
			next := idleReplica
			next.phase, next.records = looked, s.records
			for n := range s.nodes {
				next.pools[n], next.used[n] = s.nodes[n].entries, s.nodes[n].used
			}
			if s.stale > 0 {
				// The scheduler keeps this copy of the caches and decides from it in a later step.
				to(schedulerLags, next, func(t *state) { t.stale-- })
			}
			decide(sc, s, next, &about, to)
		case looked:
			to(schedulerCatchesUp, idleReplica, nil)
			decide(sc, s, r, &about, to)
		case decided:
			next := r
			next.phase = claimed
			next.pools, next.used, next.records = idleReplica.pools, idleReplica.used, idleReplica.records
			o := s.nodes[r.node]
			edits, err := r.claim(sc, poolOf(r.node, r.pools[r.node], r.used[r.node]))
			if err != nil || o.entries != r.pools[r.node] && sc.wholeClaims || !o.apply(edits) {
				next = idleReplica
			}
			to(schedulerClaims, next, func(t *state) { t.nodes[r.node].entries = o.entries })
			if s.crashes > 0 {
				// The scheduler is killed before it gets the response to the write.
				to(schedulerCrashes, idleReplica, func(t *state) {
					t.nodes[r.node].entries = o.entries
					t.crashes--
				})
			}
		case claimed:
			to(schedulerBinds, idleReplica, func(t *state) {
				p := &t.pods[r.name]
				// The API server compares the UID, and refuses to bind a pod that is bound already or is being deleted.
				if t.serial[r.name] == r.serial && p.exists && !p.deleting && p.node == none {
					p.node = r.node
					t.boxes[r.name][r.serial] = sandbox{node: r.node, addr: none}
				}
			})
		}
	}
}

// decide emits the decisions of a replica about every unbound pod that no other scheduler places.
func decide(sc scope, s state, r scheduler, about *step, to func(stepKind, scheduler, func(*state))) {
	for name := range int8(nameCount) {
		if p := s.pods[name]; !p.exists || p.deleting || p.node != none || s.serial[name] < sc.foreign[name] {
			continue
		}
		for _, next := range r.placements(sc, name) {
			next.serial = s.serial[name]
			next.forget(sc)
			about.name, about.serial, about.node, about.addr = name, next.serial, next.node, next.addr
			to(schedulerDecides, next, nil)
		}
	}
}

// forget clears the cached state that does not matter for the later steps of the decision. If the entry already exists,
// forget also sets the phase to claimed: no claim is needed, and the next step is the bind.
func (r *scheduler) forget(sc scope) {
	if !sc.slots {
		r.records = idleReplica.records
	}
	for n := range r.pools {
		if int8(n) != r.node || r.entryExists {
			r.pools[n], r.used[n] = entries{}, unused
		}
	}
	if r.entryExists {
		r.phase, r.records = claimed, idleReplica.records
	}
}

// placements returns the placements of a pod that the caches of the replica allow.
func (r scheduler) placements(sc scope, name int8) []scheduler {
	r.phase, r.name = decided, name
	var with []int8
	for n := range int8(nodeCount) {
		if r.pools[n].owned(name) != none {
			with = append(with, n)
		}
	}
	rec := r.records[name]
	switch {
	case rec.exists && rec.deleting || len(with) > 1:
		return nil
	case len(with) == 1:
		r.node, r.entryExists = with[0], true
		r.addr = r.pools[r.node].owned(name)
		if rec.exists && rec.addr != r.addr {
			return nil
		}
		return []scheduler{r}
	case rec.exists:
		return r.choose(sc, homes[rec.addr], rec.addr)
	}
	if sc.slots {
		for other := range int8(nameCount) {
			if o := r.records[other]; other != name && o.exists && o.takeable {
				return r.choose(sc, homes[o.addr], o.addr)
			}
		}
	}
	// Without a reservation and without a slot to take over, the pod may get the highest free address of each node.
	var all []scheduler
	for n := range int8(nodeCount) {
		for a := int8(addrCount - 1); a >= 0; a-- {
			if homes[a] != n || r.reserved(a, name) {
				continue
			}
			if found := r.choose(sc, n, a); found != nil {
				all = append(all, found...)
				break
			}
		}
	}
	return all
}

// choose returns the placement with one address; nil if the core does not let the pod claim the address.
func (r scheduler) choose(sc scope, node, addr int8) []scheduler {
	r.node, r.addr = node, addr
	if _, err := r.claim(sc, poolOf(node, r.pools[node], r.used[node])); err != nil {
		return nil
	}
	return []scheduler{r}
}

// claim returns the edits that write the decision into a version of the pool. It returns an error if the core does not let
// the pod claim the address.
func (r scheduler) claim(sc scope, n pool.NodePool) ([]pool.EntryChange, error) {
	want := []netip.Addr{addrs[r.addr]}
	if from := r.takesFrom(r.addr); sc.slots && from != none {
		return n.TakeOver(want, owners[from], ownedEntry(r.name))
	}
	return n.Claim(want, ownedEntry(r.name))
}

// takesFrom returns the other name whose slot has the address and can be taken over, or none.
func (r scheduler) takesFrom(addr int8) int8 {
	for other, o := range r.records {
		if int8(other) != r.name && o.exists && o.takeable && o.addr == addr {
			return int8(other)
		}
	}
	return none
}

// reserved reports whether the FixedIP of another name has the address.
func (r scheduler) reserved(addr, name int8) bool {
	for other, o := range r.records {
		if int8(other) != name && o.exists && o.addr == addr {
			return true
		}
	}
	return false
}
