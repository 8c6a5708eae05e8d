// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
)

// SubnetRules say where the subnets of nodes come from, and what becomes of those that lose their
// node while addresses are kept in them.
type SubnetRules struct {
	// Pools are what subnets are cut from, in this order. There are none where each node brings its
	// own subnets.
	Pools []address.ClusterPool
	// Policy and Hold are for orphans.
	Policy Policy
	// Hold is how long an orphan waits for its node before another may have it.
	Hold time.Duration
	// Failover is for records that say nothing.
	Failover v1alpha1.Failover
}

// Kept is an address that a record keeps for an identity.
type Kept struct {
	Addr netip.Addr
	// Node is where the record says that the address is.
	Node string
	// Entry is the pool entry that gives it to the identity.
	Entry pool.Entry
	// Record is the FixedIP.
	Record types.NamespacedName
	// Failover is what the record says becomes of the pod when its node can't take it; empty: nothing.
	Failover v1alpha1.Failover
	// Since is when the node of its subnet was seen gone; zero: that is not recorded.
	Since time.Time
}

// EntryOf returns the pool entry that gives the addresses of a record to its pod.
func EntryOf(r *v1alpha1.FixedIP) pool.Entry {
	if r.Spec.Owner.Kind == "Pod" {
		return pool.BarePodEntry(r.Namespace, r.Spec.PodName)
	}
	return pool.OwnedEntry(r.Namespace, r.Spec.PodName, identity.OwnerOf(r).Label(), r.Spec.Owner.Name)
}

// Keeps lists the addresses that a record keeps. Text that is no address keeps nothing.
func Keeps(r *v1alpha1.FixedIP) []Kept {
	var since time.Time
	if c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionHomed); c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonNodeGone {
		since = c.LastTransitionTime.Time
	}
	var kept []Kept
	for _, ip := range r.Spec.IPs {
		if a, err := address.Parse(ip); err == nil {
			kept = append(kept, Kept{
				Addr:     a,
				Node:     r.Spec.NodeName,
				Entry:    EntryOf(r),
				Record:   types.NamespacedName{Namespace: r.Namespace, Name: r.Name},
				Failover: r.Spec.Failover,
				Since:    since,
			})
		}
	}
	return kept
}

// Joiner is a node that lacks a subnet in some family.
type Joiner struct {
	Name string
	// Subnets are those that it has.
	Subnets []netip.Prefix
	// Own are those that it brings, where the cluster has no pools.
	Own []netip.Prefix
	// SuccessorOf is the node that it names as the one whose successor it is.
	SuccessorOf string
}

func (j Joiner) has(f address.Family) bool {
	return slices.ContainsFunc(j.Subnets, func(s netip.Prefix) bool { return address.Of(s.Addr()) == f })
}

// World is what stands when subnets are given away.
type World struct {
	// Taken are the subnets of all nodes.
	Taken []netip.Prefix
	Kept  []Kept
	// Homed tells whether a node has subnets.
	Homed func(node string) bool
	// Present are nodes that have no subnets and exist nevertheless: what they had waits for them.
	Present map[string]bool
	Now     time.Time
}

// Origin is where the subnets of an assignment come from.
type Origin string

// The origins.
const (
	// Carved means that they were cut from the cluster pools.
	Carved Origin = "carved"
	// Brought means that the node itself brought them.
	Brought Origin = "brought"
	// Returned means that the node had them before.
	Returned Origin = "returned"
	// Inherited means that another node had them before, which is gone.
	Inherited Origin = "inherited"
	// Adopted means the same, and the node has others beside.
	Adopted Origin = "adopted"
)

// Assignment is what a node is given.
type Assignment struct {
	Subnets []netip.Prefix
	// Kept is what is kept in them, and reserved from the first moment.
	Kept []Kept
	// Origin is that of the subnets in which addresses are kept; Carved or Brought where none are.
	Origin Origin
	// From is the node that had them before.
	From string
	// Exhausted are families that the cluster pools have no subnet left in.
	Exhausted []address.Family
	// Overlap is a subnet that the node brings and that overlaps another node's, so that it is not
	// given any.
	Overlap netip.Prefix
}

// Assign chooses the subnets that a node lacks: those that it had before and in which addresses are
// kept, or an orphan that it may have, or else, in each family that the cluster has pools for, a
// new one that is neither taken nor an orphan.
func Assign(j Joiner, r SubnetRules, w World) Assignment {
	taken := address.Union(w.Taken)
	if len(r.Pools) == 0 {
		given := Assignment{Origin: Brought}
		for _, s := range j.Own {
			switch {
			case slices.Contains(j.Subnets, s):
			case taken.OverlapsPrefix(s):
				return Assignment{Origin: Brought, Overlap: s}
			default:
				given.Subnets = append(given.Subnets, s)
			}
		}
		given.Kept = KeptIn(given.Subnets, w.Kept)
		return given
	}
	// A node that has none of its subnets yet is no other than the one that is gone.
	orphans := Orphans(r.Pools, taken, w.Kept, func(node string) bool { return node != j.Name && w.Homed(node) })
	given := Assignment{Origin: Carved}
	if o, origin, ok := r.claim(j, orphans, w); ok {
		given = Assignment{Subnets: o.Subnets, Kept: o.Kept, Origin: origin, From: o.Node}
	}
	reserved := slices.Clone(w.Taken)
	for _, o := range orphans {
		reserved = append(reserved, o.Subnets...)
	}
	unfree := address.Union(reserved)
	with := Joiner{Subnets: slices.Concat(j.Subnets, given.Subnets)}
	for _, f := range address.Families {
		if with.has(f) || !slices.ContainsFunc(r.Pools, func(p address.ClusterPool) bool { return p.Family() == f }) {
			continue
		}
		subnet, ok := address.Carve(r.Pools, f, unfree)
		if !ok {
			given.Exhausted = append(given.Exhausted, f)
			continue
		}
		given.Subnets = append(given.Subnets, subnet)
	}
	return given
}

// claim finds the orphan that a node may have: its own, that of the node that it succeeds, or, where
// orphans are inherited by nodes that join, the one that waits longest.
func (r SubnetRules) claim(j Joiner, orphans []Orphan, w World) (found Orphan, origin Origin, ok bool) {
	var successor, eldest *Orphan
	for i := range orphans {
		o := &orphans[i]
		switch {
		case len(o.Subnets) == 0:
		case o.Node == j.Name:
			return *o, Returned, true
		case w.Present[o.Node]:
		case o.Node != "" && o.Node == j.SuccessorOf:
			successor = o
		case r.Policy == Inherit && len(j.Subnets) == 0 && o.waited(r.Hold, w.Now) && (eldest == nil || o.Since.Before(eldest.Since)):
			eldest = o
		}
	}
	switch {
	case successor != nil:
		return *successor, Inherited, true
	case eldest != nil:
		return *eldest, Inherited, true
	}
	return Orphan{}, "", false
}

// KeepsAll is what several records keep.
func KeepsAll(records []*v1alpha1.FixedIP) []Kept {
	var kept []Kept
	for _, r := range records {
		kept = append(kept, Keeps(r)...)
	}
	return kept
}

// KeptIn is what is kept in some subnets.
func KeptIn(subnets []netip.Prefix, kept []Kept) []Kept {
	set := address.Union(subnets)
	var found []Kept
	for _, k := range kept {
		if set.Contains(k.Addr) {
			found = append(found, k)
		}
	}
	return found
}
