// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// leaderTimeout is the age of the last lease renewal after which Explain reports a problem. The lease lasts 15 s by default.
const leaderTimeout = time.Minute

// Inputs contains all objects that concern one pod. A pointer is nil if the object does not exist.
type Inputs struct {
	Namespace, Name string
	Pod             *corev1.Pod
	Record          *v1alpha1.FixedIP
	// Workload is the workload, of any kind, that the FixedIP names.
	Workload *identity.Workload
	// Unread is the reason why it is unknown whether the workload exists; empty if it is known.
	Unread string
	// Pools contains the pools of all nodes; nil if they cannot be read, for example with the rights of a namespace only.
	Pools *ledger.Ledger
	// Nodes contains all nodes; nil if they cannot be read. Key: the name.
	Nodes map[string]*corev1.Node
	// NotRead names the objects that could not be read, each with the reason, such as "CiliumNodes (forbidden)".
	NotRead []string
	// Kinds are the configured kinds of workloads. The zero value means that they are unknown: Explain then assumes that
	// StatefulSets are the only kind of workload whose pods have fixed addresses, as by default.
	Kinds identity.Kinds
	// Controllers returns the controllers of ReplicaSets; nil if they are unknown: Explain then ignores Kinds and makes the same
	// assumption as for unknown Kinds.
	Controllers identity.Controllers
	// Events are the events of the pod, its FixedIP and its workload.
	Events []corev1.Event
	// Budgets are the PodDisruptionBudgets of the namespace.
	Budgets []policyv1.PodDisruptionBudget
	// Volumes are the persistent volumes of the pod.
	Volumes []Volume
	// Endpoint is the metadata of the CiliumEndpoint with the pod's name.
	Endpoint *metav1.ObjectMeta
	// Schedulers are the names of the scheduler's profiles: the schedulerName of the pods that it places. There is at least
	// one.
	Schedulers []string
	// Lease is the Lease of the controllers, and SchedulerLease that of the schedulers; nil if it cannot be read.
	Lease, SchedulerLease *coordinationv1.Lease
	Now                   time.Time
}

// Fact is one line about the observed state: What names the subject, such as Pod or Node, and Is describes its state.
type Fact struct {
	What string `json:"what"`
	Is   string `json:"is"`
}

// Finding is a conclusion from the facts.
type Finding struct {
	// Wrong is true for problems.
	Wrong bool   `json:"wrong"`
	Text  string `json:"text"`
	// Help is advice on how to solve the problem or release the address; empty if there is none.
	Help string `json:"help,omitempty"`
}

// Report is the result of Explain, Address, Reserve and MoveSubnet, and a part of the results of Drain and Move. The only
// fact that Drain, Reserve and Move report is which objects could not be read. MoveSubnet reports no facts.
type Report struct {
	Facts    []Fact    `json:"facts,omitempty"`
	Findings []Finding `json:"findings"`
	// Waits is true if the pod exists, has not ended, and has no node or no IP yet. In the result of Drain, it is true if a
	// pod would wait for the node after its eviction.
	Waits bool `json:"waits,omitempty"`
	// History are the events that concern an address, oldest first.
	History []HistoryEvent `json:"history,omitempty"`
}

// HistoryEvent is an event that concerns an address.
type HistoryEvent struct {
	At time.Time `json:"at"`
	// Object is the object of the event, such as "Pod db/web-0".
	Object  string `json:"object"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// HasProblem reports whether a finding is wrong or Waits is true.
func (r Report) HasProblem() bool {
	return r.Waits || slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Wrong })
}

func (r *Report) fact(what, is string, args ...any) {
	r.Facts = append(r.Facts, Fact{what, fmt.Sprintf(is, args...)})
}

func (r *Report) fine(text string, args ...any) {
	r.Findings = append(r.Findings, Finding{Text: fmt.Sprintf(text, args...)})
}

// fineWithHelp adds a finding that is no problem, with advice on how to release the address.
func (r *Report) fineWithHelp(help, text string) {
	r.Findings = append(r.Findings, Finding{Text: text, Help: help})
}

func (r *Report) wrong(help, text string, args ...any) {
	r.Findings = append(r.Findings, Finding{Wrong: true, Text: fmt.Sprintf(text, args...), Help: help})
}

// Explain reports where the address of a pod is, and why the pod waits or why its address is still reserved.
func Explain(in Inputs) Report {
	var r Report
	e := explanation{Inputs: in, Report: &r, unpooled: in.Pools == nil}
	if e.unpooled {
		e.Pools = ledger.New()
	}
	e.held = e.Pools.Held(pool.OwnerKey(in.Namespace, in.Name))
	e.claims = slices.DeleteFunc(slices.Clone(e.held), func(h ledger.NodeAddresses) bool { return e.Pools.EntryOf(h).IsUnreserved() })
	e.findReserved()
	e.facts()
	switch {
	case in.Pod == nil && in.Record == nil && e.unpooled:
		e.workload()
		r.wrong("check the name and the namespace (-n)", "Pod %s/%s does not exist, and no FixedIP names it; the pools are unknown", in.Namespace, in.Name)
	case in.Pod == nil && in.Record == nil && len(e.held) == 0:
		e.workload()
		r.wrong("check the name and the namespace (-n)", "Pod %s/%s does not exist, and no FixedIP and no owned pool entry names it", in.Namespace, in.Name)
	case in.Pod == nil:
		e.workload()
		e.withoutPod()
	default:
		e.pod()
	}
	e.conditions()
	e.endpoint()
	e.leader()
	return r
}

// explanation builds one report.
type explanation struct {
	Inputs
	*Report
	// unpooled is true if the pools cannot be read. Pools is empty then.
	unpooled bool
	// held contains the addresses of all owned entries of the pod. claims is held without the elements whose entries are for a
	// pod without a fixed address on a strict node.
	held, claims []ledger.NodeAddresses
	// reserved are the addresses that are reserved for the pod: those of one element of claims or, if there is none, those
	// of the FixedIP.
	reserved []netip.Addr
	// owner is the node whose pool has the reserved addresses or, if no pool has them, their home node; empty if there is no
	// such node. If the pools cannot be read, it is the node that the FixedIP names.
	owner string
}

// findReserved sets reserved and owner. Pool entries take precedence over the FixedIP, as in the scheduler. If several
// pools have entries, those of the pod's own node come first, because its agent obeys them, unless the FixedIP names
// other addresses. The entries of the node that the FixedIP names come second.
func (e *explanation) findReserved() {
	weight := func(h ledger.NodeAddresses) int {
		switch {
		case e.Pod != nil && h.Node == e.Pod.Spec.NodeName && !e.recordsOther(h.Addrs):
			return 2
		case e.Record != nil && h.Node == e.Record.Spec.NodeName:
			return 1
		}
		return 0
	}
	if len(e.claims) > 0 {
		best := slices.MaxFunc(e.claims, func(x, y ledger.NodeAddresses) int { return weight(x) - weight(y) })
		e.owner, e.reserved = best.Node, best.Addrs
	}
	if len(e.claims) > 0 || e.Record == nil {
		return
	}
	if e.unpooled {
		e.owner = e.Record.Spec.NodeName
	}
	for _, ip := range e.Record.Spec.IPs {
		if a, err := address.Parse(ip); err == nil {
			e.reserved = append(e.reserved, a)
			if home, ok := e.Pools.Home(a); ok {
				e.owner = home
			}
		}
	}
}

// recordsOther reports whether the FixedIP lacks one of addrs although it names another address of the same family.
func (e *explanation) recordsOther(addrs []netip.Addr) bool {
	return e.Record != nil && len(address.Additional(addrs, e.Record.Spec.IPs)) > 0
}

// plural returns one if there is one address, and many otherwise.
func plural(addrs []netip.Addr, one, many string) string {
	if len(addrs) == 1 {
		return one
	}
	return many
}

func (e *explanation) facts() {
	if p := e.Pod; p != nil {
		is := string(p.Status.Phase)
		switch {
		case p.DeletionTimestamp != nil:
			// The deletion timestamp is the end of the grace period.
			requested := p.DeletionTimestamp.Add(-time.Duration(ptr.Deref(p.DeletionGracePeriodSeconds, 0)) * time.Second)
			is = "Terminating for " + e.since(requested)
		case p.Spec.NodeName == "":
			is = "not placed for " + e.since(p.CreationTimestamp.Time)
		}
		if p.Spec.NodeName != "" {
			is += " on node " + p.Spec.NodeName
		}
		if has := podutil.IPs(p); len(has) > 0 && !podutil.IsTerminal(p) {
			is += " with " + address.Join(has)
		}
		e.fact("Pod", "%s/%s, %s", p.Namespace, p.Name, is)
	} else {
		e.fact("Pod", "%s/%s does not exist", e.Namespace, e.Name)
	}
	if rec := e.Record; rec != nil {
		ips := cmp.Or(strings.Join(rec.Spec.IPs, ", "), "no address yet")
		state := cmp.Or(reservation.StateOf(rec), "not reconciled yet")
		slot := ""
		if rec.Spec.AssignedTo == v1alpha1.Slot {
			slot = fmt.Sprintf(" (slot %s)", rec.Name)
		}
		e.fact("FixedIP", "%s, %s, for %s %s%s", ips, state, rec.Spec.Owner.Kind, rec.Spec.Owner.Name, slot)
	} else {
		e.fact("FixedIP", "none")
	}
	for _, h := range e.held {
		e.fact("Pool", "node %s has %s for %s", h.Node, plural(h.Addrs, "an entry", "entries"), address.Join(h.Addrs))
	}
	if len(e.held) == 0 && !e.unpooled {
		e.fact("Pool", "no node has an owned entry for the pod")
	}
	switch {
	case e.owner != "" && e.Nodes == nil && e.unpooled:
		e.fact("Node", "%s", e.owner)
	case e.owner != "":
		e.fact("Node", "%s: %s", e.owner, e.nodeFact(e.owner))
	}
	if len(e.NotRead) > 0 {
		e.fact("Not read", "%s", strings.Join(e.NotRead, ", "))
	}
}

// nodeFact describes the state of a node and the free addresses of its subnets.
func (e *explanation) nodeFact(name string) string {
	var parts []string
	if e.Nodes != nil {
		parts = append(parts, NodeState(e.Nodes[name]))
	}
	if e.unpooled {
		return strings.Join(parts, "; ")
	}
	if n, ok := e.Pools.Node(name); ok {
		for _, f := range address.Families {
			if n.HasFamily(f) {
				parts = append(parts, fmt.Sprintf("free %s addresses: %d", f, e.Pools.Available(name, f)))
			}
		}
		parts = append(parts, "subnets: "+pool.JoinSubnets(n.PodCIDRs))
		if n.Unreported {
			parts = append(parts, "its agent has not reported yet which addresses are in use")
		}
	} else {
		parts = append(parts, "no CiliumNode")
	}
	return strings.Join(parts, "; ")
}

// NodeState describes the state of a node in a few words: "does not exist" for nil, and otherwise the result of
// nodeutil.State.
func NodeState(node *corev1.Node) string {
	if node == nil {
		return "does not exist"
	}
	return string(nodeutil.State(node))
}

// conditions reports the problems in the conditions of the FixedIP.
func (e *explanation) conditions() {
	if e.Record == nil {
		return
	}
	var problems []metav1.Condition
	for _, c := range e.Record.Status.Conditions {
		if c.Status == metav1.ConditionFalse {
			problems = append(problems, c)
		}
	}
	for _, c := range problems {
		// If Ready repeats the reason of another condition, only the other condition is reported.
		repeated := func(other metav1.Condition) bool { return other.Type != c.Type && other.Reason == c.Reason }
		if c.Type == v1alpha1.ConditionReady && slices.ContainsFunc(problems, repeated) {
			continue
		}
		e.wrong("", "Condition %s of FixedIP %s is %s (reason %s, last transition %s ago): %s", c.Type, e.Record.Name, c.Status, c.Reason, e.since(c.LastTransitionTime.Time), c.Message)
	}
}

// endpoint reports a CiliumEndpoint that still exists although its pod was deleted.
func (e *explanation) endpoint() {
	ofPrevious := func(o metav1.OwnerReference) bool { return o.Kind == "Pod" && o.UID != e.Pod.UID }
	if e.Endpoint == nil || e.Pod != nil && !slices.ContainsFunc(e.Endpoint.OwnerReferences, ofPrevious) {
		return
	}
	const unless = "unless --enable-cep-keeper is false"
	name := e.Namespace + "/" + e.Name
	help := fmt.Sprintf("if the controller does not do that, and the previous pod no longer runs: kubectl -n %s delete ciliumendpoint %s", e.Namespace, e.Name)
	switch {
	case e.Endpoint.DeletionTimestamp != nil:
		e.wrong(fmt.Sprintf("if the previous pod no longer runs: kubectl -n %s patch ciliumendpoint %s --type=merge -p '{\"metadata\":{\"finalizers\":[]}}'", e.Namespace, e.Name),
			"CiliumEndpoint %s of a previous pod has been in deletion for %s; the controller removes its finalizers after --cep-termination-timeout, %s", name, e.since(e.Endpoint.DeletionTimestamp.Time), unless)
	case e.Pod != nil && e.Pod.Spec.NodeName != "":
		e.wrong(help, "CiliumEndpoint %s belongs to a previous pod, so other nodes may not know the IPs of the pod; the controller corrects or deletes the CiliumEndpoint after --cep-grace-period at the latest, %s", name, unless)
	case e.Pod == nil:
		e.wrong(help, "CiliumEndpoint %s still exists, although its pod does not; the controller deletes the CiliumEndpoint after --cep-grace-period, %s", name, unless)
	}
}

// leader reports a problem if no controller holds the lease, or if the holder has not renewed the lease for leaderTimeout.
// For a pod that waits for our scheduler, it reports the same about the scheduler.
func (e *explanation) leader() {
	const ignore = "; ignore this if --enable-leader-election is false"
	e.lease(e.Lease, "fixedip-controller", "addresses are neither recorded nor released", "check the pods of fixedip-controller"+ignore)
	if e.Pod != nil && e.Pod.Spec.NodeName == "" && e.placedByUs() {
		e.lease(e.SchedulerLease, "fixedip-scheduler", "no pod is placed", "check the pods of fixedip-scheduler; ignore this if leaderElection.leaderElect is false in its configuration")
	}
}

// lease reports a problem if the Lease l of a program has no holder, or if its holder has not renewed it for leaderTimeout.
// effect is the consequence, for the message. It reports nothing if l is nil or was never renewed.
func (e *explanation) lease(l *coordinationv1.Lease, program, effect, help string) {
	if l == nil || l.Spec.RenewTime == nil {
		return
	}
	holder, renewed := ptr.Deref(l.Spec.HolderIdentity, ""), l.Spec.RenewTime.Time
	name := l.Namespace + "/" + l.Name
	switch {
	case holder == "":
		e.wrong(help, "No %s holds Lease %s: %s", program, name, effect)
	case e.Now.Sub(renewed) > leaderTimeout:
		e.wrong(help, "%s %s holds Lease %s and has not renewed it for %s: %s", program, holder, name, e.since(renewed), effect)
	}
}

func (e *explanation) since(at time.Time) string { return duration.HumanDuration(e.Now.Sub(at)) }
