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
)

// leaderTimeout is the age of a lease renewal after which the leader counts as gone. The lease lasts 15 s by default.
const leaderTimeout = time.Minute

// Inputs contains all objects that concern one pod. A pointer is nil if the object does not exist.
type Inputs struct {
	Namespace, Name string
	Pod             *corev1.Pod
	Record          *v1alpha1.FixedIP
	// Workload is the workload, of any kind, that the pod or the FixedIP names.
	Workload *identity.Workload
	// Unread is the reason why it is unknown whether the workload exists; empty if it is known.
	Unread string
	// Pools contains the pools of all nodes.
	Pools *ledger.Ledger
	// Nodes contains all nodes. Key: the name.
	Nodes map[string]*corev1.Node
	// Volumes are the persistent volumes of the pod.
	Volumes []Volume
	// Endpoint is the metadata of the CiliumEndpoint with the pod's name.
	Endpoint *metav1.ObjectMeta
	// Schedulers are the names of the scheduler's profiles: the schedulerName of the pods that it places. There is at least
	// one.
	Schedulers []string
	// Lease is the Lease of the controllers; nil if it cannot be read.
	Lease *coordinationv1.Lease
	Now   time.Time
}

// Fact is one observed fact.
type Fact struct{ What, Is string }

// Finding is a conclusion from the facts.
type Finding struct {
	// Wrong is true for problems.
	Wrong bool
	Text  string
	// Help is advice on how to solve the problem or release the address; empty if there is none.
	Help string
}

// Report is the result of Explain. Drain returns one with Findings only.
type Report struct {
	Facts    []Fact
	Findings []Finding
}

func (r *Report) fact(what, is string, args ...any) {
	r.Facts = append(r.Facts, Fact{what, fmt.Sprintf(is, args...)})
}

func (r *Report) fine(text string, args ...any) {
	r.Findings = append(r.Findings, Finding{Text: fmt.Sprintf(text, args...)})
}

func (r *Report) wrong(help, text string, args ...any) {
	r.Findings = append(r.Findings, Finding{Wrong: true, Text: fmt.Sprintf(text, args...), Help: help})
}

// Explain reports where the address of a pod is, and why the pod waits or why its address is still reserved.
func Explain(in Inputs) Report {
	var r Report
	e := explanation{Inputs: in, Report: &r, held: in.Pools.Held(pool.OwnerKey(in.Namespace, in.Name))}
	e.findReserved()
	e.facts()
	switch {
	case in.Pod == nil && in.Record == nil && len(e.held) == 0:
		r.wrong("", "Pod %s/%s does not exist, and neither a FixedIP nor a pool entry has its name", in.Namespace, in.Name)
	case in.Pod == nil:
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
	held []ledger.NodeAddresses
	// reserved are the addresses of the identity.
	reserved []netip.Addr
	// owner is the node whose pool has the reserved addresses or, if no pool has them, their home node; empty if there is none.
	owner string
}

// findReserved sets reserved and owner. Pool entries take precedence over the FixedIP, as in the scheduler.
func (e *explanation) findReserved() {
	for i, h := range e.held {
		if i == 0 || e.Record != nil && h.Node == e.Record.Spec.NodeName {
			e.owner, e.reserved = h.Node, h.Addrs
		}
	}
	if len(e.held) > 0 || e.Record == nil {
		return
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

func (e *explanation) facts() {
	if p := e.Pod; p != nil {
		is := string(p.Status.Phase)
		switch {
		case p.DeletionTimestamp != nil:
			is = "Terminating for " + e.since(p.DeletionTimestamp.Time)
		case p.Spec.NodeName == "":
			is = "not placed for " + e.since(p.CreationTimestamp.Time)
		}
		if p.Spec.NodeName != "" {
			is += " on node " + p.Spec.NodeName
		}
		if has := podutil.IPs(p); len(has) > 0 {
			is += " with " + address.Join(has)
		}
		e.fact("Pod", "%s/%s, %s", p.Namespace, p.Name, is)
	} else {
		e.fact("Pod", "%s/%s does not exist", e.Namespace, e.Name)
	}
	if rec := e.Record; rec != nil {
		ips := cmp.Or(strings.Join(rec.Spec.IPs, ", "), "no address yet")
		phase := cmp.Or(string(rec.Status.Phase), "not reconciled yet")
		e.fact("FixedIP", "%s, %s, for %s %s", ips, phase, rec.Spec.Owner.Kind, rec.Spec.Owner.Name)
	} else {
		e.fact("FixedIP", "none")
	}
	for _, h := range e.held {
		e.fact("Pool", "node %s has an entry for %s", h.Node, address.Join(h.Addrs))
	}
	if len(e.held) == 0 {
		e.fact("Pool", "no node has an entry")
	}
	if e.owner != "" {
		e.fact("Node", "%s: %s", e.owner, e.nodeFact(e.owner))
	}
}

// nodeFact describes the state of a node and the free addresses of its subnets.
func (e *explanation) nodeFact(name string) string {
	parts := []string{NodeState(e.Nodes[name])}
	if n, ok := e.Pools.Node(name); ok {
		for _, f := range address.Families {
			if n.HasFamily(f) {
				parts = append(parts, fmt.Sprintf("%d free %s addresses", e.Pools.Available(name, f), f))
			}
		}
		parts = append(parts, "subnets "+strings.Join(n.PodCIDRs, ", "))
		if n.Unreported {
			parts = append(parts, "its agent has not reported yet which addresses are in use")
		}
	} else {
		parts = append(parts, "no CiliumNode")
	}
	return strings.Join(parts, "; ")
}

// NodeState describes the state of a node in a few words.
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
	for _, c := range e.Record.Status.Conditions {
		bad := metav1.ConditionFalse
		if c.Type == v1alpha1.ConditionConflict || c.Type == v1alpha1.ConditionMismatch {
			bad = metav1.ConditionTrue
		}
		if c.Status == bad {
			e.wrong("", "fixedip-controller reported %s ago: %s (%s)", e.since(c.LastTransitionTime.Time), c.Message, c.Reason)
		}
	}
}

// endpoint reports a CiliumEndpoint that still exists although its pod was deleted.
func (e *explanation) endpoint() {
	ofPrevious := func(o metav1.OwnerReference) bool { return o.Kind == "Pod" && o.UID != e.Pod.UID }
	if e.Endpoint == nil || e.Pod != nil && !slices.ContainsFunc(e.Endpoint.OwnerReferences, ofPrevious) {
		return
	}
	help := fmt.Sprintf("if the pod no longer exists: kubectl -n %s delete ciliumendpoint %s", e.Namespace, e.Name)
	switch {
	case e.Endpoint.DeletionTimestamp != nil:
		e.wrong(fmt.Sprintf("kubectl -n %s patch ciliumendpoint %s --type=merge -p '{\"metadata\":{\"finalizers\":[]}}'", e.Namespace, e.Name),
			"The CiliumEndpoint of a previous pod has been in deletion for %s", e.since(e.Endpoint.DeletionTimestamp.Time))
	case e.Pod != nil && e.Pod.Spec.NodeName != "":
		e.wrong(help, "The CiliumEndpoint of this name belongs to a previous pod; an agent does not take over the CiliumEndpoint of another agent")
	case e.Pod == nil:
		e.wrong(help, "A CiliumEndpoint of this name still exists")
	}
}

// leader reports a problem if no controller holds the lease, or if the holder has not renewed the lease for leaderTimeout.
func (e *explanation) leader() {
	if e.Lease == nil || e.Lease.Spec.RenewTime == nil {
		return
	}
	holder, renewed := ptr.Deref(e.Lease.Spec.HolderIdentity, ""), e.Lease.Spec.RenewTime.Time
	switch {
	case holder == "":
		e.wrong("check the pods of fixedip-controller", "No fixedip-controller is the leader: addresses are neither recorded nor released")
	case e.Now.Sub(renewed) > leaderTimeout:
		e.wrong("check the pods of fixedip-controller", "The leading fixedip-controller (%s) has not renewed its lease for %s: addresses are neither recorded nor released", holder, e.since(renewed))
	}
}

func (e *explanation) since(at time.Time) string { return duration.HumanDuration(e.Now.Sub(at)) }
