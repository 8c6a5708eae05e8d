// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Observed is a pod beside what is kept for it.
type Observed struct {
	// Pod is the pod; nil: there is none.
	Pod *corev1.Pod
	// Record is the FixedIP of its name; nil: there is none.
	Record *v1alpha1.FixedIP
	// Held are the entries of all pools that name it.
	Held []ledger.Holding
	// Asked tells whether it asks for what was claimed for it.
	Asked bool
	// Endpoint tells whether it has the CiliumEndpoint that its node's agent owes it. It is true
	// where none is owed.
	Endpoint bool
	// Ours tells that our scheduler places it, under a name that it keeps: made again, it goes to where its addresses
	// are by then.
	Ours bool
	// Returns are the nodes that hold something for it and would have it, made again: its scheduler brings a pod
	// to where its addresses are. The pod's own node is none of them.
	Returns []string
	// Alone tells that nobody would make the pod again, so that it is neither restarted nor is anything
	// kept for it but what its entry says, which a person may have written.
	Alone bool
	// Policy says what is done about a mismatch.
	Policy identity.OnMismatch
	// Patience says when.
	Patience Patience
	// Now is the time of the decision.
	Now time.Time
}

// Patience is how long a finding has to last before a pod is restarted for it.
type Patience struct {
	// Address is for a wrong address whose right one stands in the pool: long enough that the
	// agent has certainly seen the entry.
	Address time.Duration
	// Endpoint is for a missing CiliumEndpoint: longer than agents need to make it again by
	// themselves.
	Endpoint time.Duration
}

// VerifyStep is what is to be done about a pod.
type VerifyStep int

const (
	// Pass means that there is nothing to do until the situation changes.
	Pass VerifyStep = iota
	// AdoptAddress keeps the addresses that the pod runs with, in place of those that were claimed for it.
	AdoptAddress
	// TellMismatch writes the condition Mismatch.
	TellMismatch
	// RestartPod evicts the pod.
	RestartPod
	// TellPod tells of a mismatch where there is no record yet that could have the condition.
	TellPod
)

func (s VerifyStep) String() string {
	return [...]string{"Pass", "AdoptAddress", "TellMismatch", "RestartPod", "TellPod"}[s]
}

// Verdict is what Verify found.
type Verdict struct {
	Step VerifyStep
	// Addrs are what the pod runs with, of the families that were claimed for it; for AdoptAddress.
	Addrs []netip.Addr
	// Condition is what to write; for TellMismatch and TellPod, and for RestartPod once the pod was evicted.
	Condition metav1.Condition
	// At is when the situation changes by time alone; zero: never.
	At time.Time
}

// Reasons of the condition Mismatch.
const (
	// ReasonAsReserved means that what was wrong is right now.
	ReasonAsReserved = "AsReserved"
	// ReasonWrongAddress means that the pod runs with another address, and the right one waits in the pool of its node, or
	// of one to which its scheduler brings it.
	ReasonWrongAddress = "WrongAddress"
	// ReasonNoPoolEntry means that the pod runs with another address, and the right one is in no pool to which a restart
	// would bring it.
	ReasonNoPoolEntry = "NoPoolEntry"
	// ReasonNoCiliumEndpoint means that nothing is known of the pod on other nodes, and the agent does not
	// mend that by itself.
	ReasonNoCiliumEndpoint = "NoCiliumEndpoint"
	// ReasonRestarting means that the pod was evicted.
	ReasonRestarting = "Restarting"
	// ReasonRestartBlocked means that the eviction was refused.
	ReasonRestartBlocked = "RestartBlocked"
)

// Verify compares a pod that runs with what is kept for it.
//
// The first placement decides: until the record has addresses, what the pod got is what it keeps
// (the record is only made of addresses that a pod was seen with, see reclaim.Decide), unless it was
// asked for something else. From then on the record is right and the pod is wrong. How far a restart has come is read from the condition
// alone, so that another replica goes on where this one stopped.
//
// What the agent lists as used is compared where addresses change hands (pool.Node.Adopt). That it
// does not list an address says nothing: its word is late, and a late CNI DEL takes an address from
// its list that a pod goes on using, which is safe as long as the entry has an owner.
func Verify(o Observed) Verdict {
	if !Runs(o.Pod) {
		return Verdict{}
	}
	if o.Record != nil && o.Record.DeletionTimestamp != nil {
		return Verdict{}
	}
	if o.Alone && o.Record == nil {
		return aloneFirst(o)
	}
	if v := firstPlacement(o); v.Step != Pass || o.Record == nil || len(o.Record.Spec.IPs) == 0 {
		return v
	}
	told := meta.FindStatusCondition(o.Record.Status.Conditions, v1alpha1.ConditionMismatch)
	wrong := told != nil && told.Status == metav1.ConditionTrue
	f := find(o)
	if f.reason == "" {
		if !wrong {
			return Verdict{}
		}
		return Verdict{Step: TellMismatch, Condition: mismatch(metav1.ConditionFalse, ReasonAsReserved, "The pod runs with what is kept for it", o.Now)}
	}
	evicted := mismatch(metav1.ConditionTrue, ReasonRestarting, f.message, o.Now)
	restarts := f.curable && o.Policy == identity.Restart && !o.Alone
	switch {
	case wrong && told.Reason == ReasonRestarting && o.Pod.CreationTimestamp.Before(&told.LastTransitionTime):
		// This is the pod that was evicted; the watch is yet to show that it goes.
		return Verdict{}
	case wrong && told.Reason == ReasonRestartBlocked && restarts:
		return Verdict{Step: RestartPod, Condition: evicted}
	case !wrong || told.Reason != f.reason || told.Message != f.message:
		return Verdict{Step: TellMismatch, Condition: mismatch(metav1.ConditionTrue, f.reason, f.message, o.Now)}
	case !restarts:
		return Verdict{}
	}
	if at := told.LastTransitionTime.Add(f.patience); o.Now.Before(at) {
		return Verdict{At: at}
	}
	return Verdict{Step: RestartPod, Condition: evicted}
}

// AsReserved tells whether a pod runs with what is recorded for it, and nobody says otherwise.
func AsReserved(o Observed) bool {
	if !Runs(o.Pod) || o.Record == nil || o.Record.DeletionTimestamp != nil || len(o.Record.Spec.IPs) == 0 {
		return false
	}
	return find(o).reason == "" && !meta.IsStatusConditionTrue(o.Record.Status.Conditions, v1alpha1.ConditionMismatch)
}

// finding is what is wrong with a pod. The zero finding is nothing.
type finding struct {
	reason, message string
	// curable tells whether a restart puts it right.
	curable  bool
	patience time.Duration
}

func find(o Observed) finding {
	// A family that the pod does not have at all is its node's setting, which no restart changes.
	var missing []string
	for _, ip := range o.Record.Spec.IPs {
		a, err := address.Parse(ip)
		if err == nil && !runsWith(o.Pod, a) && hasFamily(o.Pod, address.Of(a)) {
			missing = append(missing, ip)
		}
	}
	f := finding{curable: true}
	switch {
	case len(missing) > 0:
		f.reason, f.patience = ReasonWrongAddress, o.Patience.Address
		f.message = fmt.Sprintf("Pod %s/%s runs with %s on node %s, and %s is kept for it", o.Pod.Namespace, o.Pod.Name, podIPs(o.Pod), o.Pod.Spec.NodeName, strings.Join(missing, ", "))
		where, returns := elsewhere(o, missing)
		f.message += where
		if where != "" && !returns {
			f.reason, f.curable = ReasonNoPoolEntry, false
		}
	case !o.Endpoint:
		f.reason, f.patience = ReasonNoCiliumEndpoint, o.Patience.Endpoint
		f.message = fmt.Sprintf("Pod %s/%s runs with %s on node %s and has no CiliumEndpoint, so that other nodes know nothing of it", o.Pod.Namespace, o.Pod.Name, podIPs(o.Pod), o.Pod.Spec.NodeName)
	default:
		return finding{}
	}
	switch {
	case !f.curable:
	case o.Alone:
		f.message += byHand
	case o.Policy != identity.Restart:
		f.message += "; it is not restarted, by its policy. Restart it, or set " + identity.AnnotationOnMismatch + " to Restart"
	}
	return f
}

// byHand is what helps a pod that nobody would make again.
const byHand = "; nobody would make it again, so that it is not restarted. Delete it and make it again"

// aloneFirst compares a pod that nobody would make again with its entries on the node.
func aloneFirst(o Observed) Verdict {
	h, _ := heldOn(o.Held, o.Pod.Spec.NodeName)
	missing := slices.DeleteFunc(slices.Clone(h.Addrs), func(a netip.Addr) bool { return runsWith(o.Pod, a) || !hasFamily(o.Pod, address.Of(a)) })
	if len(missing) == 0 {
		return Verdict{}
	}
	message := fmt.Sprintf("Pod %s/%s runs with %s on node %s, and %s is kept for it%s", o.Pod.Namespace, o.Pod.Name, podIPs(o.Pod), o.Pod.Spec.NodeName, address.Join(missing), byHand)
	return Verdict{Step: TellPod, Condition: mismatch(metav1.ConditionTrue, ReasonWrongAddress, message, o.Now)}
}

// elsewhere says where the entries of addresses are that the pool of the pod's node does not have, and whether a
// restart brings the pod there. It says nothing where the node has them all.
func elsewhere(o Observed, ips []string) (where string, returns bool) {
	here, _ := heldOn(o.Held, o.Pod.Spec.NodeName)
	missing := slices.DeleteFunc(slices.Clone(ips), func(ip string) bool { return slices.Contains(address.Strings(here.Addrs), ip) })
	if len(missing) == 0 {
		return "", false
	}
	for _, h := range o.Held {
		switch has := h.Node != here.Node && slices.Contains(address.Strings(h.Addrs), missing[0]); {
		case has && slices.Contains(o.Returns, h.Node):
			return fmt.Sprintf(", in the pool of node %s, where its scheduler brings it", h.Node), true
		case has:
			return fmt.Sprintf(", in the pool of node %s: a restart helps only if its scheduler brings it there", h.Node), false
		}
	}
	projected := meta.FindStatusCondition(o.Record.Status.Conditions, v1alpha1.ConditionAllocated)
	if o.Ours && projected != nil && projected.Status == metav1.ConditionFalse && projected.Reason == string(pool.OtherAddressAllocated) {
		return ", which it can't have beside what the pool has for it, and has once it is made again", true
	}
	return fmt.Sprintf(", in no pool: a restart would not help before node %s has the entry", o.Pod.Spec.NodeName), false
}

// firstPlacement adopts what a pod got in place of what was claimed for it, in the families in which
// nothing is recorded yet.
func firstPlacement(o Observed) Verdict {
	if o.Asked || o.Alone {
		return Verdict{}
	}
	h, _ := heldOn(o.Held, o.Pod.Spec.NodeName)
	var addrs []netip.Addr
	adopted := false
	for _, ip := range o.Pod.Status.PodIPs {
		a, err := address.Parse(ip.IP)
		if err != nil || !claimed(o, address.Of(a)) || recorded(o, address.Of(a)) {
			continue
		}
		addrs = append(addrs, a)
		adopted = adopted || !slices.Contains(h.Addrs, a)
	}
	if !adopted {
		return Verdict{}
	}
	return Verdict{Step: AdoptAddress, Addrs: addrs}
}

// claimed tells whether any pool has an address of the family for the pod.
func claimed(o Observed, f address.Family) bool {
	return slices.ContainsFunc(o.Held, func(h ledger.Holding) bool {
		return slices.ContainsFunc(h.Addrs, func(a netip.Addr) bool { return address.Of(a) == f })
	})
}

// recorded tells whether the record has an address of the family.
func recorded(o Observed, f address.Family) bool {
	return o.Record != nil && slices.ContainsFunc(o.Record.Spec.IPs, func(ip string) bool {
		a, err := address.Parse(ip)
		return err == nil && address.Of(a) == f
	})
}

// Runs tells whether a pod has addresses of the pod network and was neither ended nor asked to stop:
// what its status says of them is certain then.
func Runs(pod *corev1.Pod) bool {
	return pod != nil && pod.Spec.NodeName != "" && !pod.Spec.HostNetwork && pod.DeletionTimestamp == nil &&
		pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed && len(pod.Status.PodIPs) > 0
}

func hasFamily(pod *corev1.Pod, f address.Family) bool {
	return slices.ContainsFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool {
		a, err := address.Parse(ip.IP)
		return err == nil && address.Of(a) == f
	})
}

func podIPs(pod *corev1.Pod) string {
	var ips []string
	for _, ip := range pod.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	return strings.Join(ips, ", ")
}

func mismatch(status metav1.ConditionStatus, reason, message string, at time.Time) metav1.Condition {
	return metav1.Condition{Type: v1alpha1.ConditionMismatch, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(at)}
}

// WithCondition is the conditions with one put in its place.
func WithCondition(conditions []metav1.Condition, c metav1.Condition) []metav1.Condition {
	out := slices.DeleteFunc(slices.Clone(conditions), func(have metav1.Condition) bool { return have.Type == c.Type })
	out = append(out, c)
	slices.SortFunc(out, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
	return out
}
