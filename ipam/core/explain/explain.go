// Package explain says in words where the address of a pod is, why the pod waits, or why an address is
// still kept, and what would help.
//
// It is pure: it is given the objects as somebody read them. It may not read any itself, and decides
// nothing: what it says is what the scheduler and the controller will do, or what keeps them from it.
package explain

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
)

// schedulerName is what a pod names to be placed by the product.
const schedulerName = "fixedip-scheduler"

// leaderSilence is how old the word of a leader may be. Its lease lasts 15 s by default.
const leaderSilence = time.Minute

// Things are all objects that concern one pod, as they were read; nil where there is none.
type Things struct {
	Namespace, Name string
	Pod             *corev1.Pod
	Record          *v1alpha1.FixedIP
	// Workload is the one that the pod or the record names, of whatever kind.
	Workload *identity.Workload
	// Unread says why it is not known whether there is a Workload; empty where it is known.
	Unread string
	// Pools has the pools of all nodes.
	Pools *ledger.Ledger
	// Nodes are all nodes. Key: the name.
	Nodes map[string]*corev1.Node
	// Endpoint is the CiliumEndpoint of the pod's name.
	Endpoint *Endpoint
	// Leader is who leads the controllers; nil where that is not known.
	Leader *Leader
	Now    time.Time
}

// Endpoint is a CiliumEndpoint.
type Endpoint struct {
	// PodUID is the pod that it belongs to; empty where it names none.
	PodUID types.UID
	// Deleted is when its deletion was asked for; nil: it was not.
	Deleted *metav1.Time
}

// Leader is the holder of the controllers' Lease.
type Leader struct {
	Holder  string
	Renewed time.Time
}

// Fact is one line of what there is.
type Fact struct{ What, Is string }

// Finding is what follows from the facts.
type Finding struct {
	// Wrong tells a problem from what is as it should be.
	Wrong bool
	Text  string
	// Help is what a person can do; empty: nothing needs to be done.
	Help string
}

// Report is the answer.
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

// Explain says what is known of a pod.
func Explain(t Things) Report {
	var r Report
	e := explanation{Things: t, Report: &r, held: t.Pools.Held(pool.OwnerKey(t.Namespace, t.Name))}
	e.findReserved()
	e.facts()
	switch {
	case t.Pod == nil && t.Record == nil && len(e.held) == 0:
		r.wrong("", "There is no pod %s/%s, no FixedIP of its name, and no pool has an entry for it", t.Namespace, t.Name)
	case t.Pod == nil:
		e.kept()
	default:
		e.pod()
	}
	e.conditions()
	e.endpoint()
	e.leader()
	return r
}

// explanation is the work on one report.
type explanation struct {
	Things
	*Report
	held []ledger.Holding
	// reserved are the addresses of the identity, and owner is the node that has them. owner is empty
	// where no node does.
	reserved []netip.Addr
	owner    string
}

// findReserved goes by the pools first, as the scheduler does.
func (e *explanation) findReserved() {
	if len(e.held) > 0 {
		h := e.held[0]
		for _, other := range e.held {
			if e.Record != nil && other.Node == e.Record.Spec.NodeName {
				h = other
			}
		}
		e.owner, e.reserved = h.Node, h.Addrs
		return
	}
	if e.Record == nil {
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
		ips := "no address yet"
		if len(rec.Spec.IPs) > 0 {
			ips = strings.Join(rec.Spec.IPs, ", ")
		}
		phase := string(rec.Status.Phase)
		if phase == "" {
			phase = "not looked at yet"
		}
		e.fact("FixedIP", "%s, %s, for %s %s", ips, phase, rec.Spec.Owner.Kind, rec.Spec.Owner.Name)
	} else {
		e.fact("FixedIP", "none")
	}
	for _, h := range e.held {
		e.fact("Pool", "node %s gives it %s", h.Node, address.Join(h.Addrs))
	}
	if len(e.held) == 0 {
		e.fact("Pool", "no node has an entry for it")
	}
	if e.owner != "" {
		e.fact("Node", "%s: %s", e.owner, e.nodeFact(e.owner))
	}
}

// nodeFact is the state of a node and the room in its subnets.
func (e *explanation) nodeFact(name string) string {
	parts := []string{NodeState(e.Nodes[name])}
	if n, ok := e.Pools.Node(name); ok {
		for _, f := range address.Families {
			if n.HasFamily(f) {
				parts = append(parts, fmt.Sprintf("%d %s addresses to choose from", e.Pools.Room(name, f), f))
			}
		}
		parts = append(parts, "subnets "+strings.Join(n.PodCIDRs, ", "))
	} else {
		parts = append(parts, "no CiliumNode")
	}
	return strings.Join(parts, "; ")
}

// NodeState is the state of a node in few words.
func NodeState(node *corev1.Node) string {
	switch {
	case node == nil:
		return "does not exist"
	case !nodeutil.IsReady(node):
		return "not ready"
	case node.Spec.Unschedulable:
		return "cordoned"
	}
	return "ready"
}

// conditions are what the controller found out of order with the record.
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
			e.wrong("", "fixedip-controller said %s ago: %s (%s)", e.since(c.LastTransitionTime.Time), c.Message, c.Reason)
		}
	}
}

// endpoint tells of a CiliumEndpoint that outlived its pod.
func (e *explanation) endpoint() {
	if e.Endpoint == nil || e.Pod != nil && (e.Endpoint.PodUID == "" || e.Endpoint.PodUID == e.Pod.UID) {
		return
	}
	help := fmt.Sprintf("if the pod is gone for good: kubectl -n %s delete ciliumendpoint %s", e.Namespace, e.Name)
	switch {
	case e.Endpoint.Deleted != nil:
		e.wrong(fmt.Sprintf("kubectl -n %s patch ciliumendpoint %s --type=merge -p '{\"metadata\":{\"finalizers\":[]}}'", e.Namespace, e.Name),
			"The CiliumEndpoint of a former pod is stuck: its deletion was asked for %s ago", e.since(e.Endpoint.Deleted.Time))
	case e.Pod != nil && e.Pod.Spec.NodeName != "":
		e.wrong(help, "The CiliumEndpoint of its name belongs to a former pod; an agent does not take over one that another made")
	case e.Pod == nil:
		e.wrong(help, "There still is a CiliumEndpoint of its name")
	}
}

// leader tells that nobody does the controller's work.
func (e *explanation) leader() {
	switch {
	case e.Leader == nil:
	case e.Leader.Holder == "":
		e.wrong("look at the pods of fixedip-controller", "No fixedip-controller leads: nothing is recorded or given back")
	case e.Now.Sub(e.Leader.Renewed) > leaderSilence:
		e.wrong("look at the pods of fixedip-controller", "The leading fixedip-controller (%s) has been silent for %s: nothing is recorded or given back", e.Leader.Holder, e.since(e.Leader.Renewed))
	}
}

func (e *explanation) since(at time.Time) string { return duration.HumanDuration(e.Now.Sub(at)) }
