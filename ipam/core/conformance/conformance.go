// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// PodState is the input of Decide: a pod, and the facts on which the action for the pod depends.
type PodState struct {
	// Pod is the pod; nil if there is nothing to compare: the pod or its FixedIP does not exist, the pod has opted out, or the
	// FixedIP is for another workload.
	Pod *corev1.Pod
	// FixedIP is the FixedIP of the pod; nil if it does not exist.
	FixedIP *v1alpha1.FixedIP
	// Held contains, for each node, the addresses whose entries in the pool of that node are owned by the pod.
	Held []ledger.NodeAddresses
	// Moved contains the addresses of the pod that have a Moved entry in the pool of their home node. The pool of the node
	// that the entry names may lack an entry for the address.
	Moved []ledger.RemoteAddresses
	// Ours is true if our scheduler places the pod and the next pod has the same name: the next pod is placed on the node
	// whose pool has its IPs.
	Ours bool
	// Returns are the nodes, except that of the pod, whose pools have entries for the pod and which can run it: the scheduler
	// can place the next pod on each of them. Empty unless Ours is true.
	Returns []string
	// BarePod is true if no controller creates the pod again. A bare pod is never evicted.
	BarePod bool
	// EndpointMissing is true if the pod has had no CiliumEndpoint for longer than its agent needs to create one.
	EndpointMissing bool
	// EndpointBlocker is the reason why the pod must not be evicted for a missing CiliumEndpoint now; empty: none.
	EndpointBlocker string
	// Policy is the policy for a mismatch: evict the pod, or only report the mismatch.
	Policy identity.OnMismatch
	// Grace contains the times for which a mismatch must last before an eviction.
	Grace GracePeriods
	// Now is the time of the decision on the clock of the controller.
	Now time.Time
}

// GracePeriods contains the times for which a mismatch must last before the pod is evicted. They begin when the condition
// AsReserved reports the mismatch.
type GracePeriods struct {
	// Address applies to a pod that runs with another IP than its FixedIP names. It should be longer than agents take to see
	// a pool entry: an agent that does not know the entry of the reserved IP gives the next pod another IP, too.
	Address time.Duration
	// Endpoint applies to a pod without a CiliumEndpoint. Within that time the agent may still create the CiliumEndpoint.
	Endpoint time.Duration
}

// ActionType is the kind of an Action.
type ActionType int

const (
	// None means that there is nothing to do until the state changes or Action.At is reached.
	None ActionType = iota
	// SetCondition writes the condition AsReserved.
	SetCondition
	// EvictPod evicts the pod.
	EvictPod
)

func (t ActionType) String() string { return [...]string{"None", "SetCondition", "EvictPod"}[t] }

// Action is the result of Decide.
type Action struct {
	Type ActionType
	// Condition is the condition AsReserved to write. For EvictPod it is written after the eviction, with ReasonRestartBlocked
	// if the eviction was refused.
	Condition metav1.Condition
	// At is the time at which Decide has to be called again if no object changes before; zero: no such call is needed.
	At time.Time
}

// Reasons of the condition AsReserved.
const (
	// ReasonAsReserved means that the pod no longer has a mismatch.
	ReasonAsReserved = "AsReserved"
	// ReasonWrongAddress means that the pod runs with another IP than its reserved one and a restart helps: the entry is in the
	// pool of the pod's node or of a node where the scheduler can place the next pod, or it is written for the next pod.
	ReasonWrongAddress = "WrongAddress"
	// ReasonNoPoolEntry means that the pod runs with another IP than its reserved one and a restart does not help now: no pool
	// has the entry, or the node whose pool has it cannot take the next pod now, or the next pod may be placed elsewhere.
	ReasonNoPoolEntry = "NoPoolEntry"
	// ReasonNoCiliumEndpoint means that the pod has no CiliumEndpoint and its agent does not create one, so other nodes may not
	// learn its IP (Cilium fact 17).
	ReasonNoCiliumEndpoint = "NoCiliumEndpoint"
	// ReasonRestarting means that the pod was evicted.
	ReasonRestarting = "Restarting"
	// ReasonRestartBlocked means that the eviction was refused.
	ReasonRestartBlocked = "RestartBlocked"
)

// MismatchReasons are the reasons with which the condition AsReserved is False.
var MismatchReasons = []string{ReasonWrongAddress, ReasonNoPoolEntry, ReasonNoCiliumEndpoint, ReasonRestarting, ReasonRestartBlocked}

// Mismatch returns the reason of the condition AsReserved if the condition is False and is about the pod that uses the
// addresses now. It returns an empty string otherwise, for example if no pod uses the addresses.
func Mismatch(fip *v1alpha1.FixedIP) string {
	c := meta.FindStatusCondition(fip.Status.Conditions, v1alpha1.ConditionAsReserved)
	if c == nil || c.Status != metav1.ConditionFalse || fip.Status.PodUID == "" || fip.Status.MismatchPodUID != fip.Status.PodUID {
		return ""
	}
	return c.Reason
}

// MismatchSince returns the time at which the current reason and message of the condition AsReserved were written; the zero
// time if the FixedIP does not have the condition.
func MismatchSince(fip *v1alpha1.FixedIP) time.Time {
	if c := meta.FindStatusCondition(fip.Status.Conditions, v1alpha1.ConditionAsReserved); c != nil {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// Decide returns the next action for a pod. The progress of a restart is stored only in the condition AsReserved and in
// status.mismatchPodUID, so that another replica continues where this one stopped.
//
// Decide ignores which IPs the agent reports as used. An IP that the agent does not report may be in use all the same: the
// report is late (Cilium fact 4), or a late CNI DEL has freed an IP that the next pod with the name uses (Cilium fact 13).
func Decide(s PodState) Action {
	if !isComparable(s) {
		return Action{}
	}
	condition := meta.FindStatusCondition(s.FixedIP.Status.Conditions, v1alpha1.ConditionAsReserved)
	reported := condition != nil && condition.Status == metav1.ConditionFalse
	f := find(s)
	if f.reason == "" {
		if !reported {
			return Action{}
		}
		return Action{Type: SetCondition, Condition: asReserved(metav1.ConditionTrue, ReasonAsReserved, fmt.Sprintf("In every family in which pod %s/%s has an IP and a reserved IP, the two are the same", s.Pod.Namespace, s.Pod.Name), s.Now)}
	}
	// A condition about an earlier pod of the FixedIP does not apply to this pod.
	reported = reported && s.FixedIP.Status.MismatchPodUID == s.Pod.UID
	evict := Action{Type: EvictPod, Condition: asReserved(metav1.ConditionFalse, ReasonRestarting, f.message, s.Now)}
	evicts := f.curable && s.Policy == identity.Restart && !s.BarePod
	switch {
	case reported && condition.Reason == ReasonRestarting:
		// This pod was evicted. The watch does not show its deletion yet.
		return Action{}
	case reported && condition.Reason == ReasonRestartBlocked && evicts:
		return evict
	case !reported || condition.Reason != f.reason || condition.Message != f.message:
		return Action{Type: SetCondition, Condition: asReserved(metav1.ConditionFalse, f.reason, f.message, s.Now)}
	case !evicts:
		return Action{}
	}
	if at := condition.LastTransitionTime.Add(f.grace); s.Now.Before(at) {
		return Action{At: at}
	}
	return evict
}

// IsConsistent reports whether the pod runs and has no mismatch with its FixedIP, and the condition AsReserved of the
// FixedIP is not False.
func IsConsistent(s PodState) bool {
	return isComparable(s) && find(s).reason == "" && !meta.IsStatusConditionFalse(s.FixedIP.Status.Conditions, v1alpha1.ConditionAsReserved)
}

// isComparable reports whether the pod runs, and has a FixedIP that has IPs and is not being deleted.
func isComparable(s PodState) bool {
	return podutil.Runs(s.Pod) && s.FixedIP != nil && s.FixedIP.DeletionTimestamp == nil && len(s.FixedIP.Spec.IPs) > 0
}

func asReserved(status metav1.ConditionStatus, reason, message string, at time.Time) metav1.Condition {
	return metav1.Condition{Type: v1alpha1.ConditionAsReserved, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(at)}
}

// SetAsReserved sets the condition AsReserved in the status of a FixedIP and, if the condition is False, the UID of the pod
// with the mismatch. Unlike meta.SetStatusCondition it always sets LastTransitionTime to that of c, so that each new reason
// or message begins a new grace period.
func SetAsReserved(status *v1alpha1.FixedIPStatus, c metav1.Condition, pod *corev1.Pod) {
	meta.RemoveStatusCondition(&status.Conditions, c.Type)
	meta.SetStatusCondition(&status.Conditions, c)
	status.MismatchPodUID = ""
	if c.Status == metav1.ConditionFalse {
		status.MismatchPodUID = pod.UID
	}
}

// finding is the mismatch of a pod. The zero value means that there is none.
type finding struct {
	reason, message string
	// curable is false if the pod must not be evicted because of this mismatch: a restart would not help, or
	// EndpointBlocker forbids the eviction now. The mismatch policy and bare pods are checked separately.
	curable bool
	grace   time.Duration
}

// find returns the mismatch of a pod for which isComparable is true.
func find(s PodState) finding {
	// A pod without any IP of a family has no mismatch in that family: the cause is the configuration of its node, which a
	// restart does not change.
	var missing []netip.Addr
	for _, ip := range s.FixedIP.Spec.IPs {
		a, err := address.Parse(ip)
		if err == nil && podutil.RunsWithOther(s.Pod, a) {
			missing = append(missing, a)
		}
	}
	runs := fmt.Sprintf("Pod %s/%s runs with %s on node %s", s.Pod.Namespace, s.Pod.Name, address.Join(podutil.IPs(s.Pod)), s.Pod.Spec.NodeName)
	f := finding{curable: true}
	switch {
	case len(missing) > 0:
		f.reason, f.grace = ReasonWrongAddress, s.Grace.Address
		where, returns := locateEntry(s, missing)
		verb := "is"
		if len(missing) > 1 {
			verb = "are"
		}
		f.message = fmt.Sprintf("%s, but %s %s reserved for the pod%s", runs, address.Join(missing), verb, where)
		if where != "" && !returns {
			f.reason, f.curable = ReasonNoPoolEntry, false
		}
	case s.EndpointMissing:
		f.reason, f.grace = ReasonNoCiliumEndpoint, s.Grace.Endpoint
		f.message = runs + " and has no CiliumEndpoint, so other nodes may not reach it"
		if s.EndpointBlocker != "" {
			f.message += "; the pod is not evicted now: " + s.EndpointBlocker
			f.curable = false
		}
	default:
		return finding{}
	}
	switch {
	case !f.curable:
	case s.BarePod:
		f.message += "; the pod is not evicted, because it is a bare pod; delete the pod and create it again"
	case s.Policy != identity.Restart:
		f.message += "; its mismatch policy is Report, so the pod is not evicted; delete the pod, or set the annotation " + identity.AnnotationOnMismatch + " of its workload to Restart"
	}
	return f
}

// locateEntry describes where the entry of a reserved IP is if the pool of the pod's node does not have it. If several of ips
// have no entry there, locateEntry describes the entry of the first of them. where is the end of a sentence; it is empty if the
// pool of the pod's node has entries that give all ips to the pod. If where is not empty, returns reports whether the next pod
// gets the IP.
func locateEntry(s PodState, ips []netip.Addr) (where string, returns bool) {
	here := s.Pod.Spec.NodeName
	missing := slices.DeleteFunc(slices.Clone(ips), func(a netip.Addr) bool { return holds(s, here, a) })
	if len(missing) == 0 {
		return "", false
	}
	for _, h := range s.Held {
		switch has := h.Node != here && slices.Contains(h.Addrs, missing[0]); {
		case has && slices.Contains(s.Returns, h.Node):
			return fmt.Sprintf("; the pool of node %s has IP %s for the pod, and the scheduler can place the next pod there", h.Node, missing[0]), true
		case has && s.Ours:
			return fmt.Sprintf("; the pool of node %s has IP %s for the pod, but that node cannot take the next pod now, so the pod is not evicted; make sure that the node can take the pod, then delete the pod", h.Node, missing[0]), false
		case has:
			return fmt.Sprintf("; the pool of node %s has IP %s for the pod, but the next pod may be placed elsewhere, so the pod is not evicted; if another scheduler places the pod, set schedulerName in the pod template to a profile of fixedip-scheduler; then delete the pod", h.Node, missing[0]), false
		}
	}
	for _, m := range s.Moved {
		if s.Ours && !m.Leaving && slices.Contains(m.Addrs, missing[0]) {
			return fmt.Sprintf("; IP %s was moved to node %s, whose pool does not have the entry; the scheduler writes the entry for the next pod", missing[0], m.At), true
		}
	}
	allocated := meta.FindStatusCondition(s.FixedIP.Status.Conditions, v1alpha1.ConditionAllocated)
	if s.Ours && allocated != nil && allocated.Status == metav1.ConditionFalse && allocated.Reason == string(pool.OtherAddressAllocated) {
		return fmt.Sprintf("; IP %s has no entry as long as the pool has another IP for the pod; the next pod gets the reserved IP", missing[0]), true
	}
	return fmt.Sprintf("; no pool has an entry of IP %s for the pod, and a restart does not help before a pool has one; see the condition Allocated of FixedIP %s", missing[0], s.FixedIP.Name), false
}

func holds(s PodState, node string, a netip.Addr) bool {
	return slices.ContainsFunc(s.Held, func(h ledger.NodeAddresses) bool { return h.Node == node && slices.Contains(h.Addrs, a) })
}

// AdoptableIPs returns the IPs in the status of a pod, without IPv6 addresses if ipv4Only is true. It returns nil unless the
// pod is bound, in the pod network, not terminal and not being deleted.
func AdoptableIPs(pod *corev1.Pod, ipv4Only bool) []netip.Addr {
	if !podutil.Runs(pod) {
		return nil
	}
	return slices.DeleteFunc(podutil.IPs(pod), func(a netip.Addr) bool { return ipv4Only && address.Of(a) != address.IPv4 })
}

// MissingReserved returns the reserved addresses of an identity that its pod does not have, although the pod has another
// address of the same family. held contains the addresses that pool entries reserve, reserved those that the FixedIP
// reserves, and has those of the pod. The caller must not adopt an address in has in place of a missing one. node is a node
// whose pool has a missing address; it is empty if no pool has one.
func MissingReserved(held []ledger.NodeAddresses, reserved []reservation.Address, has []netip.Addr) (node string, missing []netip.Addr) {
	lacks := func(a netip.Addr) bool {
		return !slices.Contains(has, a) && slices.ContainsFunc(has, func(b netip.Addr) bool { return address.Of(a) == address.Of(b) })
	}
	for _, h := range held {
		for _, a := range h.Addrs {
			if lacks(a) {
				node, missing = h.Node, append(missing, a)
			}
		}
	}
	for _, k := range reserved {
		if lacks(k.Addr) && !slices.Contains(missing, k.Addr) {
			missing = append(missing, k.Addr)
		}
	}
	return node, missing
}

// OtherFamilies returns the addresses in has that belong to a family in which fixed has no address.
func OtherFamilies(has, fixed []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(has), func(a netip.Addr) bool {
		return slices.ContainsFunc(fixed, func(b netip.Addr) bool { return address.Of(a) == address.Of(b) })
	})
}

// AdoptionBlocker returns the reason why a pod can't keep one of the IPs that it runs with on the node n; nil if the
// pod can keep all of them. The caller must have seen the pod run with these IPs: no other pod can get them while this
// pod runs.
//
// A pod keeps an IP whose entry it owns. It also keeps an IP that is in a subnet of the node and that the agent does not
// report for another owner, in these cases:
//   - The IP has no entry.
//   - The IP is in cooldown after a release from this pod: the agent had not seen the release when the pod started.
//   - dynamic is true, and the entry is dynamic or is a cooldown that names no pod, as after a withdrawal. This is adoption,
//     the one exception to the rule that a fixed address is never a dynamic entry (ADR 0004).
func AdoptionBlocker(n pool.NodePool, id identity.Identity, ips []netip.Addr, dynamic bool) *pool.Blocker {
	for _, a := range ips {
		entry, exists := n.Entries[a]
		switch user, used := n.Used[a]; {
		case exists && entry.OwnedBy(id.Key()):
		case used && user != "" && user != id.Key():
			return &pool.Blocker{Addr: a, Node: n.Name, Reason: pool.InUseByPod, Who: user, Requester: id.Key()}
		case exists && !(dynamic && (entry.Kind == pool.Dynamic || entry.CoolsDownFrom(""))) && !entry.CoolsDownFrom(id.Key()):
			return entry.Blocker(n.Name, a, id.Key())
		case !n.Home(a):
			return &pool.Blocker{Addr: a, Node: n.Name, Reason: pool.SubnetNotFound, Requester: id.Key(), Subnets: n.Subnets}
		}
	}
	return nil
}

// RestoreReleased returns the edits that restore the released entries of a pod. The pod was bound to the node because the
// pool had these entries, and they were released nevertheless. In each family in which the pod has no entry, the edits restore
// one of them: the entry that was released last among those whose IPs are in a subnet of the node, are not withheld by a
// release handshake, are not reported as used by another owner, and are allowed. The argument may is a function that reports
// whether the pod is allowed to have an IP. Since the release, no other pod can have had the IP of a restored entry, and an
// agent that has seen the restored entry gives the pod no other IP.
func RestoreReleased(n pool.NodePool, id identity.Identity, may func(netip.Addr) bool) []pool.EntryChange {
	var edits []pool.EntryChange
	for _, f := range address.Families {
		if _, has := n.HasEntry(id.Key(), f); has {
			continue
		}
		var released []netip.Addr
		for a, e := range n.Entries {
			if address.Of(a) == f && e.CoolsDownFrom(id.Key()) && n.Home(a) && !n.IsReleasing(a) && may(a) && (!n.InUse(a) || n.Used[a] == id.Key()) {
				released = append(released, a)
			}
		}
		if len(released) == 0 {
			continue
		}
		latest := slices.MaxFunc(released, func(a, b netip.Addr) int {
			return cmp.Or(cmp.Compare(n.Entries[a].Since(), n.Entries[b].Since()), b.Compare(a))
		})
		edits = append(edits, n.Set(latest, id.Entry()))
	}
	return edits
}
