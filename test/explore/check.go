// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import "fmt"

// mutation is a rule that a search leaves out.
type mutation uint8

const (
	// The zero mutation leaves nothing out.
	_ mutation = iota
	// releaseUnseen: a release does not look at the API server first.
	releaseUnseen
	// noBarrier: the cooldown ends by the agent's last report, whatever version of the pool it had seen.
	noBarrier
	// trustIncomplete: the answer of an agent that has not restored its endpoints counts.
	trustIncomplete
	// ownUnasked: a withdrawn address becomes a pod's own before the agent has confirmed that the pod has it.
	ownUnasked
	// ownOffered: an address that the pool offers to all pods becomes a pod's own at once.
	ownOffered
)

// violates returns which invariant of the design does not hold in a state, in words; empty: all hold.
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
			// Invariant 2: an address belongs to no other pod than the one that runs with it. A pod that was deleted by force may run on unseen: then its agent has to
			// refuse the address to others, which it does while it has the endpoint.
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
		// Invariant 2 for a pod that has not started: the address that it is placed for is not in use.
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
		// Invariant 5: no reservation is lost while its workload exists, and none to another pod.
		if rec.deleting && s.wanted[name] && !s.remade[name] {
			return fmt.Sprintf("the FixedIP of name %d is being deleted, whose workload exists", name)
		}
		for other := range int8(nameCount) {
			if other != int8(name) && !rec.takeable && s.nodes[homes[rec.addr]].entries.owned(other) == rec.addr {
				return fmt.Sprintf("address %d is reserved for name %d and belongs to name %d", rec.addr, name, other)
			}
		}
	}
	return ""
}
