// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"

	"k8s.io/apimachinery/pkg/api/meta"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// Row describes one pod name: the pod, its FixedIP and its pool entries, any of which may be missing.
type Row struct {
	// Pod is the name of the pod. UID, Node and Address (all addresses, separated by commas) are empty if there is no pod.
	Pod     string
	UID     string
	Node    string
	Address string
	// Running is true if the pod runs with addresses and is not being deleted.
	Running bool
	// State is the reason of the condition Ready of the FixedIP if that reason is Reserved, InUse or Releasing. It is empty if
	// there is no FixedIP, if the condition is not set yet, or if it has another reason.
	State string
	// Entries contains node/address of each pool entry that the pod owns, sorted.
	Entries []string
}

// State returns the rows of a namespace, sorted by pod: one for each pod name that a pod, FixedIP or entry has.
func (w *Witness) State(namespace string) []Row {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state(namespace)
}

// state returns the rows of State. It is called at every event, so it indexes FixedIPs and entries once instead of searching
// all of them for each row.
func (w *Witness) state(namespace string) []Row {
	keys := map[string]bool{}
	for k := range w.pods {
		keys[k] = true
	}
	// records contains the FixedIP of each pod. Key: namespace/name of the pod. A FixedIP with the name of the pod takes
	// precedence over a slot.
	records := map[string]*v1alpha1.FixedIP{}
	for _, r := range w.records {
		if key := holder(r); records[key] == nil || r.Spec.AssignedTo != v1alpha1.Slot {
			records[key] = r
		}
		keys[holder(r)] = true
	}
	// entries contains node/address of owned entries. Key: the owner.
	entries := map[string][]string{}
	for name, cn := range w.nodes {
		for ip, e := range cn.Spec.IPAM.Pool {
			if pod(e.Owner) {
				keys[e.Owner] = true
				entries[e.Owner] = append(entries[e.Owner], name+"/"+ip)
			}
		}
	}
	var rows []Row
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		name, ok := strings.CutPrefix(key, namespace+"/")
		if !ok {
			continue
		}
		slices.Sort(entries[key])
		row := Row{Pod: name, Entries: entries[key]}
		if p := w.pods[key]; p != nil {
			row.UID, row.Node, row.Address, row.Running = string(p.UID), p.Spec.NodeName, addresses(p), live(p)
		}
		if r := records[key]; r != nil {
			row.State = state(r)
		}
		rows = append(rows, row)
	}
	return rows
}

// state returns the value of Row.State for a FixedIP.
func state(r *v1alpha1.FixedIP) string {
	c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionReady)
	if c == nil || !slices.Contains([]string{v1alpha1.ReasonReserved, v1alpha1.ReasonInUse, v1alpha1.ReasonReleasing}, c.Reason) {
		return ""
	}
	return c.Reason
}

// Records returns the last seen versions of the FixedIPs of a namespace, sorted by name.
func (w *Witness) Records(namespace string) []*v1alpha1.FixedIP {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []*v1alpha1.FixedIP
	for _, key := range slices.Sorted(maps.Keys(w.records)) {
		if r := w.records[key]; r.Namespace == namespace {
			found = append(found, r)
		}
	}
	return found
}

// Pod returns the last seen version of a pod; nil if there is none.
func (w *Witness) Pod(namespace, name string) *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pods[namespace+"/"+name]
}

// Node returns the last seen version of a CiliumNode; nil if there is none.
func (w *Witness) Node(name string) *ciliumv2.CiliumNode {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nodes[name]
}

// Entries returns node/address of each pool entry that the pod owns, sorted.
func (w *Witness) Entries(namespace, name string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.entries(namespace + "/" + name)
}

// Owner returns the owner of a pool entry; ok is false if there is no such entry.
func (w *Witness) Owner(node, address string) (owner string, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	cn := w.nodes[node]
	if cn == nil {
		return "", false
	}
	e, ok := cn.Spec.IPAM.Pool[address]
	return e.Owner, ok
}

// Await waits until the condition holds for the rows of a namespace and returns the rows. If ctx ends first, the error
// contains the rows.
func (w *Witness) Await(ctx context.Context, namespace string, condition func([]Row) bool) ([]Row, error) {
	for {
		w.mu.Lock()
		rows, changed := w.state(namespace), w.changed
		w.mu.Unlock()
		if condition(rows) {
			return rows, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return rows, fmt.Errorf("%w; the current state is\n%s", context.Cause(ctx), Table(rows))
		}
	}
}

// Table formats rows as a table.
func Table(rows []Row) string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "POD\tNODE\tADDRESS\tRUNNING\tFIXEDIP\tPOOL ENTRY")
	for _, r := range rows {
		running := "no"
		if r.Running {
			running = "yes"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Pod, orDash(r.Node), orDash(r.Address), running, orDash(r.State), orDash(strings.Join(r.Entries, " ")))
	}
	t.Flush()
	return b.String()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Record returns the last seen version of a FixedIP; nil if there is none.
func (w *Witness) Record(namespace, name string) *v1alpha1.FixedIP {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.records[namespace+"/"+name]
}
