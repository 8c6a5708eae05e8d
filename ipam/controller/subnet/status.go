// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

// status returns the status of a NodeSubnet whose node has the subnet in its CiliumNode. part: another subnet of the
// node that it was inherited from is still to follow; until then the status says since when that node is gone.
func status(ns *v1alpha1.NodeSubnet, node *corev1.Node, part bool, now time.Time) v1alpha1.NodeSubnetStatus {
	want := *ns.Status.DeepCopy()
	if !part {
		want.OrphanedSince, want.GracePeriodEnd = nil, nil
	}
	if node != nil {
		c := subnetplan.ConstraintsOf(node)
		want.NodeConstraints = &c
	}
	setAssigned(&want, ns, metav1.ConditionTrue, v1alpha1.ReasonAssigned, fmt.Sprintf("node %s has the subnet", ns.Spec.NodeName), now)
	return want
}

// orphanStatus returns the status of a NodeSubnet whose node was observed to be gone.
func orphanStatus(ns *v1alpha1.NodeSubnet, grace time.Duration, now time.Time) v1alpha1.NodeSubnetStatus {
	want := *ns.Status.DeepCopy()
	since := metav1.NewTime(now.Truncate(time.Second))
	end := metav1.NewTime(since.Add(grace))
	want.OrphanedSince, want.GracePeriodEnd = &since, &end
	message := "no node has had the subnet yet; a FixedIP reserves an address in it"
	if ns.Spec.NodeName != "" {
		message = fmt.Sprintf("node %s is gone; the subnet is reserved for a node of that name until %s, and as long as FixedIPs reserve addresses in it", ns.Spec.NodeName, end.UTC().Format(time.RFC3339))
	}
	setAssigned(&want, ns, metav1.ConditionFalse, v1alpha1.ReasonOrphaned, message, now)
	return want
}

func setAssigned(s *v1alpha1.NodeSubnetStatus, ns *v1alpha1.NodeSubnet, status metav1.ConditionStatus, reason, message string, now time.Time) {
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionAssigned, Status: status, Reason: reason, Message: message, ObservedGeneration: ns.Generation,
		LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
	})
}

func sameStatus(a, b v1alpha1.NodeSubnetStatus) bool { return equality.Semantic.DeepEqual(a, b) }
