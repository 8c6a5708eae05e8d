// Package plan decides what the controller does next: for the pool of a node, for the subnets of
// the cluster, for the record of an identity.
//
// It is pure: every function answers from its arguments. It reads API objects as values; it may
// not read a cache, call an API, or look at a clock.
package plan

import (
	"net/netip"
	"slices"
	"time"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Watermark says how many dynamic entries the pool of a node holds in each family.
type Watermark struct {
	// Free is how many should be free. It is kept modest: the size of a pool is the price of every
	// write to it, and every agent receives every write.
	Free int
	// Excess is how many more may be free before some are taken out again. A pool whose pods come
	// and go in numbers of up to half of it is written to no more than they make it grow.
	Excess int
	// Max is how many dynamic entries there may be, free or in use; the rest of the subnet is left
	// to fixed addresses.
	Max int
}

// ForNode is the watermark of one node where Max says nothing: as many as the node takes pods, and
// its own addresses, but no more than half of its addresses, so that there is room for fixed ones.
// pods is Node.status.allocatable, size how many addresses the node's subnets have in the family.
func (w Watermark) ForNode(pods, size int64) Watermark {
	if w.Max == 0 {
		own := int64(len(pool.NodeOwners))
		w.Max = int(min(pods+own, max(own, size/2)))
	}
	return w
}

// Fill makes the edits that bring the free dynamic entries of a family up to the watermark, from
// the bottom of the subnets upwards, past what FixedIPs keep. Entries that are being taken out count
// as free: where they are needed Ask keeps them. short is how many the subnets have no room for.
func Fill(n pool.Node, f address.Family, w Watermark, kept func(netip.Addr) bool) (edits []pool.Edit, short int) {
	free, dynamic := 0, 0
	for a, e := range n.Entries {
		if address.Of(a) != f || e.Kind != pool.Dynamic {
			continue
		}
		dynamic++
		if !n.InUse(a) && !kept(a) && n.Handshakes[a] != pool.TakenOut {
			free++
		}
	}
	missing := min(w.Free-free, w.Max-dynamic)
	for _, s := range n.Subnets {
		if missing <= 0 {
			break
		}
		if address.Of(s.Addr()) != f {
			continue
		}
		for a := range address.Up(s) {
			if missing <= 0 {
				break
			}
			if _, exists := n.Entries[a]; exists || n.InUse(a) || n.IsReleasing(a) || kept(a) {
				continue
			}
			edits = append(edits, n.Set(a, pool.Entry{}))
			missing--
		}
	}
	return edits, max(0, missing)
}

// barLasts is how long the mark of a released address stays at least on a node that is not its home. Until its
// home has let go of it, that mark bars its way back there (see pool.Move), and who gives the address up looks
// at it a second later. A mark counts whole seconds only, so that a cool-down of less than two could end between
// the two: the address would be barred and unbarred for ever.
const barLasts = 5 * time.Second

// Rested makes the edits that remove the entries of released addresses that have cooled down, so
// that they are free again. An address that a pod on the node still has goes on resting, and one that
// the agent still lists starts anew: it cools down once the agent has let go of it. heard is since when the node has
// been heard of: what its agent did not list before proves nothing. next is when the next one will have cooled down;
// zero where none rests.
func Rested(n pool.Node, now time.Time, coolDown time.Duration, heard time.Time, inUse func(netip.Addr) bool) (edits []pool.Edit, next time.Time) {
	for a, e := range n.Entries {
		if e.Kind != pool.Cooldown {
			continue
		}
		at := e.SinceTime()
		rest := coolDown
		if !n.Home(a) {
			rest = max(coolDown, barLasts)
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
	slices.SortFunc(edits, func(x, y pool.Edit) int { return x.Addr.Compare(y.Addr) })
	return edits, next
}
