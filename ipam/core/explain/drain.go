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

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
)

// DrainInputs are the inputs of Drain.
type DrainInputs struct {
	// Node is the node that may be drained.
	Node string
	// Pods are the pods on the node.
	Pods []corev1.Pod
	// Records are all FixedIPs.
	Records []v1alpha1.FixedIP
	Budgets []policyv1.PodDisruptionBudget
	// Failover is the failover policy for FixedIPs without one of their own.
	Failover v1alpha1.Failover
	// MigrationAllowed is allowAddressMigration of the configuration; nil if it is unknown.
	MigrationAllowed *bool
	// Nodes contains all nodes; nil if they cannot be read. Key: the name.
	Nodes map[string]*corev1.Node
	// Pools contains the pools of all nodes; nil if they cannot be read.
	Pools *ledger.Ledger
	// Volumes contains the persistent volumes of the pods. Key: the pod, "namespace/name".
	Volumes map[string][]Volume
	// NotRead names the objects that could not be read, each with the reason, such as "CiliumNodes (forbidden)".
	NotRead []string
}

// DrainedPod is a pod with a fixed address on a node that may be drained.
type DrainedPod struct {
	// Pod is "namespace/name".
	Pod string   `json:"pod"`
	IPs []string `json:"ips"`
	// Policy is the failover policy, or "Slot" for the pod of a slot; empty if the pod has no controller.
	Policy string `json:"policy,omitempty"`
	// Waits is true if the replacement of the pod waits for the node.
	Waits bool `json:"waits"`
	// AfterEviction describes the result of an eviction of the pod.
	AfterEviction string `json:"afterEviction"`
	// Budgets are the PodDisruptionBudgets of the pod, "namespace/name".
	Budgets []string `json:"budgets,omitempty"`
}

// Drain returns the pods of a node that have FixedIPs with addresses, with the result of an eviction, sorted by pod. The Report
// names the PodDisruptionBudgets of these pods at which a drain would stop. Drain leaves out the pods that a drain does not
// evict (pods of DaemonSets and static pods), and pods that have ended or have opted out of fixed addresses.
func Drain(in DrainInputs) ([]DrainedPod, Report) {
	var r Report
	if len(in.NotRead) > 0 {
		r.fact("Not read", "%s", strings.Join(in.NotRead, ", "))
	}
	// records contains the FixedIPs. Key: the pod that the FixedIP names.
	records := map[string]*v1alpha1.FixedIP{}
	for i := range in.Records {
		records[pool.OwnerKey(in.Records[i].Namespace, in.Records[i].Spec.PodName)] = &in.Records[i]
	}
	var drained []DrainedPod
	waiting := 0
	// covered contains the pods of each budget. waitingOf contains those of them whose replacements wait for the node, and
	// policies the failover policies of the pods in waitingOf. Key: the budget.
	covered, waitingOf, policies := map[string][]string{}, map[string][]string{}, map[string][]string{}
	for i := range in.Pods {
		key := pool.OwnerKey(in.Pods[i].Namespace, in.Pods[i].Name)
		record := records[key]
		if record == nil || len(record.Spec.IPs) == 0 || podutil.IsTerminal(&in.Pods[i]) || identity.OptsOut(&in.Pods[i]) || staysOnDrain(&in.Pods[i]) {
			continue
		}
		d := in.drainedPod(record)
		for j := range in.Budgets {
			if b := &in.Budgets[j]; covers(b, &in.Pods[i]) {
				name := pool.OwnerKey(b.Namespace, b.Name)
				d.Budgets = append(d.Budgets, name)
				covered[name] = append(covered[name], key)
				if d.Waits {
					waitingOf[name], policies[name] = append(waitingOf[name], key), append(policies[name], d.Policy)
				}
			}
		}
		if len(d.Budgets) > 1 {
			r.wrong("delete or change PodDisruptionBudgets until only one selects the pod", "The drain stops at pod %s: %d PodDisruptionBudgets select the pod, and the API server evicts no pod with more than one", key, len(d.Budgets))
		}
		if d.Waits {
			waiting++
		}
		drained = append(drained, d)
	}
	slices.SortFunc(drained, func(a, b DrainedPod) int { return strings.Compare(a.Pod, b.Pod) })
	for _, b := range in.Budgets {
		name := pool.OwnerKey(b.Namespace, b.Name)
		slices.Sort(covered[name])
		slices.Sort(waitingOf[name])
		switch allowed := int(b.Status.DisruptionsAllowed); {
		case len(waitingOf[name]) > allowed:
			r.wrong(in.waitHelp(policies[name]),
				"The drain stops at PodDisruptionBudget %s (disruptions allowed now: %d); these pods stay Pending and count as disrupted until the node is uncordoned or, if it is deleted, until another node can run them (see subnets.orphanedPolicy): %s", name, allowed, strings.Join(waitingOf[name], ", "))
		case allowed == 0 && len(covered[name]) > 0:
			r.wrong("wait until the budget allows a disruption, or change it", "The drain stops at PodDisruptionBudget %s, which allows no disruption now; its pods with fixed addresses on the node: %s", name, strings.Join(covered[name], ", "))
		}
	}
	r.Waits = waiting > 0
	switch {
	case len(drained) == 0:
		r.fine("No pod that a drain would evict has a FixedIP; pods in state Claimed (kubectl fixedip get -A) are not checked")
	case waiting > 0:
		r.fine("Pods with fixed addresses that wait for the node after their eviction, if fixedip-scheduler places them: %d of %d", waiting, len(drained))
	default:
		r.fine("No failover policy makes a pod with a fixed address wait for the node")
	}
	return drained, r
}

// waitHelp returns the advice for pods that wait for the node, by their failover policies. Another policy does not help pods
// that wait because no other node can take them.
func (in DrainInputs) waitHelp(policies []string) string {
	const reassign = "set the annotation " + identity.AnnotationFailover + " on the workload to Reassign (another address)"
	switch {
	case slices.Contains(policies, string(v1alpha1.Wait)):
		return reassign + " or, if the routing carries single addresses, to Migrate"
	case slices.Contains(policies, string(v1alpha1.Migrate)) && !ptr.Deref(in.MigrationAllowed, true):
		return reassign
	}
	return "uncordon or add a node that can take the pods"
}

// staysOnDrain reports whether kubectl drain does not evict a pod: it belongs to a DaemonSet, or it is the mirror of a
// static pod.
func staysOnDrain(pod *corev1.Pod) bool {
	_, static := pod.Annotations[corev1.MirrorPodAnnotationKey]
	controller := metav1.GetControllerOfNoCopy(pod)
	return static || controller != nil && controller.Kind == "DaemonSet"
}

// drainedPod returns the DrainedPod of the pod of a FixedIP, without Budgets.
func (in DrainInputs) drainedPod(record *v1alpha1.FixedIP) DrainedPod {
	policy := cmp.Or(record.Spec.Failover, in.Failover)
	d := DrainedPod{Pod: pool.OwnerKey(record.Namespace, record.Spec.PodName), IPs: record.Spec.IPs, Policy: string(policy)}
	switch {
	case record.Spec.Owner.Kind == identity.PodKind:
		d.Policy, d.AfterEviction = "", "is not created again, because it has no controller"
	case record.Spec.AssignedTo == v1alpha1.Slot:
		d.Policy, d.AfterEviction = "Slot", "the next pod takes over a free slot, or waits until it can take one over"
	case policy == v1alpha1.Migrate:
		if d.AfterEviction = in.whyWaits(d.Pod, record, false); d.AfterEviction != "" {
			d.Waits = true
			break
		}
		d.AfterEviction = "runs on another node with this address, if a node can take the pod and allowAddressMigration is true"
		if ptr.Deref(in.MigrationAllowed, false) {
			d.AfterEviction = "runs on another node with this address, if a node can take the pod"
		}
	case policy == v1alpha1.Reassign:
		if d.AfterEviction = in.whyWaits(d.Pod, record, true); d.AfterEviction != "" {
			d.Waits = true
			break
		}
		d.AfterEviction = "runs on another node with another address, if a node can take the pod"
	default:
		d.Waits = true
		d.AfterEviction = "waits until the node is uncordoned or, if the node is deleted, until another node can run the pod"
	}
	return d
}

// whyWaits returns why the pod of a FixedIP waits for the node although its failover policy is Migrate or, if reassign is
// true, Reassign; empty if no reason is known. The requests and the affinity of the pod are not taken into account.
func (in DrainInputs) whyWaits(pod string, record *v1alpha1.FixedIP, reassign bool) string {
	if !reassign && !ptr.Deref(in.MigrationAllowed, true) {
		return "waits, because allowAddressMigration is false"
	}
	if in.Nodes == nil {
		return ""
	}
	others := map[string]*corev1.Node{}
	for name, node := range in.Nodes {
		if name != in.Node && nodeutil.IsSchedulable(node) {
			others[name] = node
		}
	}
	if len(others) == 0 {
		return "waits, because no other node is ready and not cordoned"
	}
	var volumes []string
	for _, v := range in.Volumes[pod] {
		volumes = append(volumes, v.String())
		maps.DeleteFunc(others, func(_ string, node *corev1.Node) bool { return !v.usableOn(node) })
		if len(others) == 0 {
			return fmt.Sprintf("waits, because no other node that is ready and not cordoned can use %s", strings.Join(volumes, " and "))
		}
	}
	if !reassign || in.Pools == nil {
		return ""
	}
	for name := range others {
		if !slices.ContainsFunc(address.ParseAll(record.Spec.IPs), func(a netip.Addr) bool { return !in.Pools.HasAvailable(name, address.Of(a)) }) {
			return ""
		}
	}
	return "waits, because no other node that can take the pod has a free address"
}

// covers reports whether a budget selects a pod. An empty selector selects all pods of the namespace; a budget without a
// selector selects none.
func covers(b *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	return err == nil && b.Namespace == pod.Namespace && selector.Matches(labels.Set(pod.Labels))
}
