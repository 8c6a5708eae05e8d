// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import "fmt"

// mutation is a rule that a search leaves out. The zero value leaves out no rule.
type mutation uint8

const (
	_ mutation = iota
	// releaseUnchecked lets a release begin without a check of the pods and workloads at the API server.
	releaseUnchecked
	// noBarrier lets the last report of the agent end a cooldown, even if the agent had not seen the cooldown entry then.
	noBarrier
	// trustIncomplete accepts the report of an agent that has not restored its endpoints.
	trustIncomplete
	// ownUnconfirmed writes the owned entry of an address in cooldown without an agent barrier. The agent may not have seen
	// the cooldown entry, and another pod may have the address.
	ownUnconfirmed
	// ownOffered replaces a dynamic entry by an owned entry at once, without withdrawing the address first.
	ownOffered
)

// violates returns a description of an invariant of the design that a state violates; empty if it violates none.
func violates(sc scope, s state) string {
	// Invariant: at most one pod runs with an address.
	var user [addrCount]*sandbox
	for name := range s.boxes {
		for serial := range s.boxes[name] {
			b := &s.boxes[name][serial]
			if b.state != running {
				continue
			}
			if user[b.addr] != nil {
				return fmt.Sprintf("two pods run with address %d, want at most one", b.addr)
			}
			user[b.addr] = b
			p := s.pods[name]
			exists := p.exists && s.serial[name] == int8(serial)
			// Invariant: the address of a pod that runs has no entry for another name. There is one exception: a pod that
			// was deleted by force may still run. As long as the agent has an endpoint of that pod, the entry may name
			// another pod, because the agent refuses an endpoint of another pod with the address.
			if e := s.nodes[homes[b.addr]].entries[b.addr]; e != 0 && (exists || !b.endpoint) {
				for other := range int8(nameCount) {
					if e.entry().OwnedBy(owners[other]) && other != int8(name) {
						return fmt.Sprintf("the entry of address %d is owned by pod name %d, but a pod with name %d runs with the address", b.addr, other, name)
					}
				}
			}
			// Invariant: the address of every pod that exists and runs has an entry, so that an agent that restarts can
			// restore the endpoint of the pod.
			if exists && s.nodes[b.node].entries[b.addr] == 0 {
				return fmt.Sprintf("a pod with name %d runs with address %d, which has no entry in the pool of its node", name, b.addr)
			}
		}
	}
	for name, p := range s.pods {
		// Invariant: if fixedip-scheduler has bound a pod whose address is not reported yet, no pod with another name runs
		// with the address of the pod's entry.
		ours := s.serial[name] >= sc.foreign[name]
		if !ours || !p.exists || p.node == none || p.addr != none {
			continue
		}
		if a := s.nodes[p.node].entries.owned(int8(name)); a != none && user[a] != nil && user[a] != &s.boxes[name][0] && user[a] != &s.boxes[name][1] {
			return fmt.Sprintf("a pod with name %d is bound to a node for address %d, but a pod with another name runs with the address", name, a)
		}
	}
	for name, rec := range s.records {
		if !rec.exists {
			continue
		}
		// Invariant: at most one FixedIP has an address.
		for other := name + 1; other < nameCount; other++ {
			if o := s.records[other]; o.exists && o.addr == rec.addr {
				return fmt.Sprintf("two FixedIPs have address %d, want at most one", rec.addr)
			}
		}
		// Invariant: no reservation is lost while its workload exists, and no reserved address has an entry for another
		// name. There are two exceptions: a workload that was deleted and created again may lose its reservation, and the
		// entry of a slot that can be taken over may name the next pod.
		if rec.deleting && s.wanted[name] && !s.remade[name] {
			return fmt.Sprintf("the FixedIP of pod name %d is being deleted, but its workload exists", name)
		}
		for other := range int8(nameCount) {
			if other != int8(name) && !rec.takeable && s.nodes[homes[rec.addr]].entries.owned(other) == rec.addr {
				return fmt.Sprintf("address %d is reserved by the FixedIP of pod name %d, but its pool entry is owned by pod name %d", rec.addr, name, other)
			}
		}
	}
	return ""
}
