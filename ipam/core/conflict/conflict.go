// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package conflict says what is wrong about an IP that more than one pod, FixedIP or pool has.
//
// It only describes: which of two is right can't be found out, and both may work. It is pure: it has no client, clock,
// goroutine or context.
package conflict

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
)

// AddressUsers are the pods, FixedIPs and pools that have one IP.
type AddressUsers struct {
	Addr netip.Addr
	// Pods are the pods that run with it.
	Pods []*corev1.Pod
	// Records are the FixedIPs that reserve it.
	Records []*v1alpha1.FixedIP
	// Nodes are the nodes whose pools offer it.
	Nodes []string
}

// Kinds of conflicts, as metrics name them.
const (
	Pods     = "pods"
	FixedIPs = "fixedips"
	Pools    = "pools"
	// WrongPod means that a pod runs with the IP that is reserved for another.
	WrongPod = "stranger"
)

// Conflicts returns what is wrong, in words that name everything. Key: the kind.
func (c AddressUsers) Conflicts() map[string]string {
	return c.conflicts(func(_, name string) string { return name })
}

// ConflictsFor returns the same for users of one namespace: objects of other namespaces have no name there.
func (c AddressUsers) ConflictsFor(namespace string) map[string]string {
	return c.conflicts(func(of, name string) string {
		if of != namespace {
			return "one of another namespace"
		}
		return name
	})
}

func (c AddressUsers) conflicts(told func(namespace, name string) string) map[string]string {
	found := map[string]string{}
	var pods, records, strangers []string
	for _, p := range c.Pods {
		pod := told(p.Namespace, fmt.Sprintf("pod %s/%s on node %s", p.Namespace, p.Name, p.Spec.NodeName))
		pods = append(pods, strings.TrimPrefix(pod, "pod "))
		for _, r := range c.Records {
			if r.Namespace != p.Namespace || r.Spec.PodName != p.Name {
				strangers = append(strangers, fmt.Sprintf("%s runs with %s, which is reserved for %s", pod, c.Addr, told(r.Namespace, "pod "+r.Namespace+"/"+r.Spec.PodName)))
			}
		}
	}
	for _, r := range c.Records {
		records = append(records, told(r.Namespace, r.Namespace+"/"+r.Name))
	}
	slices.Sort(pods)
	slices.Sort(records)
	slices.Sort(strangers)
	if len(pods) > 1 {
		found[Pods] = fmt.Sprintf("pods %s run with the same address %s; delete all but one", strings.Join(pods, " and "), c.Addr)
	}
	if len(records) > 1 {
		found[FixedIPs] = fmt.Sprintf("FixedIPs %s reserve the same address %s; delete all but one", strings.Join(records, " and "), c.Addr)
	}
	if len(c.Nodes) > 1 {
		found[Pools] = fmt.Sprintf("the pools of nodes %s offer the same address %s; remove the entry from all but one", strings.Join(slices.Sorted(slices.Values(c.Nodes)), " and "), c.Addr)
	}
	if len(strangers) > 0 {
		found[WrongPod] = strings.Join(strangers, " and ") + "; delete the pod that it is not reserved for"
	}
	return found
}

// Condition returns the condition Conflict that a FixedIP should have for the conflicts of its IPs. ok is false if it has
// that condition.
func Condition(r *v1alpha1.FixedIP, conflicts []string, now time.Time) (c metav1.Condition, ok bool) {
	have := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionConflict)
	if len(conflicts) == 0 {
		if have == nil || have.Status == metav1.ConditionFalse {
			return c, false
		}
		return metav1.Condition{Type: v1alpha1.ConditionConflict, Status: metav1.ConditionFalse, Reason: "Sole", Message: "No other pod, FixedIP or pool has its addresses", LastTransitionTime: metav1.NewTime(now)}, true
	}
	slices.Sort(conflicts)
	message := strings.Join(conflicts, "; and ")
	if have != nil && have.Status == metav1.ConditionTrue && have.Message == message {
		return c, false
	}
	return metav1.Condition{Type: v1alpha1.ConditionConflict, Status: metav1.ConditionTrue, Reason: "Shared", Message: message, LastTransitionTime: metav1.NewTime(now)}, true
}
