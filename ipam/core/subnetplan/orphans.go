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

// OrphanedSubnets contains the subnets of a node that is gone; this package calls it an orphan for short. No pool
// decides about the addresses in the subnets. One node inherits all of them, since a pod has its addresses of both
// families on one node.
type OrphanedSubnets struct {
	// Node is the node that is gone; empty if the subnets never had a node.
	Node string
	// Subnets are the NodeSubnets of Node, sorted by CIDR; empty for a reserved address that no NodeSubnet contains.
	Subnets []Subnet
	// Reserved are the addresses in the subnets that FixedIPs reserve.
	Reserved []reservation.Address
	// Since is the time at which the controller first observed that the node is gone; zero if it is not recorded yet.
	Since time.Time
	// Candidate is a node that has inherited some of the subnets and has to inherit the others, because the controller
	// stopped in between; empty if there is none.
	Candidate string
	// Successor is the node that the administrator named to inherit the subnets; empty if there is none.
	Successor string
	// Constraints are those of the first of Subnets that has some; nil if none has. A node that inherits the subnets
	// has to suit them, unless it was chosen or a waiting pod is nominated to it.
	Constraints *v1alpha1.NodeConstraints
	// Waiting are the pods with reserved addresses for which a scheduler found no node.
	Waiting []*corev1.Pod
}

// nominated returns the number of waiting pods that are nominated to a node: the scheduler found that they can run there.
func (o OrphanedSubnets) nominated(node string) (count int) {
	for _, pod := range o.Waiting {
		if pod.Status.NominatedNodeName == node {
			count++
		}
	}
	return count
}

// waited reports whether at least gracePeriod has passed since the node was first observed to be gone.
func (o OrphanedSubnets) waited(gracePeriod time.Duration, now time.Time) bool {
	return !o.Since.IsZero() && !now.Before(o.Since.Add(gracePeriod))
}

// Orphans returns the subnets whose nodes are gone, grouped by node, with the reserved addresses in them. The result
// includes the subnets that never had a node, grouped by the pod of their reserved addresses. A reserved address that
// no NodeSubnet contains forms a group of its own. The result is sorted by node. gone reports whether a node is gone.
func Orphans(subnets []Subnet, reserved []reservation.Address, gone func(node string) bool) []OrphanedSubnets {
	// inside contains the reserved addresses of each subnet. Key: the CIDR; the zero Prefix for addresses in no subnet.
	inside := map[netip.Prefix][]reservation.Address{}
	subnets = slices.SortedFunc(slices.Values(subnets), func(x, y Subnet) int { return x.CIDR.Compare(y.CIDR) })
	subnetOf := containing(subnets)
	for _, k := range reserved {
		in := subnetOf(k.Addr)
		inside[in] = append(inside[in], k)
	}
	// owner is a pod: it groups subnets that never had a node, so that both families of the pod stay together.
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

// first returns the lowest address of an orphan. Orphans with the same Node are sorted by it.
func (o OrphanedSubnets) first() netip.Addr {
	if len(o.Subnets) > 0 {
		return o.Subnets[0].CIDR.Addr()
	}
	return o.Reserved[0].Addr
}

// containing returns a function that returns the smallest subnet that contains an address; the zero Prefix if there is none.
// It looks up the prefix of the address at each length that a subnet has, because there may be very many subnets and
// addresses.
func containing(subnets []Subnet) func(netip.Addr) netip.Prefix {
	known, lengths := map[netip.Prefix]bool{}, map[int]bool{}
	for _, s := range subnets {
		known[s.CIDR], lengths[s.CIDR.Bits()] = true, true
	}
	longestFirst := slices.SortedFunc(maps.Keys(lengths), func(x, y int) int { return y - x })
	return func(a netip.Addr) netip.Prefix {
		for _, bits := range longestFirst {
			// Prefix returns an error for an IPv4 address if bits is greater than 32, as for most IPv6 subnets.
			if p, err := a.Prefix(bits); err == nil && known[p] {
				return p
			}
		}
		return netip.Prefix{}
	}
}

// Missing returns the subnets, within the cluster pools, that reserved addresses need and that no NodeSubnet or node has: a
// backup was restored, or a user reserved an address in a subnet that is not in use. taken contains the subnets of
// NodeSubnets and nodes. The missing subnets have to be claimed, for the node that the FixedIPs name, before any new subnet.
// has reports whether a node has subnets: such a node did not lose the missing ones.
func Missing(pools []address.ClusterPool, taken *netipx.IPSet, reserved []reservation.Address, has func(node string) bool) []Subnet {
	inside := map[netip.Prefix][]reservation.Address{}
	for _, k := range reserved {
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

// lostNode returns the node without subnets that most FixedIPs name; empty if they name no such node. The FixedIP of an address
// that has moved names the node to which the address moved, which usually has subnets.
func lostNode(reserved []reservation.Address, has func(string) bool) string {
	named := map[string]int{}
	for _, k := range reserved {
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

// OrphanPolicy defines what happens to the subnets of a node that is gone while FixedIPs reserve addresses in them.
type OrphanPolicy string

const (
	// Inherit means that after the grace period another node inherits the subnets: a node that can run the waiting pods.
	Inherit OrphanPolicy = "Inherit"
	// Hold means that the subnets wait for a node with the same name.
	Hold OrphanPolicy = "Hold"
	// Free means that after the grace period the FixedIPs that reserve addresses in the subnets are deleted.
	Free OrphanPolicy = "Free"
)

// Policies contains every OrphanPolicy.
var Policies = []OrphanPolicy{Inherit, Hold, Free}

// Rules contains the configuration of subnets: the cluster pools, and the policy for orphaned subnets.
type Rules struct {
	// Pools are the cluster pools from which subnets are taken, in this order; empty if the subnets of a node come from
	// Node.spec.podCIDRs.
	Pools []address.ClusterPool
	// Policy is the policy for orphaned subnets.
	Policy OrphanPolicy
	// GracePeriod is the grace period of orphaned subnets.
	GracePeriod time.Duration
	// Failover is the failover policy for FixedIPs without one of their own.
	Failover v1alpha1.Failover
}

// migrateGracePeriod is the maximum grace period of subnets with an address that may migrate. It is enough for a node whose
// Node object is deleted and registered again, which takes seconds.
const migrateGracePeriod = 10 * time.Second

// Origin is the source of the subnets of a node.
type Origin string

// The values of Origin.
const (
	// FromClusterPool means that the subnets were taken from the cluster pools.
	FromClusterPool Origin = "cluster_pool"
	// FromNodeSpec means that Node.spec.podCIDRs contains the subnets.
	FromNodeSpec Origin = "node_spec"
	// Restored means that the node had the subnets before.
	Restored Origin = "restored"
	// ByNewNode means that a node without subnets inherited those of a node that is gone.
	ByNewNode Origin = "new_node"
	// ByExistingNode means that a node with other subnets inherited those of a node that is gone.
	ByExistingNode Origin = "existing_node"
)

// Origins contains every Origin.
var Origins = []Origin{FromClusterPool, FromNodeSpec, Restored, ByNewNode, ByExistingNode}

// CandidateNode is a node that may inherit the subnets of a node that is gone.
type CandidateNode struct {
	Name string
	// Subnets is the number of subnets that the node has.
	Subnets int
	// ReplacesNode is the value of the label fixedip.io/replaces-node, the node that this node replaces; empty if the node
	// does not have the label.
	ReplacesNode string
	// Ready is true if pods can be placed on the node now.
	Ready bool
	// Joined is the time at which the Node was created.
	Joined      time.Time
	Constraints v1alpha1.NodeConstraints
	// Labels are the labels of the Node.
	Labels map[string]string
}

// admits reports whether the labels and the recorded taints of the node allow the pod to run there. Taints that follow the
// state of the node are not recorded.
func (h CandidateNode) admits(pod *corev1.Pod) bool {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.Name, Labels: h.Labels}, Spec: corev1.NodeSpec{Taints: h.Constraints.Taints}}
	match, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	_, untolerated := corev1helpers.FindMatchingUntoleratedTaint(node.Spec.Taints, pod.Spec.Tolerations, nil)
	return err == nil && match && !untolerated
}

// chosen reports whether a node has to inherit an orphan, whatever the policy: the administrator named it, or it has
// inherited some of the subnets already.
func (o OrphanedSubnets) chosen(h CandidateNode) bool {
	return o.Candidate == h.Name || o.Successor == h.Name || o.Node != "" && h.ReplacesNode == o.Node
}

// mayInherit reports whether a node may inherit an orphan now. If not, at is the time from which it may; zero if that depends
// on an event.
//
// An orphan without a NodeSubnet is not inherited. If the orphan has a Candidate, only that node may inherit; otherwise a
// FixedIP must reserve an address in the subnets. A chosen node may inherit at once. Any other node that has subnets must be
// ready. If the policy is Inherit, these nodes may inherit after the grace period:
//   - a node to which the scheduler has nominated one of the waiting pods;
//   - a node without subnets, which runs no pods yet, if no pod waits or if its labels and taints admit one of the waiting
//     pods;
//   - a node that joined late, if no pod waits.
//
// A node to which no pod is nominated has to suit the pods of the node that is gone.
//
// If an address may migrate, a node that has subnets may inherit after at most migrateGracePeriod, whatever the policy: the
// pods can then migrate from that node to nodes that can run them.
func (r Rules) mayInherit(o OrphanedSubnets, h CandidateNode, now time.Time) (ok bool, at time.Time) {
	gracePeriod := r.GracePeriod
	switch {
	case len(o.Subnets) == 0 || o.Node == h.Name, o.Candidate == "" && len(o.Reserved) == 0, o.Candidate != "" && o.Candidate != h.Name:
		return false, time.Time{}
	case o.chosen(h):
		return true, time.Time{}
	case o.Since.IsZero(), h.Subnets > 0 && !h.Ready, o.nominated(h.Name) == 0 && !suits(h.Constraints, o.Constraints):
		return false, time.Time{}
	case h.Subnets > 0 && r.migrates(o):
		gracePeriod = min(r.GracePeriod, migrateGracePeriod)
	case r.Policy != Inherit, !r.fits(o, h):
		return false, time.Time{}
	}
	if !o.waited(gracePeriod, now) {
		return false, o.Since.Add(gracePeriod)
	}
	return true, time.Time{}
}

// fits reports whether the waiting pods and the time at which the node joined allow the node to inherit an orphan by policy
// Inherit.
func (r Rules) fits(o OrphanedSubnets, h CandidateNode) bool {
	switch {
	case o.nominated(h.Name) > 0:
		return true
	case len(o.Waiting) == 0:
		return h.Subnets == 0 || r.joinedLate(o, h)
	}
	return h.Subnets == 0 && slices.ContainsFunc(o.Waiting, h.admits)
}

// joinedLate reports whether a node joined after the node of the orphan was gone, or at most one grace period before: a
// replacement often joins before the node that it replaces is deleted.
func (r Rules) joinedLate(o OrphanedSubnets, h CandidateNode) bool {
	return !h.Joined.Before(o.Since.Add(-r.GracePeriod))
}

// InheritancePending reports whether a node that was not chosen can inherit an orphan: the policy is Inherit, or an address in its
// subnets may migrate. If the orphan had a node, the scheduler then nominates nodes for the waiting pods.
func (r Rules) InheritancePending(o OrphanedSubnets) bool {
	return len(o.Subnets) > 0 && (r.Policy == Inherit || r.migrates(o))
}

// OrphanForNewNode returns the orphan that node n inherits instead of a new subnet; ok is false if there is none. Orphans for
// which n was chosen come first, then the one that has waited longest. A node that has subnets inherits only orphans for
// which it was chosen.
func (r Rules) OrphanForNewNode(n CandidateNode, orphans []OrphanedSubnets, now time.Time) (found OrphanedSubnets, ok bool) {
	for _, o := range orphans {
		better := !ok || o.chosen(n) && !found.chosen(n) || o.chosen(n) == found.chosen(n) && o.Since.Before(found.Since)
		if may, _ := r.mayInherit(o, n, now); may && better && (n.Subnets == 0 || o.chosen(n)) {
			found, ok = o, true
		}
	}
	return found, ok
}

// PickExistingNode returns the node that inherits an orphan in addition to its own subnets; empty if none may inherit it
// now. Nodes are preferred in this order: a chosen node, the node to which most waiting pods are nominated, a node that
// joined late, a node of the same node pool, the node with the fewest subnets, the first by name. If name is empty, at is the
// time of the next decision; zero if that depends on an event.
func (r Rules) PickExistingNode(o OrphanedSubnets, candidates []CandidateNode, now time.Time) (name string, at time.Time) {
	// first compares a condition of two nodes: the node for which it is true comes first.
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
	for i, h := range candidates {
		ok, due := r.mayInherit(o, h, now)
		if ok && (found == nil || order(h, *found) < 0) {
			found = &candidates[i]
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

// migrates reports whether an address of an orphan may migrate with its pod. An address that has moved to another node
// already does not count.
func (r Rules) migrates(o OrphanedSubnets) bool {
	return slices.ContainsFunc(o.Reserved, func(k reservation.Address) bool {
		return k.Node == o.Node && cmp.Or(k.Failover, r.Failover) == v1alpha1.Migrate
	})
}

// ExpiredReservations returns the reserved addresses of an orphan whose FixedIPs have to be deleted now by policy Free. If it
// is too early, at is the time of the deletion.
func (r Rules) ExpiredReservations(o OrphanedSubnets, now time.Time) (expired []reservation.Address, at time.Time) {
	if r.Policy != Free || o.Node == "" || o.Since.IsZero() {
		return nil, time.Time{}
	}
	if !o.waited(r.GracePeriod, now) {
		return nil, o.Since.Add(r.GracePeriod)
	}
	return slices.DeleteFunc(slices.Clone(o.Reserved), func(k reservation.Address) bool { return !r.Expires(o, k) }), time.Time{}
}

// Expires reports whether policy Free releases a reserved address of an orphan after the grace period. It does not if the
// pool of another node carries the address, because then only its home is gone.
func (r Rules) Expires(o OrphanedSubnets, k reservation.Address) bool {
	return r.Policy == Free && o.Node != "" && k.Node == o.Node
}

// Releasable reports whether the NodeSubnets of an orphan can be deleted because no FixedIP reserves an address in them. If
// it is too early, at is the end of the grace period: until then a node with the same name may return to its subnets.
func (r Rules) Releasable(o OrphanedSubnets, now time.Time) (ok bool, at time.Time) {
	switch {
	case len(o.Reserved) > 0 || len(o.Subnets) == 0 || o.Candidate != "":
		return false, time.Time{}
	case o.Node == "":
		return true, time.Time{}
	case o.Since.IsZero():
		return false, time.Time{}
	case !o.waited(r.GracePeriod, now):
		return false, o.Since.Add(r.GracePeriod)
	}
	return true, time.Time{}
}

// ReservedIn returns the reserved addresses that are in one of the subnets.
func ReservedIn(subnets []netip.Prefix, reserved []reservation.Address) []reservation.Address {
	set := address.Union(subnets)
	return slices.DeleteFunc(slices.Clone(reserved), func(k reservation.Address) bool { return !set.Contains(k.Addr) })
}
