// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Endpoint is what a CiliumEndpoint says, as far as it is judged by.
type Endpoint struct {
	UID types.UID
	// OwnerUID is the pod that its owner reference names; empty where it names none.
	OwnerUID types.UID
	// Foreign tells that something else than a pod owns it: it is not ours to judge.
	Foreign bool
	// Deleting is when its deletion was asked for; zero: it was not.
	Deleting time.Time
	// Addrs are its addresses; NodeIP is the address of its node.
	Addrs  []netip.Addr
	NodeIP string
}

// Ailment is what is wrong with the CiliumEndpoint of a pod. Its text is the cause that metrics and
// events name.
type Ailment string

const (
	// Healthy means that nothing is wrong.
	Healthy Ailment = ""
	// Stuck means that it is being deleted, and finalizers hold it.
	Stuck Ailment = "Stuck"
	// Podless means that there is no pod of its name.
	Podless Ailment = "Podless"
	// Stale means that it speaks of a former pod of the name.
	Stale Ailment = "Stale"
	// MisOwned means that it speaks of the pod that runs, and its owner reference of a former one.
	MisOwned Ailment = "MisOwned"
	// MisAddressed means that it is the pod's and has other addresses.
	MisAddressed Ailment = "MisAddressed"
	// Missing means that the pod has none.
	Missing Ailment = "Missing"
)

// Diagnose compares a CiliumEndpoint with the pod of its name; nil: there is none. A pod whose node
// addresses are not known is taken to be where the endpoint says.
func Diagnose(e *Endpoint, pod *corev1.Pod) Ailment {
	switch {
	case e == nil && Runs(pod):
		return Missing
	case e == nil || e.Foreign:
		return Healthy
	case !e.Deleting.IsZero():
		return Stuck
	case pod == nil:
		return Podless
	case !Runs(pod):
		// It may still be the former pod's, whose agent is about to remove it. Where that agent is
		// gone, the next pod is not running before its own has been there.
		if e.OwnerUID != "" && e.OwnerUID != pod.UID {
			return Stale
		}
		return Healthy
	}
	speaksOfIt := !slices.ContainsFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool {
		a, err := netip.ParseAddr(ip.IP)
		return err == nil && !slices.Contains(e.Addrs, a)
	})
	switch {
	case e.OwnerUID == "" || e.OwnerUID == pod.UID:
		if !speaksOfIt {
			return MisAddressed
		}
		return Healthy
	case speaksOfIt && onItsNode(e, pod):
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

// EndpointPatience is how long a CiliumEndpoint may be ill before something is done.
type EndpointPatience struct {
	// Termination is for one that is being deleted, counted from then.
	Termination time.Duration
	// Agent is what the agent is given to put it right by itself.
	Agent time.Duration
}

// Due is when something is to be done about an ailment that was first seen at a time.
func (p EndpointPatience) Due(a Ailment, e *Endpoint, seen time.Time) time.Time {
	switch a {
	case Stuck:
		return e.Deleting.Add(p.Termination)
	case MisOwned:
		// The garbage collector does not wait either.
		return seen
	}
	return seen.Add(p.Agent)
}
