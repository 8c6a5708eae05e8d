// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnetplan

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/plan"
)

// Policy says what becomes of the subnets of a node that is gone while FixedIPs reserve addresses in them.
type Policy string

const (
	// Inherit means that after the grace period they go to the first suitable node that joined since.
	Inherit Policy = "Inherit"
	// Hold means that they wait for a node of the same name.
	Hold Policy = "Hold"
	// Free means that after the grace period the FixedIPs in them are deleted.
	Free Policy = "Free"
)

// Policies are all there are.
var Policies = []Policy{Inherit, Hold, Free}

// Rules say where subnets come from, and what becomes of orphans.
type Rules struct {
	// Pools are what subnets are cut from, in this order. There are none if each node brings its own subnets.
	Pools []address.ClusterPool
	// Policy and Hold, the grace period, are for orphans.
	Policy Policy
	Hold   time.Duration
	// Failover is the policy of FixedIPs that name none.
	Failover v1alpha1.Failover
}

// migrateHold is how long at most a node that is gone may come back to subnets with an address that may migrate. A
// node that only registers again is back in seconds.
const migrateHold = 10 * time.Second

// Origin is where the subnets of a node come from.
type Origin string

// The origins.
const (
	// Carved means that they were cut from the cluster pools.
	Carved Origin = "carved"
	// Brought means that the node itself brought them, as Node.spec.podCIDRs.
	Brought Origin = "brought"
	// Returned means that the node had them before.
	Returned Origin = "returned"
	// Inherited means that from a node that is gone, by a node that joins.
	Inherited Origin = "inherited"
	// Adopted means that from a node that is gone, by a node that has subnets.
	Adopted Origin = "adopted"
)

// Origins are all there are.
var Origins = []Origin{Carved, Brought, Returned, Inherited, Adopted}

// Heir is a node that may inherit the subnets of a node that is gone.
type Heir struct {
	Name string
	// Subnets is how many it has.
	Subnets int
	// SuccessorOf is the node that its label says it replaces.
	SuccessorOf string
	// Ready: pods can be placed there now.
	Ready bool
	// Joined is when its Node was created.
	Joined      time.Time
	Constraints v1alpha1.NodeConstraints
}

// chosen reports whether a node has to inherit an orphan, whatever the policy: a person chose it, or it has been given
// a part already.
func (o Orphan) chosen(h Heir) bool {
	return o.Heir == h.Name || o.Successor == h.Name || o.Node != "" && h.SuccessorOf == o.Node
}

// mayInherit reports whether a node may inherit an orphan now. If not, at is when it may; zero: not before something
// changes.
//
// A node that was chosen may at once. A node without subnets that joins may after the grace period, by policy Inherit. A
// node that has subnets must be ready, and may soon if an address may migrate. By policy Inherit it may after the grace
// period if it joined while the orphan was reserved for its own node, or at most as long before: replacements often join
// before what they replace is deleted.
func (r Rules) mayInherit(o Orphan, h Heir, now time.Time) (ok bool, at time.Time) {
	hold := r.Hold
	switch {
	case len(o.Subnets) == 0 || o.Node == h.Name, o.Heir == "" && len(o.Kept) == 0, o.Heir != "" && o.Heir != h.Name:
		return false, time.Time{}
	case o.chosen(h):
		return true, time.Time{}
	case o.Since.IsZero() || !suits(h.Constraints, o.Constraints):
		return false, time.Time{}
	case h.Subnets > 0 && h.Ready && r.migrates(o):
		hold = min(r.Hold, migrateHold)
	case r.Policy != Inherit || h.Subnets > 0 && (!h.Ready || h.Joined.Before(o.Since.Add(-r.Hold))):
		return false, time.Time{}
	}
	if !o.waited(hold, now) {
		return false, o.Since.Add(hold)
	}
	return true, time.Time{}
}

// JoinerInherits returns the orphan that a node inherits instead of a new subnet. After those that it was chosen for
// comes the orphan that has waited longest.
func (r Rules) JoinerInherits(j Heir, orphans []Orphan, now time.Time) (found Orphan, ok bool) {
	for _, o := range orphans {
		better := !ok || o.chosen(j) && !found.chosen(j) || o.chosen(j) == found.chosen(j) && o.Since.Before(found.Since)
		if may, _ := r.mayInherit(o, j, now); may && better && (j.Subnets == 0 || o.chosen(j)) {
			found, ok = o, true
		}
	}
	return found, ok
}

// PickExistingNode returns the node that inherits an orphan in addition to its subnets: a node that was chosen for it,
// then one of the same node pool, then the one with the fewest subnets, then by name. No heir: none may have it now. at
// is when to ask again; zero: not before something changes.
func (r Rules) PickExistingNode(o Orphan, heirs []Heir, now time.Time) (heir string, at time.Time) {
	rank := func(h Heir) int {
		switch {
		case o.chosen(h):
			return 0
		case samePool(h.Constraints, o.Constraints):
			return 1
		}
		return 2
	}
	var found *Heir
	for i, h := range heirs {
		ok, due := r.mayInherit(o, h, now)
		if ok && (found == nil || cmp.Or(rank(h)-rank(*found), cmp.Compare(h.Subnets, found.Subnets), cmp.Compare(h.Name, found.Name)) < 0) {
			found = &heirs[i]
		}
		if !due.IsZero() && (at.IsZero() || due.Before(at)) {
			at = due
		}
	}
	if found != nil {
		return found.Name, time.Time{}
	}
	return "", at
}

// migrates reports whether an address of an orphan may follow its pod to another node. One that lives elsewhere has
// done so.
func (r Rules) migrates(o Orphan) bool {
	return slices.ContainsFunc(o.Kept, func(k plan.ReservedAddress) bool {
		return k.Node == o.Node && cmp.Or(k.Failover, r.Failover) == v1alpha1.Migrate
	})
}

// ExpiredReservations returns the addresses of an orphan that policy Free gives up now, or when it will. An address that lives on
// another node is not given up: only its home is gone.
func (r Rules) ExpiredReservations(o Orphan, now time.Time) (kept []plan.ReservedAddress, at time.Time) {
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

// Releasable reports whether an orphan can be given up because no FixedIP reserves an address in it, or when it will
// be: a node of the same name may come back to its subnets within the grace period.
func (r Rules) Releasable(o Orphan, now time.Time) (ok bool, at time.Time) {
	switch {
	case len(o.Kept) > 0 || len(o.Subnets) == 0 || o.Heir != "":
		return false, time.Time{}
	case o.Node == "":
		return true, time.Time{}
	case o.Since.IsZero():
		return false, time.Time{}
	case !o.waited(r.Hold, now):
		return false, o.Since.Add(r.Hold)
	}
	return true, time.Time{}
}

// ReservedIn returns the reserved addresses that are in some subnets.
func ReservedIn(subnets []netip.Prefix, kept []plan.ReservedAddress) []plan.ReservedAddress {
	set := address.Union(subnets)
	return slices.DeleteFunc(slices.Clone(kept), func(k plan.ReservedAddress) bool { return !set.Contains(k.Addr) })
}
