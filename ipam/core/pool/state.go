// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import "fixedip.io/fixedip/ipam/core/address"

// State is what an entry means for the room on its node, as metrics and commands show it.
type State string

const (
	// StateFree and StateUsed are dynamic entries, by the last report of the agent.
	StateFree     State = "free"
	StateUsed     State = "used"
	StateFixed    State = "fixed"
	StateCooldown State = "cooldown"
	StateNode     State = "node"
	StateOther    State = "other"
)

// CountStates counts the entries of a family by state. It contains free, used and fixed even if they are 0.
func (n NodePool) CountStates(f address.Family) map[State]int {
	states := map[State]int{StateFree: 0, StateUsed: 0, StateFixed: 0}
	for a, e := range n.Entries {
		switch {
		case address.Of(a) != f:
		case e.Kind == Cooldown:
			states[StateCooldown]++
		case e.Kind == Dynamic && n.InUse(a):
			states[StateUsed]++
		case e.Kind == Dynamic:
			states[StateFree]++
		case e.Kind == Owned:
			states[StateFixed]++
		case e.Kind == NodeOwned:
			states[StateNode]++
		default:
			states[StateOther]++
		}
	}
	return states
}
