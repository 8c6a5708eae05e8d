// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/core/podutil"
)

// Endpoint is what a CiliumEndpoint says, as far as it is judged.
type Endpoint struct {
	UID types.UID
	// OwnerUID is the pod in its owner reference; empty if there is none.
	OwnerUID types.UID
	// Foreign is true if something else than a pod owns it. It is not judged then.
	Foreign bool
	// Deleting is when its deletion was requested; zero: it was not.
	Deleting time.Time
	// Addrs are its IPs; NodeIP is the IP of its node.
	Addrs  []netip.Addr
	NodeIP string
}

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
	// MisOwned means that it is about the pod that runs, and its owner reference names a former one.
	MisOwned Issue = "MisOwned"
	// MisAddressed means that the pod owns it, and it has other IPs.
	MisAddressed Issue = "MisAddressed"
	// Missing means that the pod has none.
	Missing Issue = "Missing"
)

// Diagnose compares a CiliumEndpoint (nil: there is none) with the pod of its name (nil: there is none). If the pod does
// not say the IPs of its node, it is taken to be where the CiliumEndpoint says.
func Diagnose(e *Endpoint, pod *corev1.Pod) Issue {
	switch {
	case e == nil && podutil.Runs(pod):
		return Missing
	case e == nil || e.Foreign:
		return Healthy
	case !e.Deleting.IsZero():
		return Stuck
	case pod == nil:
		return Podless
	case !podutil.Runs(pod):
		// It may still be the former pod's, whose agent is about to remove it. If that agent is gone, the next pod does
		// not run before its own has been there.
		if e.OwnerUID != "" && e.OwnerUID != pod.UID {
			return Stale
		}
		return Healthy
	}
	about := !slices.ContainsFunc(podutil.IPs(pod), func(a netip.Addr) bool { return !slices.Contains(e.Addrs, a) })
	switch {
	case e.OwnerUID == "" || e.OwnerUID == pod.UID:
		if !about {
			return MisAddressed
		}
		return Healthy
	case about && onItsNode(e, pod):
		return MisOwned
	}
	return Stale
}

func onItsNode(e *Endpoint, pod *corev1.Pod) bool {
	if e.NodeIP == "" || pod.Status.HostIP == "" {
		return true
	}
	return e.NodeIP == pod.Status.HostIP || slices.Contains(pod.Status.HostIPs, corev1.HostIP{IP: e.NodeIP})
}

// GracePeriods are how long an issue may last before the keeper acts.
type GracePeriods struct {
	// Termination is for a CiliumEndpoint that is being deleted, from the time of the request on.
	Termination time.Duration
	// Agent is what the agent has to resolve the issue by itself.
	Agent time.Duration
}

// Due returns when to act on an issue that was first seen at a time.
func (p GracePeriods) Due(i Issue, e *Endpoint, seen time.Time) time.Time {
	switch i {
	case Stuck:
		return e.Deleting.Add(p.Termination)
	case MisOwned:
		// The garbage collector does not wait either.
		return seen
	}
	return seen.Add(p.Agent)
}
