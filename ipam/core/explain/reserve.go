// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
)

// ReserveInputs are the inputs of Reserve.
type ReserveInputs struct {
	// Owner is the pod that the addresses are reserved for, "namespace/name".
	Owner string
	Addrs []netip.Addr
	// Pools contains the pools of all nodes and the reservations of all FixedIPs; nil if the pools cannot be read.
	Pools *ledger.Ledger
	// Reservations contains the reservations of the FixedIPs that could be read. It may be the same ledger as Pools.
	Reservations *ledger.Ledger
	// Pods are the pods that could be read.
	Pods []corev1.Pod
	// NotRead names the objects that could not be read, each with the reason, such as "CiliumNodes (forbidden)".
	NotRead []string
}

// transient contains the reasons for which an address is only temporarily unavailable: the controller writes the pool entry for
// the FixedIP when the reason has ended.
var transient = []pool.Reason{pool.DynamicEntry, pool.CoolingDown, pool.NotReported, pool.Releasing, pool.ClaimInFlight, pool.SubnetNotFound, pool.SubnetOverlap, pool.Moving}

// Reserve reports whether a FixedIP can reserve addresses for a pod. Each Finding that is Wrong is a reason why the FixedIP
// cannot reserve them. The other findings name the pool that gets the entry of an address, or the reason why the reservation
// waits.
func Reserve(in ReserveInputs) Report {
	var r Report
	if len(in.NotRead) > 0 {
		r.fact("Not read", "%s", strings.Join(in.NotRead, ", "))
	}
	const other = "choose another address; kubectl fixedip ip shows the use of this one"
	for _, a := range in.Addrs {
		for i := range in.Pods {
			pod := &in.Pods[i]
			if key := pool.OwnerKey(pod.Namespace, pod.Name); key != in.Owner && podutil.HoldsIPs(pod) && podutil.RunsWith(pod, a) {
				r.wrong(other, "%s is used by %s", a, podText(key, in.Owner))
			}
		}
		if owner, reserved := in.Reservations.ReservedFor(a); reserved && owner != in.Owner {
			r.wrong(other, "A FixedIP reserves %s for %s", a, podText(owner, in.Owner))
			continue
		}
		if in.Pools == nil {
			continue
		}
		switch b := in.Pools.Blocker(in.Owner, a); {
		case b == nil:
			home, _ := in.Pools.Home(a)
			r.fine("The pool of node %s gets the entry of %s", home, a)
		case b.Reason == pool.DynamicEntry && in.usedByOther(b.Node, a):
			n, _ := in.Pools.Node(b.Node)
			used := pool.Blocker{Addr: a, Node: b.Node, Reason: pool.InUseByPod, Who: n.Used[a], Requester: in.Owner}
			r.wrong(other, "%s, as the agent reports", used.Error())
		case slices.Contains(transient, b.Reason), b.Reason == pool.InUseByPod && b.Who == in.Owner:
			r.fine("The reservation waits: %s", b.Message())
		default:
			r.wrong(other, "%s", b.Error())
		}
	}
	if in.Pools != nil && len(in.Addrs) > 1 {
		first, _ := in.Pools.Home(in.Addrs[0])
		second, _ := in.Pools.Home(in.Addrs[1])
		if first != "" && second != "" && first != second {
			r.wrong("choose addresses of one node", "%s belongs to node %s and %s to node %s: no pod can have both", in.Addrs[0], first, in.Addrs[1], second)
		}
	}
	return r
}

// podText returns the text that names a pod in a message to the users of another pod, requester. It does not show the name of
// a pod in another namespace.
func podText(pod, requester string) string {
	if shown := pool.RedactOwner(pod, requester); shown != pod {
		return shown
	}
	return "pod " + pod
}

// usedByOther reports whether the agent of a node reports an address as used by another owner.
func (in ReserveInputs) usedByOther(node string, a netip.Addr) bool {
	n, _ := in.Pools.Node(node)
	user, used := n.Used[a]
	return used && user != in.Owner
}

// ReleaseInputs are the inputs of Release.
type ReleaseInputs struct {
	Record *v1alpha1.FixedIP
	// Pod is the pod that the FixedIP names; nil if it does not exist.
	Pod *corev1.Pod
	// Workload is the workload that the FixedIP names; nil if it does not exist.
	Workload *identity.Workload
	// Unread is the reason why it is unknown whether the workload exists; empty if it is known.
	Unread string
	// RestartPod is true if the pod is deleted too, provided that it blocks the release.
	RestartPod bool
}

// Release returns the effects of deleting a FixedIP, as sentences, and whether the pod is deleted too. A pod blocks the
// release until it is deleted or runs without the addresses; the pod of a slot, until it is deleted or has ended (the rules
// "in use" and "slot in use" of package reclaim).
func Release(in ReleaseInputs) (effects []string, deletesPod bool) {
	add := func(text string, args ...any) { effects = append(effects, fmt.Sprintf(text, args...)) }
	f := in.Record
	ips := address.ParseAll(f.Spec.IPs)
	its := address.Join(ips)
	key := pool.OwnerKey(f.Namespace, f.Spec.PodName)
	slot, uses, blocks := f.Spec.AssignedTo == v1alpha1.Slot, false, false
	if in.Pod != nil && len(ips) > 0 {
		uses = podutil.HoldsIPs(in.Pod) && slices.ContainsFunc(ips, func(a netip.Addr) bool { return podutil.RunsWith(in.Pod, a) })
		blocks = slot && !podutil.IsTerminal(in.Pod) || !slot && in.Pod.Spec.NodeName != "" && !reclaim.RunsWithout(in.Pod, ips)
	}
	deletesPod = in.RestartPod && blocks
	switch {
	case f.DeletionTimestamp != nil:
		add("FixedIP %s is being deleted already.", f.Name)
	case len(ips) == 0:
		add("FixedIP %s names no address.", f.Name)
	}
	switch {
	case deletesPod:
		add("Pod %s is deleted. When it has stopped, %s %s released.", key, its, plural(ips, "is", "are"))
	case uses:
		add("Pod %s on node %s keeps %s and runs on. When the pod is deleted, %s %s released; until then the FixedIP is in deletion.", key, in.Pod.Spec.NodeName, its, its, plural(ips, "is", "are"))
	case blocks && slot:
		add("Pod %s has the slot. When the pod is deleted or has ended, %s %s released; until then the FixedIP is in deletion.", key, its, plural(ips, "is", "are"))
	case blocks:
		add("Pod %s on node %s is %s and does not use %s now. When the pod is deleted or runs with another address, %s %s released; until then the FixedIP is in deletion.", key, in.Pod.Spec.NodeName, in.Pod.Status.Phase, its, its, plural(ips, "is", "are"))
	case in.Pod != nil && in.Pod.Spec.NodeName == "" && len(ips) > 0:
		add("Pod %s has no node yet. It gets another address when %s %s released.", key, its, plural(ips, "is", "are"))
	case in.Pod != nil && len(ips) > 0:
		add("Pod %s does not run with %s. %s %s released.", key, its, its, plural(ips, "is", "are"))
	case len(ips) > 0:
		add("Pod %s does not exist. %s %s released, and available to other pods after the cooldown.", key, its, plural(ips, "is", "are"))
	}
	switch {
	case f.Spec.Owner.Kind == identity.PodKind && deletesPod:
		add("Pod %s is not created again, because it has no controller.", key)
	case in.Unread != "":
		add("Whether %s %s exists is unknown: %s.", f.Spec.Owner.Kind, f.Spec.Owner.Name, in.Unread)
	case in.Workload != nil && slot:
		add("%s %s has one slot fewer; its next pod without a slot gets another address.", f.Spec.Owner.Kind, f.Spec.Owner.Name)
	case in.Workload != nil && !in.Workload.OptsOut():
		add("%s %s exists: the next pod %s gets another address.", f.Spec.Owner.Kind, f.Spec.Owner.Name, f.Spec.PodName)
	}
	return effects, deletesPod
}
