// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

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

// addressUsers are the pods, FixedIPs and pools that have one IP.
type addressUsers struct {
	addr netip.Addr
	// pods are the pods that run with it.
	pods []*corev1.Pod
	// records are the FixedIPs that reserve it.
	records []*v1alpha1.FixedIP
	// nodes are the nodes whose pools offer it.
	nodes []string
}

// Kinds of conflicts, as metrics name them.
const (
	twoPods     = "pods"
	twoFixedIPs = "fixedips"
	twoPools    = "pools"
	// wrongPod means that a pod runs with the IP that is reserved for another.
	wrongPod = "stranger"
)

// conflicts returns what is wrong, in words for the users of a namespace: objects of other namespaces have no name there.
// If namespace is empty, everything has its name. Key: the kind.
func (c addressUsers) conflicts(namespace string) map[string]string {
	told := func(of, name string) string {
		if namespace != "" && of != namespace {
			return "one of another namespace"
		}
		return name
	}
	found := map[string]string{}
	var pods, records, strangers []string
	for _, p := range c.pods {
		pod := told(p.Namespace, fmt.Sprintf("pod %s/%s on node %s", p.Namespace, p.Name, p.Spec.NodeName))
		pods = append(pods, strings.TrimPrefix(pod, "pod "))
		for _, r := range c.records {
			if r.Namespace != p.Namespace || r.Spec.PodName != p.Name {
				strangers = append(strangers, fmt.Sprintf("%s runs with %s, which is reserved for %s", pod, c.addr, told(r.Namespace, "pod "+r.Namespace+"/"+r.Spec.PodName)))
			}
		}
	}
	for _, r := range c.records {
		records = append(records, told(r.Namespace, r.Namespace+"/"+r.Name))
	}
	for kind, text := range map[string]struct {
		users  []string
		format string
	}{
		twoPods:     {pods, "pods %s run with the same address %s; delete all but one"},
		twoFixedIPs: {records, "FixedIPs %s reserve the same address %s; delete all but one"},
		twoPools:    {c.nodes, "the pools of nodes %s offer the same address %s; remove the entry from all but one"},
	} {
		if len(text.users) > 1 {
			found[kind] = fmt.Sprintf(text.format, all(text.users), c.addr)
		}
	}
	if len(strangers) > 0 {
		found[wrongPod] = all(strangers) + "; delete the pod that it is not reserved for"
	}
	return found
}

func all(texts []string) string { return strings.Join(slices.Sorted(slices.Values(texts)), " and ") }

// conditionOf returns the condition Conflict that a FixedIP should have for the conflicts of its IPs. ok is false if it
// has that condition.
func conditionOf(r *v1alpha1.FixedIP, conflicts []string, now time.Time) (c metav1.Condition, ok bool) {
	have := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionConflict)
	c = metav1.Condition{Type: v1alpha1.ConditionConflict, Status: metav1.ConditionFalse, Reason: "Sole", Message: "No other pod, FixedIP or pool has its addresses", LastTransitionTime: metav1.NewTime(now)}
	if len(conflicts) > 0 {
		slices.Sort(conflicts)
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, "Shared", strings.Join(conflicts, "; and ")
	}
	if have == nil {
		return c, len(conflicts) > 0
	}
	return c, have.Status != c.Status || len(conflicts) > 0 && have.Message != c.Message
}
