// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumendpoint

import (
	"net/netip"
	"slices"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/podutil"
)

// Issue is a defect of the CiliumEndpoint of a pod. Its text is the cause in metrics and events.
type Issue string

const (
	// Healthy means that there is no issue, or that the CiliumEndpoint is not judged, because its owner is no pod of its name.
	Healthy Issue = ""
	// Stuck means that the CiliumEndpoint is being deleted and still exists, for example because of finalizers.
	Stuck Issue = "Stuck"
	// Podless means that there is no pod with the name of the CiliumEndpoint.
	Podless Issue = "Podless"
	// Stale means that the CiliumEndpoint belongs to a former pod of the same name.
	Stale Issue = "Stale"
	// MisOwned means that the owner reference of the CiliumEndpoint names a former pod, although the CiliumEndpoint describes
	// the current pod or the agent may have taken it over for the current pod.
	MisOwned Issue = "MisOwned"
	// MisAddressed means that the CiliumEndpoint does not describe the pod, although it has no other owner. It lacks an
	// IP of the pod; or it has no owner at all and names the IP of another node.
	MisAddressed Issue = "MisAddressed"
	// Missing means that the pod runs and has no CiliumEndpoint.
	Missing Issue = "Missing"
)

// explanations contains the texts with which events explain why the CiliumEndpoint of a pod was removed. Key: the issue.
var explanations = map[Issue]string{
	Stuck:        "its deletion did not end",
	Stale:        "it belonged to a former pod with the same name",
	MisAddressed: "it did not have the IPs or the node of the pod",
}

// Diagnose compares a CiliumEndpoint with the pod of the same name and returns the issue of the CiliumEndpoint. An argument is
// nil if the object does not exist. If the CiliumEndpoint or a running pod does not name the IP of its node, Diagnose assumes
// that both are on the same node.
func Diagnose(e *ciliumv2.CiliumEndpoint, pod *corev1.Pod) Issue {
	runs := podutil.Runs(pod)
	switch {
	case e == nil && runs:
		return Missing
	case e == nil:
		return Healthy
	}
	var owner types.UID
	for _, o := range e.OwnerReferences {
		if o.Kind != "Pod" || o.Name != e.Name {
			// The owner of the CiliumEndpoint is not the pod. Do not judge this CiliumEndpoint.
			return Healthy
		}
		owner = o.UID
	}
	owned := owner == "" || pod != nil && owner == pod.UID
	about := pod != nil && describes(e, pod)
	switch {
	case e.DeletionTimestamp != nil:
		return Stuck
	case pod == nil:
		return Podless
	case owned && runs && (!about || owner == "" && !onItsNode(e, pod)):
		// The node IP that an agent writes may differ from the one that the kubelet reports, so this case compares it only if
		// the CiliumEndpoint has no owner. An agent always sets the owner: a CiliumEndpoint without an owner was restored from
		// a backup, for example.
		return MisAddressed
	case owned:
		return Healthy
	case runs && about && onItsNode(e, pod), podutil.AwaitsIP(pod) && pod.Status.HostIP != "" && len(byNode(e)) > 0 && onItsNode(e, pod):
		// The agent may have taken the CiliumEndpoint over before the kubelet reports the IPs of the pod.
		return MisOwned
	}
	// If the pod does not run yet, the CiliumEndpoint may still be in use by the former pod. The agent of the former
	// pod has the grace period to remove it.
	return Stale
}

// describes reports whether a CiliumEndpoint has all IPs of a pod.
func describes(e *ciliumv2.CiliumEndpoint, pod *corev1.Pod) bool {
	var has []string
	if n := e.Status.Networking; n != nil {
		for _, pair := range n.Addressing {
			if pair != nil {
				has = append(has, pair.IPV4, pair.IPV6)
			}
		}
	}
	known := address.ParseAll(has)
	return !slices.ContainsFunc(podutil.IPs(pod), func(a netip.Addr) bool { return !slices.Contains(known, a) })
}

// onItsNode reports whether a CiliumEndpoint and a pod may be on the same node, according to the IPs of their nodes.
func onItsNode(e *ciliumv2.CiliumEndpoint, pod *corev1.Pod) bool {
	ips := byNode(e)
	return len(ips) == 0 || pod.Status.HostIP == "" || ips[0] == pod.Status.HostIP || slices.Contains(pod.Status.HostIPs, corev1.HostIP{IP: ips[0]})
}

// GracePeriods are the times for which an issue has to last before the keeper acts.
type GracePeriods struct {
	// Termination applies to a CiliumEndpoint that is being deleted. It begins at the deletion timestamp.
	Termination time.Duration
	// Agent applies to every other issue except MisOwned, which has no grace period. Within that time the agent may resolve
	// the issue itself.
	Agent time.Duration
}

// Due returns the time at which the keeper acts on an issue that was first seen at the time seen. e may be nil unless the
// issue is Stuck.
func (p GracePeriods) Due(i Issue, e *ciliumv2.CiliumEndpoint, seen time.Time) time.Time {
	switch i {
	case Stuck:
		return e.DeletionTimestamp.Add(p.Termination)
	case MisOwned:
		// The garbage collector deletes the CiliumEndpoint without a grace period.
		return seen
	}
	return seen.Add(p.Agent)
}
