// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// AdoptionConflict returns the reason why the IPs that a pod runs with on a node cannot become its fixed addresses, whatever
// the pool of the node contains; empty if there is no such reason.
func AdoptionConflict(l *ledger.Ledger, id identity.Identity, node string, ips []netip.Addr) string {
	if other, overlaps := l.OverlapsWith(node); overlaps {
		return fmt.Sprintf("the subnets of node %s overlap those of node %s", node, other)
	}
	for _, a := range ips {
		if owner, reserved := l.ReservedFor(a); reserved && owner != id.Key() {
			named := pool.RedactOwner(owner, id.Key())
			if named == owner {
				named = "pod " + owner
			}
			return fmt.Sprintf("a FixedIP reserves IP %s for %s", a, named)
		}
	}
	return ""
}

// AdoptionInputs are the inputs of PreviewAdoption.
type AdoptionInputs struct {
	Adoption identity.Adoption
	Kinds    identity.Kinds
	// Pods are the pods for which PreviewAdoption returns an outcome. AllPods are all pods that may run with an IP of one of
	// Pods.
	Pods, AllPods []corev1.Pod
	FixedIPs      []v1alpha1.FixedIP
	// Pools contains the pools of all nodes and the reservations of all FixedIPs.
	Pools *ledger.Ledger
}

// AdoptionOutcome is the effect of an adoption on a pod.
type AdoptionOutcome string

const (
	// Adopted means that the IPs that the pod runs with become its fixed addresses, without a restart.
	Adopted AdoptionOutcome = "Adopted"
	// AlreadyFixed means that the pod has a FixedIP with addresses that is not being deleted, that the pod does not run with
	// another IP of the family of one of these addresses, and that the pod does not opt out.
	AlreadyFixed AdoptionOutcome = "AlreadyFixed"
	// AdoptedLater means that the pod is selected and does not run with an IP that can be adopted yet.
	AdoptedLater AdoptionOutcome = "AdoptedLater"
	// NotSelected means that the adoption does not concern the pod.
	NotSelected AdoptionOutcome = "NotSelected"
	// AdoptionBlocked means that the pod is selected, but that its IPs cannot become its fixed addresses, or that its
	// AnnotationEnabled is invalid.
	AdoptionBlocked AdoptionOutcome = "Blocked"
)

// AdoptedPod is the outcome for one pod.
type AdoptedPod struct {
	// Pod is "namespace/name".
	Pod     string          `json:"pod"`
	Node    string          `json:"node,omitempty"`
	IPs     []string        `json:"ips,omitempty"`
	Outcome AdoptionOutcome `json:"outcome"`
	// Reason is the reason why the pod is not adopted, or the FixedIP of the pod for AlreadyFixed; empty for Adopted.
	Reason string `json:"reason,omitempty"`
}

// PreviewAdoption returns the outcome that the adoption in.Adoption would have for each of in.Pods, sorted by pod. It uses
// the same functions as the controller, but assumes that each pod has the IPs in its status, which only the agent of the
// node can confirm. It ignores the failover policy Reassign, with which the controller may replace the FixedIP of a pod that
// runs with other IPs.
func PreviewAdoption(in AdoptionInputs) []AdoptedPod {
	// users contains the pods that run with each IP. Key: the IP. Value: the pods, "namespace/name".
	users := map[netip.Addr][]string{}
	for i := range in.AllPods {
		if pod := &in.AllPods[i]; podutil.HoldsIPs(pod) {
			for _, a := range podutil.IPs(pod) {
				users[a] = append(users[a], pool.OwnerKey(pod.Namespace, pod.Name))
			}
		}
	}
	records := map[string]*v1alpha1.FixedIP{}
	for i := range in.FixedIPs {
		records[pool.OwnerKey(in.FixedIPs[i].Namespace, in.FixedIPs[i].Spec.PodName)] = &in.FixedIPs[i]
	}
	var found []AdoptedPod
	for i := range in.Pods {
		pod := &in.Pods[i]
		key := pool.OwnerKey(pod.Namespace, pod.Name)
		p := AdoptedPod{Pod: key, Node: pod.Spec.NodeName, IPs: address.Strings(podutil.IPs(pod))}
		p.Outcome, p.Reason = in.outcome(pod, records[key], users)
		found = append(found, p)
	}
	slices.SortFunc(found, func(a, b AdoptedPod) int { return strings.Compare(a.Pod, b.Pod) })
	return found
}

func (in AdoptionInputs) outcome(pod *corev1.Pod, record *v1alpha1.FixedIP, users map[netip.Addr][]string) (AdoptionOutcome, string) {
	if record != nil && !identity.OptsOut(pod) && record.DeletionTimestamp == nil && len(record.Spec.IPs) > 0 && !slices.ContainsFunc(address.ParseAll(record.Spec.IPs), func(a netip.Addr) bool { return podutil.RunsWithOther(pod, a) }) {
		return AlreadyFixed, "FixedIP " + record.Name
	}
	if _, ours := in.Adoption.Placed(pod, in.Kinds, identity.NoControllers); ours {
		return NotSelected, fmt.Sprintf("its scheduler %s gives it a fixed address", pod.Spec.SchedulerName)
	}
	id, wanted, err := in.Adoption.Wants(pod, in.Kinds)
	switch {
	case err != nil:
		return AdoptionBlocked, err.Error()
	case !wanted:
		return NotSelected, in.whyNot(pod)
	}
	switch {
	case podutil.IsTerminal(pod):
		return NotSelected, "the pod has ended"
	case pod.DeletionTimestamp != nil:
		return NotSelected, "the pod is being deleted"
	}
	ips := AdoptableIPs(pod, in.Adoption.IPv4Only)
	if len(ips) == 0 {
		if has := podutil.IPs(pod); podutil.Runs(pod) && len(has) > 0 {
			return AdoptionBlocked, fmt.Sprintf("the pod runs with %s, and the configuration has IPv4 addresses only", address.Join(has))
		}
		return AdoptedLater, "the pod does not run with an IP that can be adopted yet; its phase is " + string(pod.Status.Phase)
	}
	var reserved []reservation.Address
	if record != nil {
		reserved = reservation.Of(record)
	}
	if _, missing := MissingReserved(in.Pools.Held(id.Key()), reserved, ips); len(missing) > 0 {
		return AdoptionBlocked, fmt.Sprintf("the reservation of the pod has %s, but the pod runs with %s", address.Join(missing), address.Join(ips))
	}
	for _, a := range ips {
		for _, other := range users[a] {
			if other != id.Key() {
				return AdoptionBlocked, fmt.Sprintf("pod %s runs with IP %s too", other, a)
			}
		}
	}
	if why := AdoptionConflict(in.Pools, id, pod.Spec.NodeName, ips); why != "" {
		return AdoptionBlocked, why
	}
	n, ok := in.Pools.Node(pod.Spec.NodeName)
	if !ok {
		return AdoptionBlocked, fmt.Sprintf("node %s has no CiliumNode", pod.Spec.NodeName)
	}
	if why := n.OtherAddressOf(id.Key(), ips); why != nil {
		return AdoptionBlocked, why.Error()
	}
	if why := AdoptionBlocker(n, id, ips, true); why != nil {
		return AdoptionBlocked, why.Error()
	}
	return Adopted, ""
}

// whyNot returns the reason why an adoption does not select a pod.
func (in AdoptionInputs) whyNot(pod *corev1.Pod) string {
	owner := metav1.GetControllerOfNoCopy(pod)
	switch {
	case pod.Spec.HostNetwork:
		return "the pod uses the host network"
	case identity.OptsOut(pod):
		return "the annotation " + identity.AnnotationEnabled + " excludes it"
	case in.Adoption.Excludes(pod):
		return "its label " + identity.LabelDBBranch + " excludes it"
	case owner != nil && identity.OwnerFrom(owner).GroupKind() == identity.ReplicaSets:
		return "pods of a ReplicaSet are never adopted: they have no stable names, and only fixedip-scheduler reuses slots"
	case owner != nil:
		gk := identity.OwnerFrom(owner).GroupKind()
		kind, known := in.Kinds.Of(gk)
		switch {
		case !identity.Configurable(gk):
			return fmt.Sprintf("pods of a %s cannot have fixed addresses", owner.Kind)
		case !known:
			return fmt.Sprintf("pods of a %s have no fixed addresses, unless the configuration names the kind", owner.Kind)
		case kind.Identity == identity.Slot:
			return fmt.Sprintf("pods of a %s are never adopted: they have slots, and only fixedip-scheduler reuses slots", owner.Kind)
		}
	}
	return "neither the selector nor the annotation " + identity.AnnotationEnabled + " selects it"
}
