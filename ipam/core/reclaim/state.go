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

// State is everything that is known of one identity: a StatefulSet pod, a bare pod, or a slot.
type State struct {
	// Record is the FixedIP; nil: there is none.
	Record *v1alpha1.FixedIP
	// Slot is true for a slot of a workload whose pods have no lasting names, recorded or only claimed.
	Slot bool
	// Holder is the name of the pod that the entries name, or else the FixedIP.
	Holder string
	// Held are the entries of all pools that name the holder; of a slot, those that have its addresses.
	Held []ledger.NodeAddresses
	// Arriving are the targets of moves of the addresses, and Away what their homes say of moved addresses.
	Arriving []ledger.NodeAddresses
	Away     []ledger.RemoteAddresses
	// Blockers are the reasons why held addresses must not be released yet.
	Blockers []ReleaseBlocker
	// Reported are the held addresses that the agent reports as in use.
	Reported []netip.Addr
	// Pod is the holder; nil: it does not exist.
	Pod *corev1.Pod
	// Idle is since when the identity is known to have no bound pod; zero: that is not known.
	Idle time.Time
	// Workload is the owner of the identity, as the FixedIP or the entries name it.
	Workload Workload
	// Failover is the policy of FixedIPs that have none.
	Failover v1alpha1.Failover
	// RequestsIPs is true if the pod asked for the addresses that were claimed for it: it gets these and no others.
	RequestsIPs bool
	// Guessed is true if there is no FixedIP and the entries do not say which workload they are for.
	Guessed bool
	// Homes are the homes of the recorded addresses; none while the FixedIP is being deleted.
	Homes []AddressHome
	// HomeMissing is a node that exists and has the subnet of addresses that may be away, and whose CiliumNode is missing;
	// empty: none.
	HomeMissing string
	// Now is the time of the decision.
	Now time.Time
	// Deadline is how long after its deletion a FixedIP is removed at the latest if no pool has its addresses; 0: it
	// waits for its pod.
	Deadline time.Duration
}

// Workload is the owner of an identity.
type Workload struct {
	v1alpha1.OwnerReference
	// Exists is true if there is an object of that kind and name. UID is then its UID.
	Exists bool
	// Reclaim is its policy; nil if it does not exist or its annotations are invalid: the recorded policy stays.
	Reclaim *v1alpha1.ReclaimPolicy
	// Failover is its failover policy; nil as for Reclaim.
	Failover *v1alpha1.Failover
	// Excludes is true if it exists and has no replica for the identity.
	Excludes bool
	// OptsOut is true if it exists and makes pods without fixed addresses.
	OptsOut bool
}

// AddressHome is what is known at the home of a recorded address.
type AddressHome struct {
	Addr netip.Addr
	// Node is the node whose pool decides over the address; empty if there is none, or if there are several.
	Node string
	// Entry is the entry in that pool; nil: there is none.
	Entry *pool.Entry
	// Reported means that the agent of the node lists the address for the pod.
	Reported bool
	// User is another pod, "namespace/name", that has the address there, by its own status or by the agent's report.
	User string
	// ConflictingFixedIP is another FixedIP, "namespace/name", that names the address and precedes this one: see Precedes.
	ConflictingFixedIP string
}

// ReleaseBlocker is a reason why an address must not be released yet: another pod uses it. The entry then keeps the next
// pod of the name waiting. Without the entry that pod would be placed on the node, and the agent would assign it the
// address that another pod has.
type ReleaseBlocker struct {
	Addr netip.Addr
	// User is the pod that has the address, as its agent reports it.
	User string
	// Why is a message for users.
	Why string
}

// ActionType is a kind of action.
type ActionType string

// The actions. Each is at most one write.
const (
	// Nothing means to wait until the state changes.
	Nothing ActionType = ""
	// CreateRecord creates the FixedIP of a claim.
	CreateRecord ActionType = "CreateRecord"
	// UpdateRecord updates the spec of the FixedIP, and adds the finalizer and the UID annotation.
	UpdateRecord ActionType = "UpdateRecord"
	// UpdateStatus updates the status of the FixedIP.
	UpdateStatus ActionType = "UpdateStatus"
	// Allocate writes the entries of recorded addresses. Decide from a live state before, for Withdraw too.
	Allocate ActionType = "Allocate"
	// Withdraw puts addresses that are offered to all pods, and that the pod runs with, into a cooldown: the agent gives
	// them to no pod once it has seen that. Own follows.
	Withdraw ActionType = "Withdraw"
	// DeleteRecord deletes the FixedIP. Decide from a live state before.
	DeleteRecord ActionType = "DeleteRecord"
	// ReplaceRecord deletes the FixedIP of a pod that got other addresses on another node (Reassign), so that one of
	// these addresses is created: the addresses of a FixedIP never change. Decide from a live state before.
	ReplaceRecord ActionType = "ReplaceRecord"
	// ReleaseEntries takes addresses from the identity, move targets too. Decide from a live state before, and confirm
	// after.
	ReleaseEntries ActionType = "ReleaseEntries"
	// MarkLeaving marks at home that addresses are about to leave the node that they were moved to.
	MarkLeaving ActionType = "MarkLeaving"
	// FenceTarget marks addresses as released on the node that they were moved to, whether or not they have arrived.
	FenceTarget ActionType = "FenceTarget"
	// ReleaseHome puts addresses that are fenced elsewhere into their cooldown at home. Decide from a live state before.
	ReleaseHome ActionType = "ReleaseHome"
	// FinishRecord removes the finalizer: no pool has an entry of the identity any more.
	FinishRecord ActionType = "FinishRecord"
	// Own writes the entries of recorded addresses that the pod runs with and that are in a cooldown. This and the next
	// two have to be proved first: see NeedsEvidence.
	Own ActionType = "Own"
	// Vacate reports that the former pod of a slot has stopped.
	Vacate ActionType = "Vacate"
	// AllowMove reports that the pod may take the addresses to another node.
	AllowMove ActionType = "AllowMove"
)

// Destroys reports whether the action takes something from the identity, so that it has to be decided from a live
// state. FinishRecord does not: a FixedIP that is being deleted stays so, and its addresses are released already.
func (t ActionType) Destroys() bool {
	switch t {
	case DeleteRecord, ReplaceRecord, ReleaseEntries, MarkLeaving, FenceTarget, ReleaseHome:
		return true
	}
	return false
}

// Allocates reports whether the action gives something to the identity, or prepares that.
func (t ActionType) Allocates() bool { return t == Allocate || t == Withdraw || t == Own }

// NeedsEvidence reports whether the action is right only if the agent of Node has confirmed that no pod uses Addrs, but
// for the pod itself in Own. Package agentview says how that is proved.
func (t ActionType) NeedsEvidence() bool { return t == Own || t == Vacate || t == AllowMove }

// Action is what Decide returns.
type Action struct {
	Type ActionType
	// Rule is the name of the rule that decided.
	Rule string
	// Spec is the spec to write, for CreateRecord and UpdateRecord.
	Spec v1alpha1.FixedIPSpec
	// Status is the status to write, for UpdateStatus, Vacate and AllowMove.
	Status v1alpha1.FixedIPStatus
	// Node and Addrs say where entries are released or written, and which. No Addrs means all of the identity.
	Node  string
	Addrs []netip.Addr
	// From is the node that moved addresses are on, for MarkLeaving and ReleaseHome.
	From string
	// Generation is what the generation of Node has to be, for ReleaseHome.
	Generation int64
	// At is when the state changes by time alone; zero: never.
	At time.Time
	// Why is why addresses that should be released are not; empty: nothing blocks that.
	Why string
}

// boundTo returns the node that a pod is bound to; empty: none, or there is no pod.
func boundTo(pod *corev1.Pod) string {
	if pod == nil {
		return ""
	}
	return pod.Spec.NodeName
}

// heldOn returns what is held on a node.
func heldOn(held []ledger.NodeAddresses, node string) (ledger.NodeAddresses, bool) {
	i := slices.IndexFunc(held, func(h ledger.NodeAddresses) bool { return h.Node == node && node != "" })
	if i < 0 {
		return ledger.NodeAddresses{}, false
	}
	return held[i], true
}

// HoldsOn reports whether the identity has an entry for an address on a node.
func (s State) HoldsOn(node string, a netip.Addr) bool {
	held, _ := heldOn(s.Held, node)
	return slices.Contains(held.Addrs, a)
}

// holds reports whether an address is among what is held.
func holds(held []ledger.NodeAddresses, a netip.Addr) bool {
	return slices.ContainsFunc(held, func(h ledger.NodeAddresses) bool { return slices.Contains(h.Addrs, a) })
}

// onePerFamily chooses one address of each family among those that a pod holds on its node. If there are several of
// one family, a user wrote an entry by hand, and the pod runs with the one that counts; ok is false while that is not
// known.
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

// containsAll reports whether every one of the given texts is among the addresses.
func containsAll(addrs []netip.Addr, ips []string) bool {
	return !slices.ContainsFunc(ips, func(ip string) bool { return !slices.Contains(address.Strings(addrs), ip) })
}

// RunsWithout reports whether the pod has reported IPs and none of addrs is among them. A pod without reported IPs may
// come to have any that its node's pool has for it.
func RunsWithout(pod *corev1.Pod, addrs []netip.Addr) bool {
	return pod != nil && len(pod.Status.PodIPs) > 0 && !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return podutil.RunsWith(pod, a) })
}
