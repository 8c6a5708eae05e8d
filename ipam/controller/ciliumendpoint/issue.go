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

// Issue is what is wrong with the CiliumEndpoint of a pod. Its text is the cause that metrics and events name.
type Issue string

const (
	// Healthy means that nothing is wrong.
	Healthy Issue = ""
	// Stuck means that it is being deleted, and finalizers hold it.
	Stuck Issue = "Stuck"
	// Podless means that there is no pod of its name.
	Podless Issue = "Podless"
	// Stale means that it is about a former pod of the name.
	Stale Issue = "Stale"
	// MisOwned means that it is about the pod, or may be as soon as its agent has written it, and its owner reference names
	// a former one.
	MisOwned Issue = "MisOwned"
	// MisAddressed means that the pod owns it, and it has other IPs.
	MisAddressed Issue = "MisAddressed"
	// Missing means that the pod has none.
	Missing Issue = "Missing"
)

// Diagnose compares a CiliumEndpoint (nil: there is none) with the pod of its name (nil: there is none). If the pod does
// not say the IPs of its node, it is taken to be where the CiliumEndpoint says.
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
			// Something else than a pod owns it. It is not judged.
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
	case owned && runs && !about:
		return MisAddressed
	case owned:
		return Healthy
	case runs && about && onItsNode(e, pod), podutil.AwaitsIP(pod) && pod.Status.HostIP != "" && len(byNode(e)) > 0 && onItsNode(e, pod):
		// The agent of its node may have adopted it before the kubelet reports the IPs of the pod.
		return MisOwned
	}
	// If the pod does not run yet, it may still be the former pod's, whose agent is about to remove it. If that agent is
	// gone, the next pod does not run before its own has been there.
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

func onItsNode(e *ciliumv2.CiliumEndpoint, pod *corev1.Pod) bool {
	ips := byNode(e)
	return len(ips) == 0 || pod.Status.HostIP == "" || ips[0] == pod.Status.HostIP || slices.Contains(pod.Status.HostIPs, corev1.HostIP{IP: ips[0]})
}

// GracePeriods are how long an issue may last before the keeper acts.
type GracePeriods struct {
	// Termination is for a CiliumEndpoint that is being deleted, from the time of the request on.
	Termination time.Duration
	// Agent is what the agent has to resolve the issue by itself.
	Agent time.Duration
}

// Due returns when to act on an issue that was first seen at a time.
func (p GracePeriods) Due(i Issue, e *ciliumv2.CiliumEndpoint, seen time.Time) time.Time {
	switch i {
	case Stuck:
		return e.DeletionTimestamp.Add(p.Termination)
	case MisOwned:
		// The garbage collector does not wait either.
		return seen
	}
	return seen.Add(p.Agent)
}
