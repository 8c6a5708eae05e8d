// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
)

// recheckInterval is the interval of decisions while a blocker exists: most blockers end without an event for the identity.
const recheckInterval = 10 * time.Second

// rule is one rule of the package documentation. next returns its action; ok is false if the rule does not apply.
type rule struct {
	name string
	next func(v *evaluation) (a Action, ok bool)
}

// evaluation is a State with derived values that several rules need.
type evaluation struct {
	State
	// node is the node that the pod is bound to; empty: none. held is the element of Held for that node; isHeld is false if
	// there is none.
	node   string
	held   ledger.NodeAddresses
	isHeld bool
	// spec is the spec that an active FixedIP should have; the zero value in other states.
	spec v1alpha1.FixedIPSpec
	// expires and expiry are set by the rule "expired". expires is true if the reclaim policy requires the release; expiry
	// is then the result of expire.
	expires bool
	expiry  Action
}

// Decide returns the action of the first rule that applies in the state of the FixedIP. If that action is Nothing, Decide
// returns the action of the first of evidenceRules that applies, if any. See the package documentation.
func Decide(s State) Action {
	v := &evaluation{State: s, node: boundTo(s.Pod)}
	v.held, v.isHeld = heldOn(s.Held, v.node)
	rules := unrecorded
	switch {
	case s.Record == nil:
	case s.Record.DeletionTimestamp != nil:
		rules = deleting
	default:
		rules, v.spec = active, v.wantedSpec()
	}
	a := first(v, rules)
	if a.Type != Nothing {
		return a
	}
	q := first(v, evidenceRules)
	if q.Type == Nothing {
		return a
	}
	q.At, q.Why = a.At, a.Why
	return q
}

// first returns the action of the first rule that applies; the zero Action if none does.
func first(v *evaluation, rules []rule) Action {
	for _, r := range rules {
		if a, ok := r.next(v); ok {
			a.Rule = r.name
			return a
		}
	}
	return Action{}
}

// when returns the function of a rule that applies if is(v) is true. The action of the rule is next(v).
func when(is func(v *evaluation) bool, next func(v *evaluation) Action) func(v *evaluation) (Action, bool) {
	return func(v *evaluation) (Action, bool) {
		if !is(v) {
			return Action{}, false
		}
		return next(v), true
	}
}

func nothing(*evaluation) Action { return Action{} }

var unrecorded = []rule{
	{"opted out", when(func(v *evaluation) bool { return v.Workload.OptsOut }, func(v *evaluation) Action {
		if v.OwnerInferred || v.mayUseEntries() || v.Pod != nil && !identity.OptsOut(v.Pod) {
			return Action{}
		}
		return v.releaseAll()
	})},
	{"stale move", (*evaluation).staleMove},
	{"reserved by hand", when(func(v *evaluation) bool { return !v.Workload.Exists && v.OwnerInferred }, nothing)},
	{"gone", when(func(v *evaluation) bool { return !v.Workload.Exists && v.Pod == nil }, (*evaluation).releaseAll)},
	{"workload unknown", when(func(v *evaluation) bool { return !v.Workload.Exists }, nothing)},
	{"scaled down", when(func(v *evaluation) bool {
		return v.Pod == nil && v.Workload.Excludes && !v.OwnerInferred && v.reclaimPolicy().WhenScaled == v1alpha1.Delete
	}, (*evaluation).releaseAll)},
	{"bound elsewhere", when(func(v *evaluation) bool { return v.Slot && v.node != "" && !v.isHeld }, (*evaluation).releaseAll)},
	{"named elsewhere", when(func(v *evaluation) bool {
		// Two FixedIPs must not name one address, so this claim cannot be recorded.
		return v.OtherFixedIP != "" && !v.OwnerInferred && (v.Pod == nil || RunsWithout(v.Pod, v.held.Addrs))
	}, (*evaluation).releaseAll)},
	{"vacant claim", when(func(v *evaluation) bool { return v.Slot && v.Pod == nil && len(v.Held) > 0 }, func(v *evaluation) Action {
		// Only the status of a FixedIP can allow another pod to take the slot over.
		return v.createRecord(v.Held[0].Node, v.Held[0].Addrs)
	})},
	{"recordable", func(v *evaluation) (Action, bool) {
		addrs, ok := onePerFamily(v.held.Addrs, v.Pod)
		if !v.isHeld || !ok || !v.RequestsIPs && !podutil.HasIPs(v.Pod) {
			return v.recordStranded()
		}
		return v.createRecord(v.held.Node, addrs), true
	}},
}

var active = []rule{
	{"spec", when(func(v *evaluation) bool {
		return !equality.Semantic.DeepEqual(v.spec, v.Record.Spec) || unmarked(v.Record)
	}, func(v *evaluation) Action {
		return Action{Type: UpdateRecord, Spec: v.spec}
	})},
	{"expired", func(v *evaluation) (Action, bool) {
		if v.expires = v.reclaimable(); v.expires {
			v.expiry = v.expire()
		}
		return v.expiry, v.expiry.Type == DeleteRecord
	}},
	{"unexpected", (*evaluation).unexpected},
	{"stale move", (*evaluation).staleMove},
	{"allocate", func(v *evaluation) (Action, bool) {
		// Addresses need their entries even if no pod exists: a pod may come back.
		node, addrs, blocker := allocation(v.State)
		if offered := v.homesWith(pool.Dynamic, addrs); blocker == nil && len(offered) > 0 {
			return Action{Type: Withdraw, Node: node, Addrs: offered}, true
		}
		return Action{Type: Allocate, Node: node, Addrs: addrs}, blocker == nil && len(addrs) > 0 && len(v.homesWith(pool.Cooldown, addrs)) == 0
	}},
	{"expiring", when(func(v *evaluation) bool { return v.expires }, func(v *evaluation) Action { return v.watchBlockers(v.expiry) })},
	{"reassigned", when(func(v *evaluation) bool { return v.failover() == v1alpha1.Reassign && v.replaced() }, func(v *evaluation) Action {
		return v.watchBlockers(Action{Type: ReplaceRecord})
	})},
	{"superseded", func(v *evaluation) (Action, bool) {
		// Until the pod is bound, it is not certain which claim counts. If the node of the pod has no entry for the pod, its
		// CiliumNode may have been deleted, and the entries on other nodes may be the only ones left.
		if !v.isHeld || v.node != v.spec.NodeName {
			return Action{}, false
		}
		a, ok := v.withoutOwnMoves().release(v.node)
		return v.watchBlockers(a), ok
	}},
	{"unused entries", func(v *evaluation) (Action, bool) {
		// The rule applies even if the recorded addresses are on another node: a scheduler that had not seen the
		// FixedIP yet may have claimed the other addresses on this node.
		extra := address.Additional(v.held.Addrs, v.spec.IPs)
		return v.watchBlockers(Action{Type: ReleaseEntries, Node: v.node, Addrs: extra}), len(extra) > 0 && RunsWithout(v.Pod, extra) && v.blocker(extra) == ""
	}},
	{"unused move", func(v *evaluation) (Action, bool) {
		for _, h := range v.MoveTargets {
			if RunsWithout(v.Pod, h.Addrs) || v.Pod != nil && identity.OptsOut(v.Pod) {
				return v.watchBlockers(Action{Type: ReleaseEntries, Node: h.Node, Addrs: h.Addrs}), true
			}
		}
		return Action{}, false
	}},
	{"report", func(v *evaluation) (Action, bool) {
		var user *corev1.Pod
		if v.node != "" && (!v.Slot || v.node == v.spec.NodeName) {
			user = v.Pod
		}
		return v.watchBlockers(v.afterGap(v.report(user, nil))), true
	}},
}

var deleting = []rule{
	{"foreign", when(func(v *evaluation) bool { return !slices.Contains(v.Record.Finalizers, v1alpha1.Finalizer) }, nothing)},
	{"slot in use", when(func(v *evaluation) bool { return v.Slot && v.Pod != nil }, func(v *evaluation) Action {
		// The FixedIP names the holder, even if a pod took the slot over just before the deletion.
		if spec := v.Record.Spec; spec.PodName != v.Holder {
			spec.PodName = v.Holder
			return Action{Type: UpdateRecord, Spec: spec}
		}
		return v.report(v.Pod, nil)
	})},
	// The entries on the pod's node are released when the pod is deleted, or at once if the pod runs without their
	// addresses.
	{"release", func(v *evaluation) (Action, bool) { return v.release(v.nodeInUse()) }},
	{"blocked", func(v *evaluation) (Action, bool) {
		why := v.blockerExcept(v.nodeInUse())
		if why == "" || v.overdue() {
			return Action{}, false
		}
		a := v.untilOverdue()
		a.At, a.Why = earliest(a.At, v.Now.Add(recheckInterval)), why
		return a, true
	}},
	{"move pending", when(func(v *evaluation) bool { return len(v.MoveTargets) > 0 && !v.overdue() }, (*evaluation).untilOverdue)},
	{"home missing", when(func(v *evaluation) bool { return v.HomeMissing != "" && !v.overdue() }, func(v *evaluation) Action {
		// Only the entries at the home show which node the addresses were moved to. The addresses must not be reused
		// before they have left that node.
		a := v.untilOverdue()
		a.At = earliest(a.At, v.Now.Add(recheckInterval))
		a.Why = fmt.Sprintf("IP %s may be in use on a node other than its home node %s, which has no CiliumNode with the subnet of the IP; release is blocked until the Cilium agent of node %s has created the CiliumNode and the controller has assigned the subnet to it; when the time of --force-finalize-after is over, the FixedIP is removed anyway; check the cilium pod of that node", strings.Join(v.Record.Spec.IPs, ", "), v.HomeMissing, v.HomeMissing)
		return a
	})},
	{"done", when(func(v *evaluation) bool { return v.node == "" || v.replaced() }, finish)},
	{"in use", when((*evaluation).mayUseEntries, func(v *evaluation) Action {
		return v.report(v.Pod, nil)
	})},
	{"maybe in use", when(func(v *evaluation) bool { return !RunsWithout(v.Pod, recorded(v.Record)) && !v.overdue() }, (*evaluation).untilOverdue)},
	{"overdue", when(func(*evaluation) bool { return true }, finish)},
}

func finish(*evaluation) Action { return Action{Type: FinishRecord} }

// wantedSpec returns the spec that an active FixedIP should have.
func (v *evaluation) wantedSpec() v1alpha1.FixedIPSpec {
	spec := v.Record.Spec
	if v.Slot {
		spec.PodName = v.Holder
	}
	switch {
	case v.Workload.Exists:
		spec.Owner.UID = v.Workload.UID
	case restored(v.Record) && v.Pod == nil:
		// The workload may be restored later and then becomes the owner again. With the UID that the backup contains, the
		// workload would count as deleted.
		spec.Owner.UID = ""
	}
	spec.Reclaim = ptr.Deref(v.Workload.Reclaim, spec.Reclaim)
	spec.Failover = ptr.Deref(v.Workload.Failover, spec.Failover)
	switch {
	case v.isHeld:
		// In a cluster that gets a second family, pods get an address of that family in addition.
		if addrs, ok := onePerFamily(v.held.Addrs, v.Pod); ok && len(addrs) > len(spec.IPs) && containsAll(addrs, spec.IPs) && (v.RequestsIPs || podutil.HasIPs(v.Pod)) {
			spec.IPs = address.Strings(addrs)
		}
		if len(spec.IPs) > 0 && containsAll(v.held.Addrs, spec.IPs) {
			spec.NodeName = v.node
		}
	case len(v.Held) == 1 && len(spec.IPs) > 0 && containsAll(v.Held[0].Addrs, spec.IPs) && !v.movesFrom(v.Held[0].Node):
		// Another node has inherited the subnet, or the addresses have moved to another node. After a move, the
		// scheduler binds the pod when the FixedIP names the new node (ADR 0031).
		spec.NodeName = v.Held[0].Node
	}
	if spec.NodeName == "" && v.node == "" && len(spec.IPs) > 0 {
		if i := slices.IndexFunc(v.Held, func(h ledger.NodeAddresses) bool { return containsAll(h.Addrs, spec.IPs) }); i >= 0 {
			spec.NodeName = v.Held[i].Node
		}
	}
	return spec
}

// movesFrom reports whether addresses that a node has are about to leave it, or have moved to another node.
func (v *evaluation) movesFrom(node string) bool {
	return slices.ContainsFunc(v.Moved, func(m ledger.RemoteAddresses) bool { return m.At != node || m.Leaving })
}

// restored reports whether a FixedIP was restored from a backup: its UID annotation names another UID. A new FixedIP has no
// such annotation if the controller was killed right after creating it.
func restored(r *v1alpha1.FixedIP) bool {
	uid, ok := r.Annotations[v1alpha1.AnnotationUID]
	return ok && uid != string(r.UID)
}

// unmarked reports whether a FixedIP lacks the finalizer or a UID annotation with its own UID.
func unmarked(r *v1alpha1.FixedIP) bool {
	return r.Annotations[v1alpha1.AnnotationUID] != string(r.UID) || !slices.Contains(r.Finalizers, v1alpha1.Finalizer)
}

// reclaimPolicy returns the reclaim policy of an identity without a FixedIP: that of the workload, or else the default.
func (v *evaluation) reclaimPolicy() v1alpha1.ReclaimPolicy {
	return ptr.Deref(v.Workload.Reclaim, identity.DefaultReclaim())
}

func (v *evaluation) failover() v1alpha1.Failover { return cmp.Or(v.spec.Failover, v.Failover) }

// reclaimable reports whether the reclaim policy of an active FixedIP requires that its addresses are released after the
// TTL.
func (v *evaluation) reclaimable() bool {
	switch {
	case v.Workload.OptsOut && (v.Pod == nil || identity.OptsOut(v.Pod)):
		// The policy for a deleted workload applies. A next pod that opted out may exist already. It prevents the release only
		// while it may use the addresses.
		return v.spec.Reclaim.WhenDeleted != v1alpha1.Retain && !v.mayUseEntries()
	case v.Pod != nil:
		return false
	case !v.Workload.Exists:
		return v.spec.Owner.UID != "" && v.spec.Reclaim.WhenDeleted != v1alpha1.Retain
	}
	return v.Workload.Excludes && v.spec.Reclaim.WhenScaled == v1alpha1.Delete
}

// expire returns DeleteRecord if the TTL is over and no blocker exists. Otherwise it returns the action that updates the
// status (see report), and Action.At is the time of the next decision. If the TTL is over, Action.Why is the message of the
// blocker.
func (v *evaluation) expire() Action {
	at := v.Record.Status.ExpiresAt
	ttl := time.Duration(v.spec.Reclaim.TTLSeconds) * time.Second
	if at == nil && ttl > 0 {
		// The API stores whole seconds.
		at = &metav1.Time{Time: v.Now.Add(ttl).Truncate(time.Second)}
	}
	if ttl > 0 && v.Now.Before(at.Time) {
		a := v.report(nil, at)
		a.At = at.Time
		return a
	}
	if why := v.blockerExcept(""); why != "" {
		a := v.report(nil, v.Record.Status.ExpiresAt)
		a.At, a.Why = v.Now.Add(recheckInterval), why
		return a
	}
	return Action{Type: DeleteRecord}
}

// watchBlockers returns a. If the allocation or a release is blocked, At is at most recheckInterval from now.
func (v *evaluation) watchBlockers(a Action) Action {
	if _, _, blocker := allocation(v.State); blocker != nil || len(v.Blockers) > 0 {
		a.At = earliest(a.At, v.Now.Add(recheckInterval))
	}
	return a
}

// overdue returns the result of Overdue for the state.
func (v *evaluation) overdue() bool { return Overdue(v.State) }

// Overdue reports whether the FixedIP is being deleted and State.Deadline has passed.
func Overdue(s State) bool {
	return s.Record != nil && s.Record.DeletionTimestamp != nil && s.Deadline > 0 && !s.Now.Before(s.Record.DeletionTimestamp.Add(s.Deadline))
}

// untilOverdue returns the action that updates the status of a FixedIP that is being deleted (see report). If State.Deadline
// is set, Action.At is the end of that deadline.
func (v *evaluation) untilOverdue() Action {
	a := v.report(v.Pod, nil)
	if v.Deadline > 0 {
		a.At = v.Record.DeletionTimestamp.Add(v.Deadline)
	}
	return a
}

// mayUseEntries reports whether the pod may use any of the addresses of its entries on its node.
func (v *evaluation) mayUseEntries() bool { return v.isHeld && !RunsWithout(v.Pod, v.held.Addrs) }

// nodeInUse returns the node of the pod if the pod may use the addresses of its entries there; empty otherwise.
func (v *evaluation) nodeInUse() string {
	if v.mayUseEntries() {
		return v.node
	}
	return ""
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// evidenceRules are the rules whose actions need evidence from an agent (NeedsEvidence). Decide tries them if there is
// nothing to write. The rules "vacant" and "stranded" do not apply while the agent reports one of the addresses as used:
// that report already shows that the address is in use.
var evidenceRules = []rule{
	{"withdrawn", func(v *evaluation) (Action, bool) {
		if !v.isActive() {
			return Action{}, false
		}
		node, addrs, blocker := allocation(v.State)
		return Action{Type: Own, Node: node, Addrs: addrs}, blocker == nil && len(v.homesWith(pool.Cooldown, addrs)) > 0
	}},
	{"vacant", when(func(v *evaluation) bool {
		return v.Slot && v.isActive() && v.Pod == nil && v.reserved() && v.Record.Status.VacatedBy != v.Holder
	}, func(v *evaluation) Action {
		a := Action{Type: Vacate, Node: v.Held[0].Node, Addrs: v.Held[0].Addrs, Status: *v.Record.Status.DeepCopy()}
		a.Status.VacatedBy = v.Holder
		return a
	})},
	{"stranded", when(func(v *evaluation) bool {
		return !v.Slot && v.isActive() && v.failover() == v1alpha1.Migrate && podutil.IsUnschedulable(v.Pod) && !identity.OptsOut(v.Pod) && v.reserved() && v.Record.Status.MovableFor != v.Pod.UID
	}, func(v *evaluation) Action {
		a := Action{Type: AllowMove, Node: v.Held[0].Node, Addrs: v.Held[0].Addrs, Status: *v.Record.Status.DeepCopy()}
		a.Status.MovableFor = v.Pod.UID
		return a
	})},
}

// homesWith returns those of addrs that have an entry of the given kind at their home.
func (v *evaluation) homesWith(kind pool.Kind, addrs []netip.Addr) (found []netip.Addr) {
	for _, h := range v.Homes {
		if h.Entry != nil && h.Entry.Kind == kind && slices.Contains(addrs, h.Addr) {
			found = append(found, h.Addr)
		}
	}
	return found
}

// isActive reports whether the identity has a FixedIP that is not being deleted.
func (v *evaluation) isActive() bool { return v.Record != nil && v.Record.DeletionTimestamp == nil }

// reserved reports whether exactly one node has entries of the identity, these include all recorded addresses, and no agent
// reports one of the addresses as used.
func (v *evaluation) reserved() bool {
	return len(v.Held) == 1 && containsAll(v.Held[0].Addrs, v.Record.Spec.IPs) &&
		!slices.ContainsFunc(v.Held[0].Addrs, func(a netip.Addr) bool { return slices.Contains(v.Reported, a) })
}

// recordStranded returns CreateRecord for a claim whose pod was not bound, is unschedulable and has not opted out, if the
// failover policy is Migrate: only the status of a FixedIP can allow the pod to take the addresses to another node. ok is
// false otherwise, and also for a slot, if several nodes have entries of the identity, or if the claim has several addresses
// of one family.
func (v *evaluation) recordStranded() (Action, bool) {
	if v.Slot || !podutil.IsUnschedulable(v.Pod) || identity.OptsOut(v.Pod) || len(v.Held) != 1 || cmp.Or(ptr.Deref(v.Workload.Failover, ""), v.Failover) != v1alpha1.Migrate {
		return Action{}, false
	}
	addrs, ok := onePerFamily(v.Held[0].Addrs, v.Pod)
	return v.createRecord(v.Held[0].Node, addrs), ok
}

func (v *evaluation) createRecord(node string, addrs []netip.Addr) Action {
	name, assignee := v.Holder, v1alpha1.PodName
	if v.Slot {
		assignee = v1alpha1.Slot
	}
	if v.Pod != nil {
		name = v.Pod.Name
	}
	return Action{Type: CreateRecord, Spec: v1alpha1.FixedIPSpec{
		IPs:        address.Strings(addrs),
		NodeName:   node,
		Owner:      v.Workload.OwnerReference,
		AssignedTo: assignee,
		PodName:    name,
		Reclaim:    v.reclaimPolicy(),
		Failover:   ptr.Deref(v.Workload.Failover, ""),
	}}
}
