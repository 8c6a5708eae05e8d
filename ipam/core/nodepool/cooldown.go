// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"net/netip"
	"slices"
	"time"

	"fixedip.io/fixedip/ipam/core/pool"
)

// fenceLasts is how long the cooldown of an address lasts at least on a node that is not its home. Until its home has
// released it, that cooldown keeps the address from coming back there (see pool.Move), and the controller of FixedIPs
// looks at it a second later. Cooldowns count whole seconds, so that one of less than two could end between the two:
// the address would be fenced and unfenced for ever.
const fenceLasts = 5 * time.Second

// ExpireCooldowns returns the edits that remove the entries of addresses whose cooldown has ended. An address that a pod
// on the node still has stays, and the cooldown of one that the agent still reports starts again. heard is since when
// the node is ready: what its agent did not report before proves nothing. next is when the next cooldown ends; zero if
// there is none.
func ExpireCooldowns(n pool.NodePool, now time.Time, coolDown time.Duration, heard time.Time, inUse func(netip.Addr) bool) (edits []pool.EntryChange, next time.Time) {
	for a, e := range n.Entries {
		if e.Kind != pool.Cooldown {
			continue
		}
		at := e.SinceTime()
		rest := coolDown
		if !n.Home(a) {
			rest = max(coolDown, fenceLasts)
		}
		if at.Before(heard) {
			at = heard
		}
		due := at.Add(rest)
		if now.Before(due) {
			if next.IsZero() || due.Before(next) {
				next = due
			}
			continue
		}
		if inUse(a) {
			continue
		}
		if n.InUse(a) {
			// Without a cool-down there is nothing to start anew, and a write would follow the other.
			if coolDown > 0 {
				edits = append(edits, n.Set(a, pool.CooldownEntry(e.Pod, now)))
			}
			continue
		}
		edit, _ := n.Drop(a)
		edits = append(edits, edit)
	}
	slices.SortFunc(edits, func(x, y pool.EntryChange) int { return x.Addr.Compare(y.Addr) })
	return edits, next
}
