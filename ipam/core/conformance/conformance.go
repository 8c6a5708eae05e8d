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

// PodState is a pod and what is recorded for it.
type PodState struct {
	// Pod is nil if there is none.
	Pod *corev1.Pod
	// FixedIP is nil if there is none.
	FixedIP *v1alpha1.FixedIP
	// Held are the entries of all pools that name the pod.
	Held []ledger.NodeAddresses
	// Ours is true if our scheduler places the pod, under a name that the next pod has too: after a restart the pod is
	// where its IPs are by then.
	Ours bool
	// Returns are the other nodes that hold entries for the pod and can run it: its scheduler moves it to its IPs.
	Returns []string
	// BarePod is true if no controller makes the pod again. It is never evicted.
	BarePod bool
	// EndpointMissing is true if the pod has had no CiliumEndpoint for longer than its agent needs to make one.
	EndpointMissing bool
	// EndpointBlocker is why the pod is not evicted for a missing CiliumEndpoint now; empty: nothing prevents it.
	EndpointBlocker string
	// Policy says what to do about a mismatch.
	Policy identity.OnMismatch
	// Grace says when.
	Grace GracePeriods
	// Now is the time of the decision on the clock of the controller.
	Now time.Time
}

// GracePeriods are how long a mismatch must last before the pod is evicted.
type GracePeriods struct {
	// Address is for a wrong IP whose right one is in the pool: long enough for the agent to have seen the entry.
	Address time.Duration
	// Endpoint is for a missing CiliumEndpoint: longer than agents need to make it again.
	Endpoint time.Duration
}

// ActionType is what to do about a pod.
type ActionType int

const (
	// None means that nothing, until the state changes.
	None ActionType = iota
	// SetCondition writes the condition Mismatch.
	SetCondition
	// EvictPod evicts the pod.
	EvictPod
)

func (t ActionType) String() string { return [...]string{"None", "SetCondition", "EvictPod"}[t] }

// Action is the result of Decide.
type Action struct {
	Type ActionType
	// Condition is what to write; for EvictPod, once the pod was evicted.
	Condition metav1.Condition
	// At is when the state changes by time alone; zero: never.
	At time.Time
}

// Reasons of the condition Mismatch.
const (
	// ReasonAsReserved means that a mismatch is over.
	ReasonAsReserved = "AsReserved"
	// ReasonWrongAddress means that the pod runs with another IP. Its own is in the pool of its node, or of a node to which its
	// scheduler moves it.
	ReasonWrongAddress = "WrongAddress"
	// ReasonNoPoolEntry means that the pod runs with another IP. Its own is in no pool that a restart would bring it to.
	ReasonNoPoolEntry = "NoPoolEntry"
	// ReasonNoCiliumEndpoint means that other nodes do not know the pod, and its agent does not change that.
	ReasonNoCiliumEndpoint = "NoCiliumEndpoint"
	// ReasonRestarting means that the pod was evicted.
	ReasonRestarting = "Restarting"
	// ReasonRestartBlocked means that the eviction was refused.
	ReasonRestartBlocked = "RestartBlocked"
)

// Decide returns the next action about a pod. How far a restart has come is read from the condition and from
// status.mismatchPodUID alone, so that another replica continues where this one stopped.
//
// The IPs that the agent reports as used are not looked at. An IP that is missing there may be in use: the report is
// late (Cilium fact 4), and a late CNI DEL removes an IP that the next pod of the name uses (Cilium fact 13).
func Decide(s PodState) Action {
	if !judged(s) {
		return Action{}
	}
	told := meta.FindStatusCondition(s.FixedIP.Status.Conditions, v1alpha1.ConditionMismatch)
	reported := told != nil && told.Status == metav1.ConditionTrue
	f := find(s)
	if f.reason == "" {
		if !reported {
			return Action{}
		}
		return Action{Type: SetCondition, Condition: mismatch(metav1.ConditionFalse, ReasonAsReserved, "The pod runs with the IPs that are reserved for it", s.Now)}
	}
	// A condition about an earlier pod of the name says nothing about this one.
	reported = reported && s.FixedIP.Status.MismatchPodUID == s.Pod.UID
	evict := Action{Type: EvictPod, Condition: mismatch(metav1.ConditionTrue, ReasonRestarting, f.message, s.Now)}
	evicts := f.curable && s.Policy == identity.Restart && !s.BarePod
	switch {
	case reported && told.Reason == ReasonRestarting:
		// This pod was evicted. The watch does not show its deletion yet.
		return Action{}
	case reported && told.Reason == ReasonRestartBlocked && evicts:
		return evict
	case !reported || told.Reason != f.reason || told.Message != f.message:
		return Action{Type: SetCondition, Condition: mismatch(metav1.ConditionTrue, f.reason, f.message, s.Now)}
	case !evicts:
		return Action{}
	}
	if at := told.LastTransitionTime.Add(f.grace); s.Now.Before(at) {
		return Action{At: at}
	}
	return evict
}

// IsConsistent reports whether a pod runs as recorded, and its FixedIP says nothing else.
func IsConsistent(s PodState) bool {
	return judged(s) && find(s).reason == "" && !meta.IsStatusConditionTrue(s.FixedIP.Status.Conditions, v1alpha1.ConditionMismatch)
}

// judged reports whether there is a running pod and a FixedIP to compare it with.
func judged(s PodState) bool {
	return podutil.Runs(s.Pod) && s.FixedIP != nil && s.FixedIP.DeletionTimestamp == nil && len(s.FixedIP.Spec.IPs) > 0
}

func mismatch(status metav1.ConditionStatus, reason, message string, at time.Time) metav1.Condition {
	return metav1.Condition{Type: v1alpha1.ConditionMismatch, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(at)}
}

// SetMismatch puts the condition into the status of a FixedIP, with the pod that it is about. Unlike
// meta.SetStatusCondition it begins a grace period with each new reason.
func SetMismatch(status *v1alpha1.FixedIPStatus, c metav1.Condition, pod *corev1.Pod) {
	meta.RemoveStatusCondition(&status.Conditions, c.Type)
	meta.SetStatusCondition(&status.Conditions, c)
	status.MismatchPodUID = ""
	if c.Status == metav1.ConditionTrue {
		status.MismatchPodUID = pod.UID
	}
}

// finding is what is wrong with a pod. The zero finding is nothing.
type finding struct {
	reason, message string
	// curable is true if a restart helps.
	curable bool
	grace   time.Duration
}

func find(s PodState) finding {
	// A family that the pod does not have at all is a setting of its node. A restart does not change it.
	var missing []netip.Addr
	for _, ip := range s.FixedIP.Spec.IPs {
		a, err := address.Parse(ip)
		if err == nil && !podutil.RunsWith(s.Pod, a) && podutil.HasFamily(s.Pod, address.Of(a)) {
			missing = append(missing, a)
		}
	}
	runs := fmt.Sprintf("Pod %s/%s runs with %s on node %s", s.Pod.Namespace, s.Pod.Name, address.Join(podutil.IPs(s.Pod)), s.Pod.Spec.NodeName)
	f := finding{curable: true}
	switch {
	case len(missing) > 0:
		f.reason, f.grace = ReasonWrongAddress, s.Grace.Address
		where, returns := elsewhere(s, missing)
		f.message = fmt.Sprintf("%s, and %s is reserved for it%s", runs, address.Join(missing), where)
		if where != "" && !returns {
			f.reason, f.curable = ReasonNoPoolEntry, false
		}
	case s.EndpointMissing:
		f.reason, f.grace = ReasonNoCiliumEndpoint, s.Grace.Endpoint
		f.message = runs + " and has no CiliumEndpoint, so that other nodes do not know it"
		if s.EndpointBlocker != "" {
			f.message += "; it is not evicted: " + s.EndpointBlocker
			f.curable = false
		}
	default:
		return finding{}
	}
	switch {
	case !f.curable:
	case s.BarePod:
		f.message += "; it is not evicted, because no controller makes it again. Delete it and create it again"
	case s.Policy != identity.Restart:
		f.message += "; it is not evicted, by its policy. Delete it, or set " + identity.AnnotationOnMismatch + " to Restart"
	}
	return f
}

// elsewhere says where the entries of the IPs are that the pool of the pod's node does not have, and whether a restart
// brings the pod there. It returns nothing if the node has all of them.
func elsewhere(s PodState, ips []netip.Addr) (where string, returns bool) {
	here := s.Pod.Spec.NodeName
	missing := slices.DeleteFunc(slices.Clone(ips), func(a netip.Addr) bool { return holds(s, here, a) })
	if len(missing) == 0 {
		return "", false
	}
	for _, h := range s.Held {
		switch has := h.Node != here && slices.Contains(h.Addrs, missing[0]); {
		case has && slices.Contains(s.Returns, h.Node):
			return fmt.Sprintf(", in the pool of node %s, to which its scheduler moves it", h.Node), true
		case has:
			return fmt.Sprintf(", in the pool of node %s: a restart helps only if its scheduler places it there", h.Node), false
		}
	}
	allocated := meta.FindStatusCondition(s.FixedIP.Status.Conditions, v1alpha1.ConditionAllocated)
	if s.Ours && allocated != nil && allocated.Status == metav1.ConditionFalse && allocated.Reason == string(pool.OtherAddressAllocated) {
		return ", which has no entry as long as the pool has another IP for the pod; the next pod has it", true
	}
	return fmt.Sprintf(", in no pool: a restart does not help before node %s has the entry", here), false
}

func holds(s PodState, node string, a netip.Addr) bool {
	return slices.ContainsFunc(s.Held, func(h ledger.NodeAddresses) bool { return h.Node == node && slices.Contains(h.Addrs, a) })
}

// AdoptableIPs returns the IPs that a pod runs with and will have for a while. It returns none while that is not sure.
func AdoptableIPs(pod *corev1.Pod, ipv4Only bool) []netip.Addr {
	if !podutil.Runs(pod) {
		return nil
	}
	return slices.DeleteFunc(podutil.IPs(pod), func(a netip.Addr) bool { return ipv4Only && address.Of(a) != address.IPv4 })
}

// MissingReserved returns the IPs that are reserved for an identity and that its pod runs without, in families that it
// has: they are not given up for the IPs that the pod has now. node is where their entries are; it is empty if they are
// in no pool. reserved are the IPs of the FixedIP.
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

// WhyNotKept returns why a pod can't keep the IPs that it runs with on a node; nil: it can. The caller has seen the pod
// run with them, after which no other pod can have them until it is gone. dynamic is whether a dynamic entry may become
// the pod's own: that is adoption, the one exception to "a fixed address is never a dynamic entry". A cooldown that names no
// pod may become the pod's own then, too: the IP was withdrawn. An IP in cooldown that was released from the pod itself is
// the pod's: its agent had not seen the release.
func WhyNotKept(n pool.NodePool, id identity.Identity, ips []netip.Addr, dynamic bool) *pool.Blocker {
	for _, a := range ips {
		entry, listed := n.Entries[a]
		switch user, used := n.Used[a]; {
		case listed && entry.OwnedBy(id.Key()):
		case used && user != "" && user != id.Key():
			return &pool.Blocker{Addr: a, Node: n.Name, Reason: pool.InUseByPod, Who: user, Asks: id.Key()}
		case listed && !(dynamic && (entry.Kind == pool.Dynamic || entry.CoolsDownFrom(""))) && !entry.CoolsDownFrom(id.Key()):
			return entry.Blocker(n.Name, a, id.Key())
		case !n.Home(a):
			return &pool.Blocker{Addr: a, Node: n.Name, Reason: pool.SubnetNotFound, Asks: id.Key(), Subnets: n.Subnets}
		}
	}
	return nil
}

// RestoreReleased returns the edits that give a pod, which was bound to the node because of an entry that was then
// released from its name, that entry back: one of each family, at home on the node, released last. The agent gives the
// pod no other IP once it has seen the entry. No other pod can have had the IP in between. may reports whether the pod
// may have an IP.
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
			return cmp.Or(cmp.Compare(n.Entries[a].Since, n.Entries[b].Since), b.Compare(a))
		})
		edits = append(edits, n.Set(latest, id.Entry()))
	}
	return edits
}
