// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package plan

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

// Claimants are all that have, hold or offer one address.
type Claimants struct {
	Addr netip.Addr
	// Pods are the pods that run with it (see Runs).
	Pods []*corev1.Pod
	// Records are the FixedIPs that hold it.
	Records []*v1alpha1.FixedIP
	// Nodes are those whose pools offer it.
	Nodes []string
}

// Kinds of conflicts, as metrics name them.
const (
	ConflictPods    = "pods"
	ConflictRecords = "fixedips"
	ConflictPools   = "pools"
	// ConflictStranger means that a pod runs with what is kept for another.
	ConflictStranger = "stranger"
)

// Conflicts are what is wrong about the claimants of an address, in words, for whoever may know of all of them.
// Key: the kind.
func (c Claimants) Conflicts() map[string]string {
	return c.conflicts(func(_, name string) string { return name })
}

// ConflictsFor are the same in words for those who may know of one namespace: what is not theirs has no name.
func (c Claimants) ConflictsFor(namespace string) map[string]string {
	return c.conflicts(func(of, name string) string {
		if of != namespace {
			return "one of another namespace"
		}
		return name
	})
}

func (c Claimants) conflicts(told func(namespace, name string) string) map[string]string {
	found := map[string]string{}
	var pods, records, strangers []string
	for _, p := range c.Pods {
		pod := told(p.Namespace, fmt.Sprintf("pod %s/%s on node %s", p.Namespace, p.Name, p.Spec.NodeName))
		pods = append(pods, strings.TrimPrefix(pod, "pod "))
		for _, r := range c.Records {
			if r.Namespace != p.Namespace || r.Spec.PodName != p.Name {
				strangers = append(strangers, fmt.Sprintf("%s runs with %s, which is kept for %s", pod, c.Addr, told(r.Namespace, "pod "+r.Namespace+"/"+r.Spec.PodName)))
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
		found[ConflictPods] = fmt.Sprintf("pods %s run with the same address %s; delete all but one", strings.Join(pods, " and "), c.Addr)
	}
	if len(records) > 1 {
		found[ConflictRecords] = fmt.Sprintf("FixedIPs %s hold the same address %s; delete all but one", strings.Join(records, " and "), c.Addr)
	}
	if len(c.Nodes) > 1 {
		found[ConflictPools] = fmt.Sprintf("the pools of nodes %s offer the same address %s; remove the entry from all but one", strings.Join(slices.Sorted(slices.Values(c.Nodes)), " and "), c.Addr)
	}
	if len(strangers) > 0 {
		found[ConflictStranger] = strings.Join(strangers, " and ") + "; delete the pod that it is not kept for"
	}
	return found
}

// ConflictCondition is the condition Conflict that a record should have for what was found about
// its addresses; ok is false where it has it.
func ConflictCondition(r *v1alpha1.FixedIP, conflicts []string, now time.Time) (c metav1.Condition, ok bool) {
	have := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionConflict)
	if len(conflicts) == 0 {
		if have == nil || have.Status == metav1.ConditionFalse {
			return c, false
		}
		return metav1.Condition{Type: v1alpha1.ConditionConflict, Status: metav1.ConditionFalse, Reason: "Sole", Message: "Nobody else has its addresses, holds them or offers them", LastTransitionTime: metav1.NewTime(now)}, true
	}
	slices.Sort(conflicts)
	message := strings.Join(conflicts, "; and ")
	if have != nil && have.Status == metav1.ConditionTrue && have.Message == message {
		return c, false
	}
	return metav1.Condition{Type: v1alpha1.ConditionConflict, Status: metav1.ConditionTrue, Reason: "Shared", Message: message, LastTransitionTime: metav1.NewTime(now)}, true
}
