// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
)

// finding is what is wrong with a pod. The zero finding is nothing.
type finding struct {
	reason, message string
	// curable is true if a restart helps.
	curable bool
	grace   time.Duration
}

func find(s PodState) finding {
	// A family that the pod does not have at all is a setting of its node. A restart does not change it.
	var missing []netip.Addr
	for _, ip := range s.FixedIP.Spec.IPs {
		a, err := address.Parse(ip)
		if err == nil && !podutil.RunsWith(s.Pod, a) && podutil.HasFamily(s.Pod, address.Of(a)) {
			missing = append(missing, a)
		}
	}
	runs := fmt.Sprintf("Pod %s/%s runs with %s on node %s", s.Pod.Namespace, s.Pod.Name, address.Join(podutil.IPs(s.Pod)), s.Pod.Spec.NodeName)
	f := finding{curable: true}
	switch {
	case len(missing) > 0:
		f.reason, f.grace = ReasonWrongAddress, s.Grace.Address
		where, returns := elsewhere(s, missing)
		f.message = fmt.Sprintf("%s, and %s is reserved for it%s", runs, address.Join(missing), where)
		if where != "" && !returns {
			f.reason, f.curable = ReasonNoPoolEntry, false
		}
	case s.EndpointMissing:
		f.reason, f.grace = ReasonNoCiliumEndpoint, s.Grace.Endpoint
		f.message = runs + " and has no CiliumEndpoint, so that other nodes do not know it"
		if s.EndpointBlocker != "" {
			f.message += "; it is not evicted: " + s.EndpointBlocker
			f.curable = false
		}
	default:
		return finding{}
	}
	switch {
	case !f.curable:
	case s.BarePod:
		f.message += "; it is not evicted, because no controller makes it again. Delete it and create it again"
	case s.Policy != identity.Restart:
		f.message += "; it is not evicted, by its policy. Delete it, or set " + identity.AnnotationOnMismatch + " to Restart"
	}
	return f
}

// elsewhere says where the entries of the IPs are that the pool of the pod's node does not have, and whether a restart
// brings the pod there. It returns nothing if the node has all of them.
func elsewhere(s PodState, ips []netip.Addr) (where string, returns bool) {
	here := s.Pod.Spec.NodeName
	missing := slices.DeleteFunc(slices.Clone(ips), func(a netip.Addr) bool { return holds(s, here, a) })
	if len(missing) == 0 {
		return "", false
	}
	for _, h := range s.Held {
		switch has := h.Node != here && slices.Contains(h.Addrs, missing[0]); {
		case has && slices.Contains(s.Returns, h.Node):
			return fmt.Sprintf(", in the pool of node %s, to which its scheduler moves it", h.Node), true
		case has:
			return fmt.Sprintf(", in the pool of node %s: a restart helps only if its scheduler places it there", h.Node), false
		}
	}
	allocated := meta.FindStatusCondition(s.FixedIP.Status.Conditions, v1alpha1.ConditionAllocated)
	if s.Ours && allocated != nil && allocated.Status == metav1.ConditionFalse && allocated.Reason == string(pool.OtherAddressAllocated) {
		return ", which has no entry as long as the pool has another IP for the pod; the next pod has it", true
	}
	return fmt.Sprintf(", in no pool: a restart does not help before node %s has the entry", here), false
}

func holds(s PodState, node string, a netip.Addr) bool {
	return slices.ContainsFunc(s.Held, func(h ledger.NodeAddresses) bool { return h.Node == node && slices.Contains(h.Addrs, a) })
}
