// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/duration"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
)

// AddressInputs are the inputs of Address.
type AddressInputs struct {
	Addr netip.Addr
	// Pools are the pools of all nodes, sorted by name; nil if they cannot be read.
	Pools   []pool.NodePool
	Records []v1alpha1.FixedIP
	// Pods are the pods of all nodes. Address ignores those that do not have the address.
	Pods []corev1.Pod
	// Endpoints contains the addresses of the CiliumEndpoints. Key: the CiliumEndpoint, "namespace/name".
	Endpoints map[string][]netip.Addr
	// Events are the events of all pods, FixedIPs and nodes. Address ignores those that do not mention the address.
	Events []corev1.Event
	// NotRead names the objects that could not be read, each with the reason, such as "CiliumNodes (forbidden)".
	NotRead []string
	Now     time.Time
}

// complete reports whether every object that may have the address was read.
func (in AddressInputs) complete() bool { return len(in.NotRead) == 0 }

// Address reports which objects have an address, and since when: the node whose subnet contains the address, its pool
// entries, the FixedIPs that reserve it, the pods that run with it, the CiliumEndpoints that have it, and the owners for which
// the agents report it as used. A finding reports a conflict about the address, or that no pod has it.
func Address(in AddressInputs) Report {
	var r Report
	r.fact("Address", "%s", in.Addr)
	var homes, used []string
	var offered bool
	for _, n := range in.Pools {
		if i := slices.IndexFunc(n.Subnets, func(s netip.Prefix) bool { return s.Contains(in.Addr) }); i >= 0 {
			homes = append(homes, fmt.Sprintf("%s of node %s", n.Subnets[i], n.Name))
		}
		if e, ok := n.Entries[in.Addr]; ok {
			r.fact("Entry", "node %s: %s", n.Name, entryText(e, in.Now))
			offered = offered || e.Kind == pool.Dynamic
		}
		if user, ok := n.Used[in.Addr]; ok {
			used = append(used, fmt.Sprintf("node %s: used by %s", n.Name, cmp.Or(user, "an unknown owner")))
		}
	}
	if in.Pools != nil {
		r.fact("Subnet", "%s", cmp.Or(strings.Join(homes, ", "), "none"))
	}
	var reserved int
	for i := range in.Records {
		record := &in.Records[i]
		if !slices.Contains(address.ParseAll(record.Spec.IPs), in.Addr) {
			continue
		}
		reserved++
		state := ""
		if c := meta.FindStatusCondition(record.Status.Conditions, v1alpha1.ConditionReady); c != nil {
			state = ", " + c.Reason
		}
		r.fact("FixedIP", "%s/%s for pod %s, created %s ago%s", record.Namespace, record.Name, record.Spec.PodName, duration.HumanDuration(in.Now.Sub(record.CreationTimestamp.Time)), state)
	}
	var running, endpoints []string
	for i := range in.Pods {
		pod := &in.Pods[i]
		if !podutil.HoldsIPs(pod) || !podutil.RunsWith(pod, in.Addr) {
			continue
		}
		name, since := pod.Namespace+"/"+pod.Name, ""
		if pod.Status.StartTime != nil {
			since = fmt.Sprintf(", started %s ago", duration.HumanDuration(in.Now.Sub(pod.Status.StartTime.Time)))
		}
		running = append(running, name)
		r.fact("Pod", "%s on node %s%s", name, pod.Spec.NodeName, since)
	}
	for _, key := range slices.Sorted(maps.Keys(in.Endpoints)) {
		if slices.Contains(in.Endpoints[key], in.Addr) {
			r.fact("CiliumEndpoint", "%s", key)
			endpoints = append(endpoints, key)
		}
	}
	for _, u := range used {
		r.fact("Agent", "%s", u)
	}
	if !in.complete() {
		r.fact("Not read", "%s", strings.Join(in.NotRead, ", "))
	}
	r.History = history(in)
	switch {
	case len(running) > 1:
		r.wrong("delete the pods for which no FixedIP reserves the address", "%d pods run with %s: %s", len(running), in.Addr, strings.Join(running, ", "))
	case reserved > 1:
		r.wrong("delete the FixedIPs whose pods do not run with the address", "%d FixedIPs reserve %s", reserved, in.Addr)
	case len(homes) > 1:
		r.wrong(pool.OverlapHelp, "%s is in the subnets of %d nodes", in.Addr, len(homes))
	case len(endpoints) > 1:
		r.wrong("delete the CiliumEndpoints whose pods do not run with the address; their agents create them again", "%d CiliumEndpoints have %s: %s", len(endpoints), in.Addr, strings.Join(endpoints, ", "))
	case reserved == 0 && len(running) == 0 && len(used) == 0 && !in.complete():
		r.fine("No object that was read has %s", in.Addr)
	case reserved == 0 && len(running) == 0 && len(used) == 0 && offered:
		r.fine("No pod has %s; the agent may give it to any pod of its node", in.Addr)
	case reserved == 0 && len(running) == 0 && len(used) == 0:
		r.fine("No pod has %s, and no FixedIP reserves it", in.Addr)
	}
	return r
}

// history returns the events that mention the address, oldest first.
func history(in AddressInputs) (found []HistoryEvent) {
	for i := range in.Events {
		ev := &in.Events[i]
		if !mentions(ev.Message, in.Addr.String()) {
			continue
		}
		of := ev.InvolvedObject.Kind + " " + strings.TrimPrefix(ev.InvolvedObject.Namespace+"/"+ev.InvolvedObject.Name, "/")
		found = append(found, HistoryEvent{At: eventTime(*ev).UTC(), Object: of, Reason: ev.Reason, Message: ev.Message})
	}
	slices.SortStableFunc(found, func(a, b HistoryEvent) int { return a.At.Compare(b.At) })
	return found
}

// entryText describes a pool entry.
func entryText(e pool.Entry, now time.Time) string {
	switch e.Kind {
	case pool.Dynamic:
		return "dynamic: for any pod of the node"
	case pool.Cooldown:
		text := "cooldown"
		if e.IsWithdrawn() {
			text = "withdrawal of a surplus address without a cooldown"
		}
		if e.Pod() != "" {
			text += " after the release from pod " + e.Pod()
		}
		if e.Since() != 0 {
			text += fmt.Sprintf(", begun %s ago", duration.HumanDuration(now.Sub(e.SinceTime())))
		}
		return text
	case pool.Moved:
		text := "moved: the pool of node %s carries the address of pod %s, or is about to"
		if e.Leaving {
			text = "moved: the pool of node %s carries the address of pod %s, which is about to leave that pool"
		}
		return fmt.Sprintf(text, cmp.Or(e.Node(), "(unknown)"), cmp.Or(e.Pod(), "(unknown)"))
	case pool.MoveTarget:
		return fmt.Sprintf("move-target: the address of pod %s is about to arrive from another node", cmp.Or(e.Pod(), "(unknown)"))
	case pool.NodeOwned:
		return "node-owned: " + e.Owner()
	case pool.Foreign:
		return fmt.Sprintf("foreign: owner %q, written by a person or another program; fixedip never changes it", e.Owner())
	}
	text := "owned by " + e.Owner()
	if kind, name, ok := e.WorkloadRef(); ok && !e.IsUnreserved() {
		text += fmt.Sprintf(" (%s %s)", kind, name)
	}
	return text
}
