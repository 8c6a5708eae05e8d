// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnetplan

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// OrphanPolicy defines what happens to the subnets of a node that is gone while FixedIPs reserve addresses in them.
type OrphanPolicy string

const (
	// Inherit means that after the grace period another node inherits the subnets: a node that can run the waiting pods.
	Inherit OrphanPolicy = "Inherit"
	// Hold means that the subnets wait for a node with the same name or for a successor. If an address may migrate, another
	// node inherits them anyway (see mayInherit).
	Hold OrphanPolicy = "Hold"
	// Free means that after the grace period the FixedIPs that name the node and reserve addresses in the subnets are deleted.
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

// migrateGracePeriod is the maximum time after which a node that has subnets may inherit those with an address that may migrate.
// It is enough for a node whose Node object is deleted and registered again, which takes seconds.
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

// Chosen reports whether a node has to inherit an orphan, whatever the policy: the administrator named it, or it has
// inherited some of the subnets already.
func (o OrphanedSubnets) Chosen(h CandidateNode) bool {
	return o.Candidate == h.Name || o.Successor == h.Name || o.Node != "" && h.ReplacesNode == o.Node
}

// mayInherit reports whether a node may inherit an orphan now. If not, at is the time from which it may; zero if that depends
// on an event.
//
// An orphan is inherited only if it has a NodeSubnet and a FixedIP reserves an address in its subnets. A node does not inherit
// the orphan of a node with its own name. If the orphan has a Candidate, only that node may inherit. A chosen node may inherit
// at once. Any other node that has subnets must be ready. If the policy is Inherit, these nodes may inherit after the grace
// period, which begins at Since:
//   - a node to which the scheduler has nominated one of the waiting pods;
//   - a node without subnets, which runs no pods yet, if no pod waits or if its labels and taints admit one of the waiting
//     pods;
//   - a node that joined late (see joinedLate), if no pod waits.
//
// A node to which no pod is nominated has to suit the pods of the node that is gone. A node that cannot use one of the Volumes
// may not inherit, even if pods without volumes are nominated to it: the pods with these volumes could never run again.
//
// If an address may migrate, a node that has subnets may inherit after at most migrateGracePeriod, whatever the policy: the
// pods can then migrate from that node to nodes that can run them.
func (r Rules) mayInherit(o OrphanedSubnets, h CandidateNode, now time.Time) (ok bool, at time.Time) {
	gracePeriod := r.GracePeriod
	switch {
	case len(o.Subnets) == 0 || o.Node == h.Name, len(o.Reserved) == 0, o.Candidate != "" && o.Candidate != h.Name:
		return false, time.Time{}
	case o.Chosen(h):
		return true, time.Time{}
	case o.Since.IsZero(), h.Subnets > 0 && !h.Ready, o.nominated(h.Name) == 0 && !suits(h.Constraints, o.Constraints), o.Excludes(h) != nil:
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

// fits reports whether the waiting pods and the time at which the node joined allow the node to inherit an orphan under the
// policy Inherit.
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

// InheritancePending reports whether the rules allow that a node that was not chosen inherits an orphan: the policy is Inherit,
// or an address in the subnets of the orphan may migrate. If the orphan had a node, the scheduler then nominates nodes for the
// waiting pods.
func (r Rules) InheritancePending(o OrphanedSubnets) bool {
	return len(o.Subnets) > 0 && (r.Policy == Inherit || r.migrates(o))
}

// OrphanForNewNode returns the orphan that node n inherits instead of a new subnet; ok is false if there is none. Orphans for
// which n was chosen come first, then the one that has waited longest. A node that has subnets inherits only orphans for
// which it was chosen.
func (r Rules) OrphanForNewNode(n CandidateNode, orphans []OrphanedSubnets, now time.Time) (found OrphanedSubnets, ok bool) {
	for _, o := range orphans {
		better := !ok || o.Chosen(n) && !found.Chosen(n) || o.Chosen(n) == found.Chosen(n) && o.Since.Before(found.Since)
		if may, _ := r.mayInherit(o, n, now); may && better && (n.Subnets == 0 || o.Chosen(n)) {
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
			first(o.Chosen(x), o.Chosen(y)),
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

// ExpiredReservations returns the reserved addresses of an orphan whose FixedIPs have to be deleted now under the policy
// Free. If it is too early, at is the time of the deletion.
func (r Rules) ExpiredReservations(o OrphanedSubnets, now time.Time) (expired []reservation.Address, at time.Time) {
	if r.Policy != Free || o.Node == "" || o.Since.IsZero() {
		return nil, time.Time{}
	}
	if !o.waited(r.GracePeriod, now) {
		return nil, o.Since.Add(r.GracePeriod)
	}
	return slices.DeleteFunc(slices.Clone(o.Reserved), func(k reservation.Address) bool { return !r.Expires(o, k) }), time.Time{}
}

// Expires reports whether the policy Free releases a reserved address of an orphan after the grace period. The FixedIP of the
// address must name the node of the orphan: if it names another node, the pool of that node carries the address, and only the
// home of the address is gone.
func (r Rules) Expires(o OrphanedSubnets, k reservation.Address) bool {
	return r.Policy == Free && o.Node != "" && k.Node == o.Node
}

// Releasable reports whether the NodeSubnets of an orphan can be deleted because no FixedIP reserves an address in them and the
// orphan has no Candidate. If it is too early, at is the end of the grace period: until then a node with the same name may
// return to its subnets. Subnets that never had a node have no grace period.
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
