// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package podutil evaluates one pod: whether the pod has ended, its IPs, and whether it still holds them.
//
// The functions read only the pod that is passed to them. They must not read a cache, call an API or decide about an
// address, because the scheduler, the controllers and the tools share them.
package podutil

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/core/address"
)

// IsTerminal reports whether the pod has succeeded or failed. The IPs in the status of such a pod no longer count as held. Only
// the report of the agent shows whether an IP is still allocated for the pod.
func IsTerminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// HasIPs reports whether the status of the pod has IPs. Those of a pod in the host network count too.
func HasIPs(pod *corev1.Pod) bool { return len(pod.Status.PodIPs) > 0 }

// IPs returns the IPs in the status of the pod. Values that address.Parse refuses are left out.
func IPs(pod *corev1.Pod) []netip.Addr {
	var ips []netip.Addr
	for _, ip := range pod.Status.PodIPs {
		if a, err := address.Parse(ip.IP); err == nil {
			ips = append(ips, a)
		}
	}
	return ips
}

// HoldsIPs reports whether the pod uses the pod network and has not ended: if its status has IPs, the pod uses them. A pod
// that is being deleted still holds its IPs.
func HoldsIPs(pod *corev1.Pod) bool { return !pod.Spec.HostNetwork && !IsTerminal(pod) }

// AwaitsIP reports whether the pod is bound, uses the pod network, and has no IP yet. It is false for a pod that has ended
// or is being deleted.
func AwaitsIP(pod *corev1.Pod) bool {
	return isActive(pod) && len(pod.Status.PodIPs) == 0
}

// Runs reports whether the pod is bound, has IPs of the pod network, has not ended and is not being deleted. It is false for
// a nil pod.
func Runs(pod *corev1.Pod) bool {
	return pod != nil && isActive(pod) && len(pod.Status.PodIPs) > 0
}

// RunsWith reports whether a is among the IPs in the status of the pod.
func RunsWith(pod *corev1.Pod, a netip.Addr) bool {
	return slices.Contains(IPs(pod), a)
}

// HasFamily reports whether the pod has an IP of the family.
func HasFamily(pod *corev1.Pod, f address.Family) bool {
	return slices.ContainsFunc(IPs(pod), func(a netip.Addr) bool { return address.Of(a) == f })
}

// RunsWithOther reports whether the IPs in the status of the pod contain another IP of the family of a, and not a.
func RunsWithOther(pod *corev1.Pod, a netip.Addr) bool {
	return !RunsWith(pod, a) && HasFamily(pod, address.Of(a))
}

// IsUnschedulable reports whether the pod is not bound and a scheduler has marked it as unschedulable. It is false for a nil
// pod.
func IsUnschedulable(pod *corev1.Pod) bool {
	return pod != nil && pod.Spec.NodeName == "" && slices.ContainsFunc(pod.Status.Conditions, isUnschedulable)
}

// UnschedulableSince returns the time since which the condition PodScheduled of an unschedulable pod has been False; the zero
// time if no scheduler has marked the pod as unschedulable. The time is that of an earlier event if the condition was False for
// another reason before, because a new reason does not change lastTransitionTime: for a pod that had a scheduling gate, it is
// the time of its creation, so that the time in the gate counts.
func UnschedulableSince(pod *corev1.Pod) time.Time {
	if i := slices.IndexFunc(pod.Status.Conditions, isUnschedulable); i >= 0 {
		return pod.Status.Conditions[i].LastTransitionTime.Time
	}
	return time.Time{}
}

func isUnschedulable(c corev1.PodCondition) bool {
	return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
}

// IsReady reports whether the condition Ready of the pod is true and the pod is not being deleted.
func IsReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// Claims returns the names of the PersistentVolumeClaims of the pod, in the order of its volumes. Kubernetes names the claim
// of an ephemeral volume after the pod and the volume.
func Claims(pod *corev1.Pod) (names []string) {
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			names = append(names, pod.Name+"-"+v.Name)
		}
	}
	return names
}

func isActive(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil && HoldsIPs(pod)
}
