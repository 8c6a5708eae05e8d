// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnetplan

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// OrphanedSubnets is what a node had that is gone. No pool decides over the addresses there. All of it goes to one heir, since
// pods have addresses of both families on one node.
type OrphanedSubnets struct {
	// Node is the node that is gone; empty: the subnets never had a node.
	Node string
	// Subnets are its NodeSubnets, by CIDR. There are none for addresses that are in no cluster pool.
	Subnets []Subnet
	// Reserved are the addresses that FixedIPs reserve there.
	Reserved []reservation.Address
	// Since is when the node was first observed to be gone; zero: that is not recorded yet.
	Since time.Time
	// Candidate is a node that was given some of the node's subnets and has to be given the rest: the controller stopped
	// in between.
	Candidate string
	// Successor is the heir that a person chose.
	Successor string
	// Constraints are what the node required of its pods; nil: not recorded.
	Constraints *v1alpha1.NodeConstraints
	// Waiting are the pods of the reserved addresses that a scheduler found no node for.
	Waiting []*corev1.Pod
}

// nominated returns how many of the waiting pods are nominated to a node: the scheduler found that they can run there.
func (o OrphanedSubnets) nominated(node string) (count int) {
	for _, pod := range o.Waiting {
		if pod.Status.NominatedNodeName == node {
			count++
		}
	}
	return count
}

// waited reports whether the subnets have been without a node for the time given.
func (o OrphanedSubnets) waited(hold time.Duration, now time.Time) bool {
	return !o.Since.IsZero() && !now.Before(o.Since.Add(hold))
}

// Orphans groups the subnets whose nodes are gone, and the reserved addresses that no NodeSubnet contains. kept are
// the reserved addresses that are in no node's pool. The result is sorted by node.
func Orphans(subnets []Subnet, kept []reservation.Address, gone func(node string) bool) []OrphanedSubnets {
	// inside are the addresses kept in each subnet. Key: its CIDR; the zero Prefix for addresses in none.
	inside := map[netip.Prefix][]reservation.Address{}
	subnets = slices.SortedFunc(slices.Values(subnets), func(x, y Subnet) int { return x.CIDR.Compare(y.CIDR) })
	subnetOf := containing(subnets)
	for _, k := range kept {
		in := subnetOf(k.Addr)
		inside[in] = append(inside[in], k)
	}
	// owner keeps the families of one pod together in subnets that never had a node.
	type key struct{ node, owner string }
	groups := map[key]*OrphanedSubnets{}
	group := func(k key) *OrphanedSubnets {
		if groups[k] == nil {
			groups[k] = &OrphanedSubnets{Node: k.node}
		}
		return groups[k]
	}
	for _, s := range subnets {
		if s.Node != "" && !gone(s.Node) {
			continue
		}
		there := inside[s.CIDR]
		slices.SortFunc(there, func(x, y reservation.Address) int { return x.Addr.Compare(y.Addr) })
		k := key{node: s.Node}
		if s.Node == "" && len(there) > 0 {
			k.owner = slices.MinFunc(there, func(x, y reservation.Address) int { return cmp.Compare(x.Entry.Owner, y.Entry.Owner) }).Entry.Owner
		} else if s.Node == "" {
			k.owner = s.CIDR.String()
		}
		o := group(k)
		o.Subnets, o.Reserved = append(o.Subnets, s), append(o.Reserved, there...)
		if !s.OrphanedSince.IsZero() && (o.Since.IsZero() || s.OrphanedSince.Before(o.Since)) {
			o.Since = s.OrphanedSince
		}
		o.Successor = cmp.Or(o.Successor, s.Successor)
		o.Constraints = cmp.Or(o.Constraints, s.Constraints)
	}
	for _, s := range subnets {
		if o := groups[key{node: s.Previous}]; s.Previous != "" && o != nil && !s.OrphanedSince.IsZero() && !gone(s.Node) {
			o.Candidate = s.Node
		}
	}
	var orphans []OrphanedSubnets
	for _, o := range groups {
		orphans = append(orphans, *o)
	}
	for _, k := range inside[netip.Prefix{}] {
		orphans = append(orphans, OrphanedSubnets{Node: k.Node, Reserved: []reservation.Address{k}})
	}
	slices.SortFunc(orphans, func(x, y OrphanedSubnets) int {
		return cmp.Or(cmp.Compare(x.Node, y.Node), x.first().Compare(y.first()))
	})
	return orphans
}

// first is the lowest address of an orphan, to sort by.
func (o OrphanedSubnets) first() netip.Addr {
	if len(o.Subnets) > 0 {
		return o.Subnets[0].CIDR.Addr()
	}
	return o.Reserved[0].Addr
}

// containing returns a function that returns the smallest subnet that contains an address; the zero Prefix: none. It
// looks up the address at each length that a subnet has, because subnets and addresses may both be very many.
func containing(subnets []Subnet) func(netip.Addr) netip.Prefix {
	known, lengths := map[netip.Prefix]bool{}, map[int]bool{}
	for _, s := range subnets {
		known[s.CIDR], lengths[s.CIDR.Bits()] = true, true
	}
	longestFirst := slices.SortedFunc(maps.Keys(lengths), func(x, y int) int { return y - x })
	return func(a netip.Addr) netip.Prefix {
		for _, bits := range longestFirst {
			// An address of the other family may be too short, and has no Prefix then.
			if p, err := a.Prefix(bits); err == nil && known[p] {
				return p
			}
		}
		return netip.Prefix{}
	}
}

// Missing returns the subnets of reserved addresses that are in a cluster pool and that neither a NodeSubnet nor a
// node has: a backup was restored, or a person reserved an address in a subnet that is not in use. They have to be
// claimed, for the node that the FixedIPs name, before a new subnet is. has reports whether a node has subnets: then
// it is not the node that lost these.
func Missing(pools []address.ClusterPool, taken *netipx.IPSet, kept []reservation.Address, has func(node string) bool) []Subnet {
	inside := map[netip.Prefix][]reservation.Address{}
	for _, k := range kept {
		if cidr, ok := address.SubnetOf(pools, k.Addr, taken); ok {
			inside[cidr] = append(inside[cidr], k)
		}
	}
	var missing []Subnet
	for _, cidr := range slices.SortedFunc(maps.Keys(inside), netip.Prefix.Compare) {
		missing = append(missing, Subnet{CIDR: cidr, Node: lostNode(inside[cidr], has)})
	}
	return missing
}

// Outside reports whether a subnet is in no cluster pool.
func Outside(pools []address.ClusterPool, cidr netip.Prefix) bool {
	return !slices.ContainsFunc(pools, func(p address.ClusterPool) bool {
		return p.CIDR.Bits() <= cidr.Bits() && p.CIDR.Contains(cidr.Addr())
	})
}

// lostNode returns the node without subnets that most FixedIPs name. The FixedIP of an address that lives on another
// node than its home names that node, which has subnets as a rule.
func lostNode(kept []reservation.Address, has func(string) bool) string {
	named := map[string]int{}
	for _, k := range kept {
		if k.Node != "" && !has(k.Node) {
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

// OrphanPolicy says what becomes of the subnets of a node that is gone while FixedIPs reserve addresses in them.
type OrphanPolicy string

const (
	// Inherit means that after the grace period another node gets them: one that can run the pods that wait.
	Inherit OrphanPolicy = "Inherit"
	// Hold means that they wait for a node of the same name.
	Hold OrphanPolicy = "Hold"
	// Free means that after the grace period the FixedIPs in them are deleted.
	Free OrphanPolicy = "Free"
)

// Policies are all there are.
var Policies = []OrphanPolicy{Inherit, Hold, Free}

// Rules say where subnets come from, and what becomes of orphans.
type Rules struct {
	// Pools are what subnets are cut from, in this order. There are none if each node brings its own subnets.
	Pools []address.ClusterPool
	// Policy and Hold, the grace period, are for orphans.
	Policy OrphanPolicy
	Hold   time.Duration
	// Failover is the policy of FixedIPs that name none.
	Failover v1alpha1.Failover
}

// migrateGracePeriod is how long at most a node that is gone may come back to subnets with an address that may migrate. A
// node that only registers again is back in seconds.
const migrateGracePeriod = 10 * time.Second

// Origin is where the subnets of a node come from.
type Origin string

// The origins.
const (
	// FromClusterPool means that they were cut from the cluster pools.
	FromClusterPool Origin = "cluster_pool"
	// FromNodeSpec means that Node.spec.podCIDRs has them.
	FromNodeSpec Origin = "node_spec"
	// Restored means that the node had them before.
	Restored Origin = "restored"
	// ByNewNode means that a node that joined took them over from a node that is gone.
	ByNewNode Origin = "new_node"
	// ByExistingNode means that a node that had others took them over from a node that is gone.
	ByExistingNode Origin = "existing_node"
)

// Origins are all origins.
var Origins = []Origin{FromClusterPool, FromNodeSpec, Restored, ByNewNode, ByExistingNode}

// CandidateNode is a node that may inherit the subnets of a node that is gone.
type CandidateNode struct {
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
	// Labels are those of its Node.
	Labels map[string]string
}

// admits reports whether the labels of a node, and its taints but for those of its state, admit a pod.
func (h CandidateNode) admits(pod *corev1.Pod) bool {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.Name, Labels: h.Labels}, Spec: corev1.NodeSpec{Taints: h.Constraints.Taints}}
	match, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	_, untolerated := corev1helpers.FindMatchingUntoleratedTaint(node.Spec.Taints, pod.Spec.Tolerations, nil)
	return err == nil && match && !untolerated
}

// chosen reports whether a node has to inherit an orphan, whatever the policy: a person chose it, or it has been given
// a part already.
func (o OrphanedSubnets) chosen(h CandidateNode) bool {
	return o.Candidate == h.Name || o.Successor == h.Name || o.Node != "" && h.SuccessorOf == o.Node
}

// mayInherit reports whether a node may inherit an orphan now. If not, at is when it may; zero: not before something
// changes.
//
// A node that was chosen may at once. Others may by policy Inherit, after the grace period: a node to which the scheduler
// has nominated one of the waiting pods; a node without subnets, which runs no pods yet, if its labels and taints admit
// one of them; and while no pod waits, a node that joined late. The last two have to suit the same pods as the node that
// is gone.
//
// If an address may migrate, a node that has subnets and suits may soon, whatever the policy: its pods may leave it for
// where they can run.
func (r Rules) mayInherit(o OrphanedSubnets, h CandidateNode, now time.Time) (ok bool, at time.Time) {
	hold := r.Hold
	switch {
	case len(o.Subnets) == 0 || o.Node == h.Name, o.Candidate == "" && len(o.Reserved) == 0, o.Candidate != "" && o.Candidate != h.Name:
		return false, time.Time{}
	case o.chosen(h):
		return true, time.Time{}
	case o.Since.IsZero(), h.Subnets > 0 && !h.Ready, o.nominated(h.Name) == 0 && !suits(h.Constraints, o.Constraints):
		return false, time.Time{}
	case h.Subnets > 0 && r.migrates(o):
		hold = min(r.Hold, migrateGracePeriod)
	case r.Policy != Inherit, !r.fits(o, h):
		return false, time.Time{}
	}
	if !o.waited(hold, now) {
		return false, o.Since.Add(hold)
	}
	return true, time.Time{}
}

// fits reports whether a node may inherit an orphan by policy Inherit as far as the waiting pods decide.
func (r Rules) fits(o OrphanedSubnets, h CandidateNode) bool {
	switch {
	case o.nominated(h.Name) > 0:
		return true
	case len(o.Waiting) == 0:
		return h.Subnets == 0 || r.joinedLate(o, h)
	}
	return h.Subnets == 0 && slices.ContainsFunc(o.Waiting, h.admits)
}

// joinedLate reports whether a node joined while an orphan was reserved for its own node, or at most as long before:
// replacements often join before what they replace is deleted.
func (r Rules) joinedLate(o OrphanedSubnets, h CandidateNode) bool {
	return !h.Joined.Before(o.Since.Add(-r.Hold))
}

// InheritancePending reports whether another node inherits an orphan as soon as one may. If so, the scheduler nominates the
// waiting pods.
func (r Rules) InheritancePending(o OrphanedSubnets) bool {
	return len(o.Subnets) > 0 && (r.Policy == Inherit || r.migrates(o))
}

// JoinerInherits returns the orphan that a node inherits instead of a new subnet. After those that it was chosen for
// comes the orphan that has waited longest.
func (r Rules) JoinerInherits(j CandidateNode, orphans []OrphanedSubnets, now time.Time) (found OrphanedSubnets, ok bool) {
	for _, o := range orphans {
		better := !ok || o.chosen(j) && !found.chosen(j) || o.chosen(j) == found.chosen(j) && o.Since.Before(found.Since)
		if may, _ := r.mayInherit(o, j, now); may && better && (j.Subnets == 0 || o.chosen(j)) {
			found, ok = o, true
		}
	}
	return found, ok
}

// PickExistingNode returns the node that inherits an orphan in addition to its subnets. In this order: a node that was
// chosen for it, the one to which most waiting pods are nominated, one that joined late, one of the same node pool, the
// one with the fewest subnets, the first by name. No heir: none may have it now. at is when to ask again; zero: not
// before something changes.
func (r Rules) PickExistingNode(o OrphanedSubnets, heirs []CandidateNode, now time.Time) (heir string, at time.Time) {
	// first orders nodes for which something is true before others.
	first := func(x, y bool) int {
		switch {
		case x == y:
			return 0
		case x:
			return -1
		}
		return 1
	}
	order := func(x, y CandidateNode) int {
		return cmp.Or(
			first(o.chosen(x), o.chosen(y)),
			cmp.Compare(o.nominated(y.Name), o.nominated(x.Name)),
			first(r.joinedLate(o, x), r.joinedLate(o, y)),
			first(samePool(x.Constraints, o.Constraints), samePool(y.Constraints, o.Constraints)),
			cmp.Compare(x.Subnets, y.Subnets),
			cmp.Compare(x.Name, y.Name),
		)
	}
	var found *CandidateNode
	for i, h := range heirs {
		ok, due := r.mayInherit(o, h, now)
		if ok && (found == nil || order(h, *found) < 0) {
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
func (r Rules) migrates(o OrphanedSubnets) bool {
	return slices.ContainsFunc(o.Reserved, func(k reservation.Address) bool {
		return k.Node == o.Node && cmp.Or(k.Failover, r.Failover) == v1alpha1.Migrate
	})
}

// ExpiredReservations returns the addresses of an orphan that policy Free gives up now, or when it will. An address that lives on
// another node is not given up: only its home is gone.
func (r Rules) ExpiredReservations(o OrphanedSubnets, now time.Time) (kept []reservation.Address, at time.Time) {
	if r.Policy != Free || o.Node == "" || o.Since.IsZero() {
		return nil, time.Time{}
	}
	if !o.waited(r.Hold, now) {
		return nil, o.Since.Add(r.Hold)
	}
	return slices.DeleteFunc(slices.Clone(o.Reserved), func(k reservation.Address) bool { return k.Node != o.Node }), time.Time{}
}

// Releasable reports whether an orphan can be given up because no FixedIP reserves an address in it, or when it will
// be: a node of the same name may come back to its subnets within the grace period.
func (r Rules) Releasable(o OrphanedSubnets, now time.Time) (ok bool, at time.Time) {
	switch {
	case len(o.Reserved) > 0 || len(o.Subnets) == 0 || o.Candidate != "":
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
func ReservedIn(subnets []netip.Prefix, kept []reservation.Address) []reservation.Address {
	set := address.Union(subnets)
	return slices.DeleteFunc(slices.Clone(kept), func(k reservation.Address) bool { return !set.Contains(k.Addr) })
}
