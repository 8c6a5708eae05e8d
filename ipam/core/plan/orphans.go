// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Policy says what becomes of the subnets of a node that is gone while addresses are kept in them.
type Policy string

const (
	// Inherit means that after the hold time they go to the first node that joined since.
	Inherit Policy = "Inherit"
	// Hold means that they wait for their node.
	Hold Policy = "Hold"
	// Free means that after the hold time the FixedIPs in them are given up.
	Free Policy = "Free"
)

// Policies are all there are.
var Policies = []Policy{Inherit, Hold, Free}

// migrateHold is how long at most a node that is gone may come back to subnets that hold an address
// which may migrate. Whoever asks for that wants his pod back soon, and a node that only registers
// anew is back in seconds.
const migrateHold = 10 * time.Second

// Orphan is what a node had that is gone: subnets that no node has, and what is kept in them.
// Nothing decides over the addresses there, so nothing else may be put there. They go to one heir
// together, since pods have addresses of both families on one node.
type Orphan struct {
	// Node is the one that had them; empty where no record says so.
	Node string
	// Subnets are none where it can't be told what they were, as the addresses are in no cluster pool.
	Subnets []netip.Prefix
	Kept    []Kept
	// Since is when the node was first seen gone; zero: that is not recorded.
	Since time.Time
}

// waited tells whether an orphan was without a node for so long.
func (o Orphan) waited(hold time.Duration, now time.Time) bool {
	return !o.Since.IsZero() && !now.Before(o.Since.Add(hold))
}

// migrates tells whether an orphan keeps an address that may follow its pod. One that lives elsewhere
// has done so.
func (r SubnetRules) migrates(o Orphan) bool {
	return slices.ContainsFunc(o.Kept, func(k Kept) bool {
		return k.Node == o.Node && cmp.Or(k.Failover, r.Failover) == v1alpha1.Migrate
	})
}

// Orphans finds all kept addresses that are in no node's subnet. homed tells whether a node has
// subnets: one that has none, though a record names it, is the one that is gone. The result is
// sorted by node and subnet.
func Orphans(pools []address.ClusterPool, taken *netipx.IPSet, kept []Kept, homed func(node string) bool) []Orphan {
	// Key: a subnet, or the zero Prefix for addresses outside all pools. Value: what is kept there.
	inside := map[netip.Prefix][]Kept{}
	for _, k := range kept {
		if !taken.Contains(k.Addr) {
			subnet, _ := address.SubnetOf(pools, k.Addr, taken)
			inside[subnet] = append(inside[subnet], k)
		}
	}
	type key struct {
		node, owner string
		stray       bool
	}
	groups := map[key]*Orphan{}
	for _, subnet := range slices.SortedFunc(maps.Keys(inside), netip.Prefix.Compare) {
		kept := inside[subnet]
		slices.SortFunc(kept, func(x, y Kept) int { return x.Addr.Compare(y.Addr) })
		k := key{node: lostNode(kept, homed), stray: !subnet.IsValid()}
		if k.node == "" {
			// The families of one pod are what holds subnets together otherwise.
			k.owner = slices.MinFunc(kept, func(x, y Kept) int { return cmp.Compare(x.Entry.Owner, y.Entry.Owner) }).Entry.Owner
		}
		o := groups[k]
		if o == nil {
			o = &Orphan{Node: k.node}
			groups[k] = o
		}
		if subnet.IsValid() {
			o.Subnets = append(o.Subnets, subnet)
		}
		o.Kept = append(o.Kept, kept...)
		for _, k := range kept {
			if !k.Since.IsZero() && (o.Since.IsZero() || k.Since.Before(o.Since)) {
				o.Since = k.Since
			}
		}
	}
	var orphans []Orphan
	for _, o := range groups {
		orphans = append(orphans, *o)
	}
	slices.SortFunc(orphans, func(x, y Orphan) int {
		return cmp.Or(cmp.Compare(x.Node, y.Node), x.Kept[0].Addr.Compare(y.Kept[0].Addr))
	})
	return orphans
}

// Orphans are those of the world.
func (w World) Orphans(pools []address.ClusterPool) []Orphan {
	return Orphans(pools, address.Union(w.Taken), w.Kept, w.Homed)
}

// lostNode is the node without subnets that most records name. An address that lives on another
// node than its home names that one, which has subnets as a rule.
func lostNode(kept []Kept, homed func(string) bool) string {
	named := map[string]int{}
	for _, k := range kept {
		if k.Node != "" && !homed(k.Node) {
			named[k.Node]++
		}
	}
	most := ""
	for _, node := range slices.Sorted(maps.Keys(named)) {
		if named[node] > named[most] {
			most = node
		}
	}
	return most
}

// Heir is a living node that has subnets and may have more.
type Heir struct {
	Name string
	// Subnets is how many it has.
	Subnets int
	// SuccessorOf is the node that it names as the one whose successor it is.
	SuccessorOf string
	// Ready: pods can be placed there now.
	Ready bool
	// Joined is when it came.
	Joined time.Time
}

// Adopter chooses the living node that takes over an orphan in addition to what it has: the one
// that names itself the successor, at once; any that is ready where an address may migrate, soon;
// and, where orphans are inherited, one that joined while the orphan was being held for its node, or
// at most as long before. It may have come in place of the node while nobody looked, as while another
// controller takes the lead, and replacements often join before what they replace is deleted.
// No heir: none may have it now. at is when to ask again; zero: not before something changes.
func (r SubnetRules) Adopter(o Orphan, heirs []Heir, now time.Time) (heir string, at time.Time) {
	if len(o.Subnets) == 0 {
		return "", time.Time{}
	}
	if heir := best(heirs, func(h Heir) bool { return o.Node != "" && h.SuccessorOf == o.Node }); heir != "" {
		return heir, time.Time{}
	}
	if o.Since.IsZero() {
		return "", time.Time{}
	}
	type way struct {
		hold time.Duration
		may  func(Heir) bool
	}
	var ways []way
	if r.migrates(o) {
		ways = append(ways, way{min(r.Hold, migrateHold), func(h Heir) bool { return h.Ready }})
	}
	if r.Policy == Inherit {
		ways = append(ways, way{r.Hold, func(h Heir) bool { return h.Ready && !h.Joined.Before(o.Since.Add(-r.Hold)) }})
	}
	for _, w := range ways {
		due := o.Since.Add(w.hold)
		if now.Before(due) {
			if at.IsZero() || due.Before(at) {
				at = due
			}
			continue
		}
		if heir := best(heirs, w.may); heir != "" {
			return heir, time.Time{}
		}
	}
	return "", at
}

// best is the node with the fewest subnets among those that may, the first by name of several.
func best(heirs []Heir, may func(Heir) bool) string {
	var found *Heir
	for i, h := range heirs {
		if may(h) && (found == nil || cmp.Or(cmp.Compare(h.Subnets, found.Subnets), cmp.Compare(h.Name, found.Name)) < 0) {
			found = &heirs[i]
		}
	}
	if found == nil {
		return ""
	}
	return found.Name
}

// GivenUp lists what is to be given up of an orphan by the policy Free, or says when. What lives on
// another node is not: its home alone is gone.
func (r SubnetRules) GivenUp(o Orphan, now time.Time) (kept []Kept, at time.Time) {
	if r.Policy != Free || o.Node == "" || o.Since.IsZero() {
		return nil, time.Time{}
	}
	if !o.waited(r.Hold, now) {
		return nil, o.Since.Add(r.Hold)
	}
	for _, k := range o.Kept {
		if k.Node == o.Node {
			kept = append(kept, k)
		}
	}
	return kept, time.Time{}
}

// Announced is an address that is announced in the pool of a node.
type Announced struct {
	Node  string
	Addr  netip.Addr
	Entry pool.Entry
}

// Reserve decides what stands in the pool of a node from the moment that it has subnets in which
// addresses are kept. others are the pools of all other nodes, as they are while nobody decides over
// the addresses.
//
// An address that the pool of another node offers lives there: the mark of its absence is put in its
// place, whoever it is kept for. One that is announced elsewhere was about to move when its home was
// lost. It must not arrive any more once its home has it again: announced lists the marks to
// take away first, after which the pools have to be read anew, since it may have arrived meanwhile.
// What the node itself has under such an address is at home from then on, and left as it is.
func Reserve(heir pool.Node, subnets []netip.Prefix, kept []Kept, others []pool.Node) (entries map[netip.Addr]pool.Entry, announced []Announced) {
	inside := address.Union(subnets)
	entries = map[netip.Addr]pool.Entry{}
	for _, k := range kept {
		if inside.Contains(k.Addr) {
			entries[k.Addr] = k.Entry
		}
	}
	for a, e := range heir.Entries {
		if inside.Contains(a) && e.Allocatable() {
			delete(entries, a)
		}
	}
	for _, o := range others {
		for a, e := range o.Entries {
			if o.Name == heir.Name || !inside.Contains(a) {
				continue
			}
			if e.Kind == pool.MoveTarget {
				announced = append(announced, Announced{Node: o.Name, Addr: a, Entry: e})
			} else if e.Allocatable() {
				entries[a] = pool.MovedEntry(o.Name, e.NamesPod())
			}
		}
	}
	slices.SortFunc(announced, func(x, y Announced) int {
		return cmp.Or(cmp.Compare(x.Node, y.Node), x.Addr.Compare(y.Addr))
	})
	return entries, announced
}
