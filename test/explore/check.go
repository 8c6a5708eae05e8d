// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import "fmt"

// mutation is a rule that a search leaves out. The zero value leaves none out.
type mutation uint8

const (
	// The zero mutation leaves nothing out.
	_ mutation = iota
	// releaseUnseen lets a release begin without a look at the API server.
	releaseUnseen
	// noBarrier ends a cooldown by the agent's last report, whatever version of the pool the agent had seen.
	noBarrier
	// trustIncomplete uses the answer of an agent that has not restored its endpoints.
	trustIncomplete
	// ownUnasked makes a withdrawn address a pod's own before the agent has confirmed that the pod has it.
	ownUnasked
	// ownOffered makes a dynamic address a pod's own at once, without withdrawing it first.
	ownOffered
)

// violates returns a description of an invariant of the design that does not hold in a state; empty if all hold.
func violates(sc scope, s state) string {
	// Invariant 1: at most one pod runs with an address, and at most one FixedIP has it.
	var user [addrCount]*sandbox
	for name := range s.boxes {
		for serial := range s.boxes[name] {
			b := &s.boxes[name][serial]
			if b.state != running {
				continue
			}
			if user[b.addr] != nil {
				return fmt.Sprintf("two pods run with address %d", b.addr)
			}
			user[b.addr] = b
			p := s.pods[name]
			exists := p.exists && s.serial[name] == int8(serial)
			// Invariant 2: the address of a pod that runs has no entry for another name. A pod that was deleted by force may
			// still run: then its agent has to refuse the address to others, which it does while it has the endpoint.
			if e := s.nodes[homes[b.addr]].entries[b.addr]; e != 0 && (exists || !b.endpoint) {
				for other := range int8(nameCount) {
					if e.entry().OwnedBy(owners[other]) && other != int8(name) {
						return fmt.Sprintf("address %d belongs to name %d, and name %d runs with it", b.addr, other, name)
					}
				}
			}
			// Invariant 5: an agent that restarts finds the address of every pod in the pool.
			if exists && s.nodes[b.node].entries[b.addr] == 0 {
				return fmt.Sprintf("name %d runs with address %d, which its pool does not have", name, b.addr)
			}
		}
	}
	for name, p := range s.pods {
		// Invariant 2 for a pod that has not started: no other pod runs with the address that it is placed for.
		ours := s.serial[name] >= sc.foreign[name]
		if !ours || !p.exists || p.node == none || p.addr != none {
			continue
		}
		if a := s.nodes[p.node].entries.owned(int8(name)); a != none && user[a] != nil && user[a] != &s.boxes[name][0] && user[a] != &s.boxes[name][1] {
			return fmt.Sprintf("name %d is placed for address %d, which another pod runs with", name, a)
		}
	}
	for name, rec := range s.records {
		if !rec.exists {
			continue
		}
		for other := name + 1; other < nameCount; other++ {
			if o := s.records[other]; o.exists && o.addr == rec.addr {
				return fmt.Sprintf("two FixedIPs have address %d", rec.addr)
			}
		}
		// Invariant 5: no reservation is lost while its workload exists, and no reserved address has an entry for another
		// name.
		if rec.deleting && s.wanted[name] && !s.remade[name] {
			return fmt.Sprintf("the FixedIP of name %d is being deleted, whose workload exists", name)
		}
		for other := range int8(nameCount) {
			if other != int8(name) && !rec.takeable && s.nodes[homes[rec.addr]].entries.owned(other) == rec.addr {
				return fmt.Sprintf("address %d is reserved by the FixedIP of name %d, but its pool entry is owned by name %d", rec.addr, name, other)
			}
		}
	}
	return ""
}
