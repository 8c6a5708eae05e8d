// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
)

// State is everything that is known about one identity: a pod name together with its workload, a bare pod, or a slot.
type State struct {
	// Record is the FixedIP; nil: there is none.
	Record *v1alpha1.FixedIP
	// Slot is true if the identity is a slot, whether or not the slot has a FixedIP.
	Slot bool
	// Holder is the name of the pod that the entries name; if there are none, that of the pod in the FixedIP.
	Holder string
	// Held are the addresses of the Owned entries of the holder in all pools; for a slot, only the addresses of the slot.
	Held []ledger.NodeAddresses
	// MoveTargets are the addresses of MoveTarget entries that name the holder, and Moved those of Moved entries. Both are
	// empty for a slot.
	MoveTargets []ledger.NodeAddresses
	Moved       []ledger.RemoteAddresses
	// Blockers are the reasons why addresses in Held must not be released yet.
	Blockers []ReleaseBlocker
	// Reported are the addresses in Held that the agents report as used.
	Reported []netip.Addr
	// Pod is the pod named Holder; nil: it does not exist. A terminal pod of a slot is nil too.
	Pod *corev1.Pod
	// Idle is the time since which no bound pod of the identity has been observed; zero if a pod is bound, if there is no
	// FixedIP, and for a slot.
	Idle time.Time
	// Workload is the owner of the identity, as the FixedIP or the entries name it. If neither names the owner, Workload is
	// inferred from the pod or from the name of the pod.
	Workload Workload
	// Failover is the failover policy for FixedIPs that have none; empty for a slot.
	Failover v1alpha1.Failover
	// RequestsIPs is true if annotations of the pod or of its workload request addresses. The FixedIP is then created from the
	// claim before the pod has IPs.
	RequestsIPs bool
	// OtherFixedIP is a FixedIP of another pod, "namespace/name". The FixedIP names an address in Held and is not being
	// deleted. Empty: there is none, or the identity has a FixedIP itself.
	OtherFixedIP string
	// OwnerInferred is true if there is no FixedIP and Workload was inferred, because the Owned entries do not name it: see
	// InferOwner. Such entries count as written by a user. OwnerInferred is false if the identity has only MoveTarget and
	// Moved entries: these never name a workload, and no user writes them.
	OwnerInferred bool
	// Homes are the homes of the recorded addresses; empty if there is no FixedIP, and while it is being deleted.
	Homes []AddressHome
	// HomeMissing is an existing node to which a NodeSubnet assigns the subnet of a recorded address, but which has no
	// CiliumNode with that subnet. It is set only while the FixedIP is being deleted and its pod may have moved the
	// addresses to another node; empty: none.
	HomeMissing string
	// Now is the time of the decision.
	Now time.Time
	// Deadline limits how long a FixedIP waits after its deletion because of a blocker, a move, a missing home, or a pod that
	// may run with the addresses although its node has no entry for them; 0: no limit.
	Deadline time.Duration
}

// Workload is the owner of an identity.
type Workload struct {
	v1alpha1.OwnerReference
	// Exists is true if an object of that kind and name exists. UID is its UID then.
	Exists bool
	// Reclaim is the reclaim policy of the workload; nil if the workload does not exist or its annotations are invalid: the
	// FixedIP keeps its policy then.
	Reclaim *v1alpha1.ReclaimPolicy
	// Failover is the failover policy of the workload; nil: the FixedIP keeps its policy.
	Failover *v1alpha1.Failover
	// Excludes is true if the workload exists and has no replica for the identity or does not need the slot (Surplus).
	Excludes bool
	// OptsOut is true if the workload exists and the pods that it creates from now on have no fixed addresses.
	OptsOut bool
}

// AddressHome is the state of a recorded address at its home.
type AddressHome struct {
	Addr netip.Addr
	// Node is the home node; empty if no subnet contains the address, or if subnets of several nodes overlap there.
	Node string
	// Entry is the entry of the address in the pool of Node; nil: there is none.
	Entry *pool.Entry
	// Blocker is the reason why the pool of the home node does not allow an entry (pool.NodePool.ClaimBlocker); nil if the pool
	// allows one, or if Entry is not nil.
	Blocker *pool.Blocker
	// Reported is true if the agent of the home node reports the address as used by the pod of the FixedIP.
	Reported bool
	// User is another pod, "namespace/name", that uses the address on Node, by its own status or by the report of the agent,
	// or another owner text in that report; pool.UnknownUser if the agent reports no owner; empty: none.
	User string
	// ConflictingFixedIP is another FixedIP, "namespace/name", that names the address and takes precedence (see Precedes);
	// empty: none.
	ConflictingFixedIP string
}

// ReleaseBlocker is a reason why an address must not be released yet: a pod other than the owner of the entry, or the node
// itself, uses the address. While the entry exists, the next pod with the owner's name waits. Without the entry, the next pod
// might be bound to the node, and an agent that still knows the entry would assign the address in use to that pod.
type ReleaseBlocker struct {
	Addr netip.Addr
	// User is the owner text that the agent reports for the address.
	User string
	// Why is the message for users.
	Why string
}

// ActionType is the type of an Action.
type ActionType string

// The actions. Each is at most one write.
const (
	// Nothing means that there is nothing to do until the state changes or Action.At is reached.
	Nothing ActionType = ""
	// CreateRecord creates the FixedIP of a claim.
	CreateRecord ActionType = "CreateRecord"
	// UpdateRecord updates the spec of the FixedIP, and adds the finalizer and the UID annotation.
	UpdateRecord ActionType = "UpdateRecord"
	// UpdateStatus updates the status of the FixedIP.
	UpdateStatus ActionType = "UpdateStatus"
	// Allocate writes the entries of recorded addresses. It must be decided again from a live state before the write, and
	// so must Withdraw.
	Allocate ActionType = "Allocate"
	// Withdraw replaces the dynamic entries of addresses that the pod runs with by Cooldown entries. An agent that has
	// seen the Cooldown entries gives the addresses to no other pod. Own follows once evidence shows that no other pod has
	// them.
	Withdraw ActionType = "Withdraw"
	// DeleteRecord deletes the FixedIP. It must be decided again from a live state before the write.
	DeleteRecord ActionType = "DeleteRecord"
	// ReplaceRecord deletes the FixedIP of a pod that got other addresses (Reassign). A FixedIP of those addresses is
	// created afterwards, because a recorded address is never replaced. The action must be decided again from a live state
	// before the write.
	ReplaceRecord ActionType = "ReplaceRecord"
	// ReleaseEntries releases entries of the identity, including move targets. It must be decided again from a live state
	// before the write, and confirmed after it.
	ReleaseEntries ActionType = "ReleaseEntries"
	// MarkLeaving marks the Moved entries at the home as leaving the node that the addresses were moved to.
	MarkLeaving ActionType = "MarkLeaving"
	// FenceTarget writes Cooldown entries on the node that the addresses were moved to, whether or not they have arrived.
	FenceTarget ActionType = "FenceTarget"
	// ReleaseHome replaces the Moved entries at the home by Cooldown entries, after FenceTarget. It must be decided again
	// from a live state before the write.
	ReleaseHome ActionType = "ReleaseHome"
	// FinishRecord removes the finalizer: the entries of the recorded addresses are released, or the deadline is over.
	FinishRecord ActionType = "FinishRecord"
	// Own writes the entries of recorded addresses that the pod runs with and that are in their cooldown. Own, Vacate and
	// AllowMove need evidence first: see NeedsEvidence.
	Own ActionType = "Own"
	// Vacate reports that the former pod of a slot has stopped.
	Vacate ActionType = "Vacate"
	// AllowMove reports that the pod may take the addresses to another node.
	AllowMove ActionType = "AllowMove"
)

// IsDestructive reports whether the action removes an entry or the FixedIP of the identity, or prepares such a removal.
// These actions must be decided from a live state. It is false for FinishRecord: that action releases no entry, and the
// FixedIP is already being deleted, which can't be taken back.
func (t ActionType) IsDestructive() bool {
	switch t {
	case DeleteRecord, ReplaceRecord, ReleaseEntries, MarkLeaving, FenceTarget, ReleaseHome:
		return true
	}
	return false
}

// Allocates reports whether the action writes entries for the identity, or prepares that (Withdraw).
func (t ActionType) Allocates() bool { return t == Allocate || t == Withdraw || t == Own }

// NeedsEvidence reports whether the action is allowed only if evidence from the agent of Action.Node shows that no pod uses
// Action.Addrs; for Own, no pod except State.Pod. See package agentview.
func (t ActionType) NeedsEvidence() bool { return t == Own || t == Vacate || t == AllowMove }

// Action is the next action for an identity. The zero value means to wait until the state changes.
type Action struct {
	Type ActionType
	// Rule is the name of the rule that decided; empty: no rule applied.
	Rule string
	// Spec is the spec to write, for CreateRecord and UpdateRecord.
	Spec v1alpha1.FixedIPSpec
	// Status is the status to write, for UpdateStatus, Vacate and AllowMove.
	Status v1alpha1.FixedIPStatus
	// Node is the node whose pool is written, or whose agent provides the evidence. Addrs are the addresses of the entries.
	// For ReleaseEntries, empty Addrs stand for all addresses of the identity on Node.
	Node  string
	Addrs []netip.Addr
	// From is the node that the addresses were moved to, for MarkLeaving and ReleaseHome.
	From string
	// Generation is the generation that the CiliumNode of Node must have, for ReleaseHome.
	Generation int64
	// At is the time of the next decision if the state does not change before; zero: no such decision is needed.
	At time.Time
	// Why is the message of the blocker if addresses should be released and can't be released yet; empty: no blocker.
	Why string
}

// boundTo returns the node that a pod is bound to; empty if the pod is nil or not bound.
func boundTo(pod *corev1.Pod) string {
	if pod == nil {
		return ""
	}
	return pod.Spec.NodeName
}

// heldOn returns the element of held for a node, and false if there is none.
func heldOn(held []ledger.NodeAddresses, node string) (ledger.NodeAddresses, bool) {
	i := slices.IndexFunc(held, func(h ledger.NodeAddresses) bool { return h.Node == node && node != "" })
	if i < 0 {
		return ledger.NodeAddresses{}, false
	}
	return held[i], true
}

// HoldsOn reports whether the identity has an Owned entry for an address on a node.
func (s State) HoldsOn(node string, a netip.Addr) bool {
	held, _ := heldOn(s.Held, node)
	return slices.Contains(held.Addrs, a)
}

// holds reports whether an address is in held, on any node.
func holds(held []ledger.NodeAddresses, a netip.Addr) bool {
	return slices.ContainsFunc(held, func(h ledger.NodeAddresses) bool { return slices.Contains(h.Addrs, a) })
}

// onePerFamily returns one of addrs for each family that they contain. There may be several of one family, for example if a
// user wrote an entry: the one that the pod runs with is chosen then. ok is false if the IPs of the pod do not decide that.
func onePerFamily(addrs []netip.Addr, pod *corev1.Pod) (chosen []netip.Addr, ok bool) {
	for _, f := range address.Families {
		family := slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return address.Of(a) != f })
		if len(family) > 1 {
			family = slices.DeleteFunc(family, func(a netip.Addr) bool { return !podutil.RunsWith(pod, a) })
			if len(family) != 1 {
				return nil, false
			}
		}
		chosen = append(chosen, family...)
	}
	return chosen, true
}

// recorded returns the addresses that a FixedIP names.
func recorded(r *v1alpha1.FixedIP) []netip.Addr { return address.ParseAll(r.Spec.IPs) }

// containsAll reports whether addrs contain all ips, which must be in canonical form.
func containsAll(addrs []netip.Addr, ips []string) bool {
	return !slices.ContainsFunc(ips, func(ip string) bool { return !slices.Contains(address.Strings(addrs), ip) })
}

// RunsWithout reports whether the status of the pod has IPs and none of addrs is among them. It is false for a pod without
// IPs, because that pod may still get any address that its node has an entry for; and for a nil pod.
func RunsWithout(pod *corev1.Pod, addrs []netip.Addr) bool {
	return pod != nil && len(pod.Status.PodIPs) > 0 && !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return podutil.RunsWith(pod, a) })
}
